"""Low priority yields and comes back by itself: ben trains, ana's job takes the nodes from him."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lifecycle.description.load import load_description
from muster.cluster import LocalCluster, Shape
from slurm.conf.render import render
from tests.harness.training import Training, submit

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run multinode"),
]
TEN_LINES = Path(__file__).resolve().parents[1] / "data" / "recipes" / "ten_lines"
STEPS = 110
SITE = {
    "name": "shared",
    "groups": [
        {"name": "head", "role": "head", "nodes": ["head"]},
        {"name": "n", "role": "compute", "nodes": ["n[1-3]"],
         "hardware": {"sockets": 1, "cores_per_socket": 8, "threads_per_core": 1,
                      "memory_mib": 2000, "gpus": 8}},
    ],
    "partitions": [
        {"name": "production", "groups": ["n"], "priority_tier": 100, "exclusive": True},
        {"name": "interactive", "groups": ["n"], "priority_tier": 100, "max_nodes": 2},
        {"name": "preprocess", "groups": ["n"], "priority_tier": 10, "preempt": "requeue",
         "grace_s": 600},
    ],
    "accounting": {"database": "off"},
}  # fmt: skip


def rendered(folder: Path) -> tuple[tuple[str, str], ...]:
    """What our slurm.conf says of preemption and partitions for such a site."""
    path = folder / "cluster.yaml"
    path.write_text(yaml.safe_dump(SITE))
    files = render(load_description(path, (), None), "22.05", {})
    lines = (files["muster.conf"] or "").splitlines()
    keys = ("PreemptType=", "PreemptMode=", "PartitionName=")
    return tuple(tuple(line.split("=", 1)) for line in lines if line.startswith(keys))  # type: ignore[misc]


@pytest.fixture(scope="module")
def shared(slurm_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = rendered(tmp_path_factory.mktemp("site"))
    shape = Shape(nodes=3, boot_s=0.2, settings=settings, people=("ana", "ben"))
    one = LocalCluster(f"b{os.getpid()}", shape)
    one.up(owner_pid=os.getpid())
    yield one
    one.down()


def train(cluster: LocalCluster, user: str, name: str, partition: str, steps: int) -> Training:
    """Somebody submits the recipe of ten lines, from his home."""
    home = cluster.folder.path / "home" / user
    recipe = Path(shutil.copytree(TEN_LINES, home / name))
    for path in (recipe, *recipe.rglob("*")):
        shutil.chown(path, home.stat().st_uid, home.stat().st_gid)
    options = [f"--partition={partition}"]
    return submit(cluster, recipe, "--", str(steps), options=options, user=user)


def test_a_run_that_yields_comes_back_and_loses_nothing(shared: LocalCluster) -> None:
    undisturbed = train(shared, "ben", "alone", "preprocess", STEPS)
    assert undisturbed.wait_end() == "done", undisturbed.story()
    run = train(shared, "ben", "yields", "preprocess", STEPS)
    run.wait_step(7)
    # Nothing of it is hers to read or to end.
    assert shared.exec(["ls", str(run.run_dir)], user="ana").rc != 0
    assert shared.exec(["scancel", run.job], user="ana").err.count("denied") == 1
    urgent = train(shared, "ana", "urgent", "production", 10)
    assert urgent.wait_end() == "done", urgent.story()
    assert run.wait_end() == "done", run.story()
    (incident,) = run.events("incident")
    first, second = run.events("attempt_started")
    assert incident["cause"] == "asked_to_leave", run.story()
    left_at = run.last_step(attempt=first["attempt"])
    assert second["resume_step"] == left_at >= 7, f"{run.journal}\n{run.story()}"
    assert run.curve() == undisturbed.curve()
    assert sorted(run.curve()) == list(range(1, STEPS + 1))
    assert len(run.metrics) == STEPS  # no training step was done twice
    assert (run.run_dir / "DONE").read_text() == (undisturbed.run_dir / "DONE").read_text()
    assert "Restarts=1" in shared.exec(["scontrol", "show", "job", run.job]).out
    for one, user in ((run, "ben"), (urgent, "ana")):
        owner = (shared.folder.path / "home" / user).stat().st_uid
        assert {path.stat().st_uid for path in one.run_dir.rglob("*")} == {owner}
