"""A cluster of two nodes made by the real scripts: what changes, and what stays as it is.

Minutes: `nox -s lifecycle`. Eight nodes with accounting are in test_created_full.py.
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
from muster.errors import UsageError
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
    uploaded,
)

__all__ = ["slurm_here"]
pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run tests"),
    pytest.mark.slow,
]


@pytest.fixture(scope="module")
def cluster(slurm_here: None) -> Iterator[LocalCluster]:
    """Leave it as you found it."""
    yield from created("s", Shape(nodes=2, created=True, boot_s=0))


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


def test_a_changed_description_changes_what_it_says(cluster: LocalCluster) -> None:
    found = json.loads(uploaded(cluster).read_text())
    users = found["users"]
    users["users"].append({"name": "cem", "uid": 2003, "group": "research"})
    slurm = {**found["slurm"], "settings": {**found["slurm"]["settings"], "MinJobAge": "123"}}
    try:
        with described(cluster, users=users, slurm=slurm):
            done = create(cluster)
            assert_created(done)
            changed = {name for name, state in steps(done["n1"]).items() if state == "changed"}
            assert "users" in changed
            assert not changed & {"hosts", "limits", "packages", "scratch"}
            assert "MinJobAge               = 123 sec" in script(
                cluster, "n0", "scontrol show config"
            )
            assert len(set(job(cluster, 2, user="cem"))) == 2
            assert [one.out for one in create(cluster).values() if not all_unchanged(one)] == []
    finally:
        assert_created(create(cluster))
    assert "= 123 sec" not in script(cluster, "n0", "scontrol show config | grep MinJobAge")


def test_a_wrong_description_is_one_line_and_changes_nothing(cluster: LocalCluster) -> None:
    before = {name: configuration(cluster, name) for name in ("n0", "n1")}
    with described(cluster, acounting={"database": "off"}):
        done = create(cluster)
    for one in done.values():
        assert one.rc == 78
        assert "unknown key 'acounting'. Did you mean 'accounting'?" in one.out.splitlines()[-1]
        assert len(one.out.splitlines()) == 1
    for name, files in before.items():
        assert configuration(cluster, name) == files
    assert len(set(job(cluster, 2))) == 2


def test_a_node_that_reboots_starts_its_daemons_and_nothing_else(cluster: LocalCluster) -> None:
    before = configuration(cluster, "n1")
    cluster.node("reboot", "n1")
    creation.wait_created(cluster, ["n1"], 600)
    until(lambda: all_idle(cluster), "n1 is back")
    assert configuration(cluster, "n1") == before
    assert len(set(job(cluster, 2))) == 2


def test_what_a_created_cluster_cannot_do_is_said(cluster: LocalCluster) -> None:
    for verb in ("slurmd-kill", "slurmd-start"):
        with pytest.raises(UsageError, match="not on a created cluster"):
            cluster.node(verb, "n1")
    with pytest.raises(UsageError, match="not on a created cluster"):
        cluster.head("slurmctld-stop")
    booted = cluster.folder.path / "nodes" / "n1" / "own_root"
    booted.unlink()  # as while it starts: its files are those of this machine until then
    done = cluster.exec(["touch", "/mark"], node="n1")
    booted.touch()
    assert (done.rc, cluster.exec(["ls", "/mark"], node="n1").ok) == (75, False)
    assert "node n1: is starting" in done.err
