"""A head with MariaDB and slurmdbd and eight nodes, made by the real scripts on empty disks.

Minutes: `nox -s lifecycle`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from muster.cluster import LocalCluster, Shape
from muster.cluster.created import creation
from muster.cluster.created.description import CLOUD
from tests.harness.fixtures import slurm_here
from tests.harness.local_cloud import (
    all_idle,
    all_unchanged,
    configuration,
    create,
    created,
    job,
    script,
    steps,
    until,
)

__all__ = ["slurm_here"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[LocalCluster]:
    """Leave it as you found it."""
    yield from created("f", Shape(nodes=8, created=True, boot_s=0, accounting=True))


def test_a_job_runs_on_two_nodes_and_on_all(cluster: LocalCluster) -> None:
    names = [cluster.shape.slurm_name(name) for name in cluster.shape.names]
    assert len(set(job(cluster, 2))) == 2
    assert job(cluster, len(names), user="ben") == sorted(names)
    known = "sacct -nXP -S now-1hour -a -o user,state | sort -u"
    until(lambda: "ben|COMPLETED" in script(cluster, "n0", known), "accounting knows the job")


def test_again_every_step_is_unchanged_and_not_a_byte_differs(cluster: LocalCluster) -> None:
    before = {name: configuration(cluster, name) for name in cluster.shape.machines}
    done = create(cluster)
    assert [one.out for one in done.values() if not all_unchanged(one)] == []
    assert len(steps(done["n0"])) > 8
    for name, files in before.items():
        assert configuration(cluster, name) == files


def test_the_same_cluster_starts_again_from_its_disks(cluster: LocalCluster) -> None:
    job(cluster, 2)
    cluster.save_disks()  # at once: slurmctld writes only every few seconds what has ended
    again = LocalCluster(f"{cluster.name}-d", cluster.shape)
    try:
        again.up(owner_pid=os.getpid(), timeout_s=600)
        assert "\nIMAGE=/" in (again.folder.path / "etc" / "world.env").read_text()
        ended = re.findall(r"JobState=(\w+)", script(again, "n0", "scontrol show job"))
        assert set(ended) == {"COMPLETED"}  # none ran there until its time limit
        assert len(set(job(again, 2))) == 2
        done = create(again)
        assert [one.out for one in done.values() if not all_unchanged(one)] == []
    finally:
        again.down()
    assert len(set(job(cluster, 2))) == 2


def test_a_node_that_was_replaced_is_created_on_its_empty_disk(cluster: LocalCluster) -> None:
    config = cluster.folder.path / "config" / "resource_config.json"
    before = config.read_text()
    places = "/etc /usr/local /var /home /root /opt"
    script(cluster, "n2", f"for at in {places}; do touch $at/of-the-old-one; done")
    log = cluster.folder.logs / "create-n2.log"
    log.unlink()
    # As muster watch does it on the head: by the site's own command, with Slurm's name of the node.
    name = cluster.shape.slurm_name("n2")
    assert f"'{CLOUD}/bin/bmc', 'replace'".replace(" ", "") in script(
        cluster, "n0", "grep replace_command /etc/muster/site.yaml"
    ).replace(" ", "")
    (cluster.folder.path / "nodes" / "n2" / "created").unlink()
    script(cluster, "n0", f"{CLOUD}/bin/bmc replace {name}")
    until(lambda: creation.exit_code(cluster, "n2") is not None, "n2 is created again")
    assert creation.exit_code(cluster, "n2") == 0, log.read_text()
    assert script(cluster, "n2", f"find {places} -xdev -name of-the-old-one") == ""
    assert " 0 changed" not in creation.last_line(cluster, "n2")
    assert config.read_text() != before  # the platform's list has another machine
    until(lambda: all_idle(cluster), "the new one is idle")
    assert len(job(cluster, len(cluster.shape.names))) == len(cluster.shape.names)
