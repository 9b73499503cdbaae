"""A cluster made by the real scripts on machines with empty disks: it works, and it stays as it is.

Two sizes: two nodes (`small`), and eight with MariaDB and slurmdbd on the head (`full`) for what
can differ there. Minutes: `nox -s lifecycle`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from muster.cluster import LocalCluster, Shape
from muster.cluster.created import creation
from muster.cluster.created.description import CLOUD
from muster.errors import UsageError
from tests.harness.fixtures import slurm_here
from tests.harness.local_cloud import (
    all_idle,
    all_unchanged,
    configuration,
    job,
    script,
    steps,
    until,
    uploaded,
)

__all__ = ["slurm_here"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.slow,
]


def created(name: str, shape: Shape) -> Iterator[LocalCluster]:
    """Created from nothing. Leave it as you found it."""
    one = LocalCluster(f"{name}{os.getpid()}", shape)
    try:
        one.up(owner_pid=os.getpid(), timeout_s=600, fresh=True)
        yield one
    finally:
        one.down()


@pytest.fixture(scope="module")
def small(slurm_here: None) -> Iterator[LocalCluster]:
    yield from created("s", Shape(nodes=2, created=True, boot_s=0))


@pytest.fixture(scope="module")
def full(slurm_here: None) -> Iterator[LocalCluster]:
    yield from created("f", Shape(nodes=8, created=True, boot_s=0, accounting=True))


def create(cluster: LocalCluster) -> dict[str, creation.Created]:
    return creation.create(cluster, cluster.shape.machines)


def assert_created(done: dict[str, creation.Created]) -> None:
    assert {name: one.out for name, one in done.items() if one.rc != 0} == {}


@contextmanager
def described(cluster: LocalCluster, **changes: Any) -> Iterator[None]:
    """The uploaded cluster.yaml with other values for a while."""
    path = uploaded(cluster)
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), **changes}))
    try:
        yield
    finally:
        path.write_text(before)


def test_a_job_runs_on_two_nodes_and_on_all(full: LocalCluster) -> None:
    names = [full.shape.slurm_name(name) for name in full.shape.names]
    assert len(set(job(full, 2))) == 2
    assert job(full, len(names), user="ben") == sorted(names)
    known = "sacct -nXP -S now-1hour -a -o user,state | sort -u"
    until(lambda: "ben|COMPLETED" in script(full, "n0", known), "accounting knows the job")


def test_again_every_step_is_unchanged_and_not_a_byte_differs(full: LocalCluster) -> None:
    before = {name: configuration(full, name) for name in full.shape.machines}
    done = create(full)
    assert [one.out for one in done.values() if not all_unchanged(one)] == []
    assert len(steps(done["n0"])) > 8
    for name, files in before.items():
        assert configuration(full, name) == files


def test_the_same_cluster_starts_again_from_its_disks(full: LocalCluster) -> None:
    full.save_disks()
    again = LocalCluster(f"{full.name}-d", full.shape)
    try:
        again.up(owner_pid=os.getpid(), timeout_s=600)
        assert "\nIMAGE=/" in (again.folder.path / "etc" / "world.env").read_text()
        assert len(set(job(again, 2))) == 2
        done = create(again)
        assert [one.out for one in done.values() if not all_unchanged(one)] == []
    finally:
        again.down()
    assert len(set(job(full, 2))) == 2


def test_a_node_that_was_replaced_is_created_on_its_empty_disk(full: LocalCluster) -> None:
    config = full.folder.path / "config" / "resource_config.json"
    before = config.read_text()
    places = "/etc /usr/local /var /home /root /opt"
    script(full, "n2", f"for at in {places}; do touch $at/of-the-old-one; done")
    log = full.folder.logs / "create-n2.log"
    log.unlink()
    # As muster watch does it on the head: by the site's own command, with Slurm's name of the node.
    name = full.shape.slurm_name("n2")
    assert f"'{CLOUD}/bin/bmc', 'replace'".replace(" ", "") in script(
        full, "n0", "grep replace_command /etc/muster/site.yaml"
    ).replace(" ", "")
    (full.folder.path / "nodes" / "n2" / "created").unlink()
    script(full, "n0", f"{CLOUD}/bin/bmc replace {name}")
    until(lambda: creation.exit_code(full, "n2") is not None, "n2 is created again")
    assert creation.exit_code(full, "n2") == 0, log.read_text()
    assert script(full, "n2", f"find {places} -xdev -name of-the-old-one") == ""
    assert " 0 changed" not in creation.last_line(full, "n2")
    assert config.read_text() != before  # the platform's list has another machine
    until(lambda: all_idle(full), "the new one is idle")
    assert len(job(full, len(full.shape.names))) == len(full.shape.names)


def test_a_changed_description_changes_what_it_says(small: LocalCluster) -> None:
    found = json.loads(uploaded(small).read_text())
    users = found["users"]
    users["users"].append({"name": "cem", "uid": 2003, "group": "research"})
    slurm = {**found["slurm"], "settings": {**found["slurm"]["settings"], "MinJobAge": "123"}}
    try:
        with described(small, users=users, slurm=slurm):
            done = create(small)
            assert_created(done)
            changed = {name for name, state in steps(done["n1"]).items() if state == "changed"}
            assert "users" in changed
            assert not changed & {"hosts", "limits", "packages", "scratch"}
            assert "MinJobAge               = 123 sec" in script(
                small, "n0", "scontrol show config"
            )
            assert len(set(job(small, 2, user="cem"))) == 2
            assert [one.out for one in create(small).values() if not all_unchanged(one)] == []
    finally:
        assert_created(create(small))
    assert "= 123 sec" not in script(small, "n0", "scontrol show config | grep MinJobAge")


def test_a_wrong_description_is_one_line_and_changes_nothing(small: LocalCluster) -> None:
    before = {name: configuration(small, name) for name in ("n0", "n1")}
    with described(small, acounting={"database": "off"}):
        done = create(small)
    for one in done.values():
        assert one.rc == 78
        assert "unknown key 'acounting'. Did you mean 'accounting'?" in one.out.splitlines()[-1]
        assert len(one.out.splitlines()) == 1
    for name, files in before.items():
        assert configuration(small, name) == files
    assert len(set(job(small, 2))) == 2


def test_a_node_that_reboots_starts_its_daemons_and_nothing_else(small: LocalCluster) -> None:
    before = configuration(small, "n1")
    small.node("reboot", "n1")
    creation.wait_created(small, ["n1"], 600)
    until(lambda: all_idle(small), "n1 is back")
    assert configuration(small, "n1") == before
    assert len(set(job(small, 2))) == 2


def test_what_a_created_cluster_cannot_do_is_said(small: LocalCluster) -> None:
    for verb in ("slurmd-kill", "slurmd-start"):
        with pytest.raises(UsageError, match="not on a created cluster"):
            small.node(verb, "n1")
    with pytest.raises(UsageError, match="not on a created cluster"):
        small.head("slurmctld-stop")
