"""Defects that a person who tried to break muster found."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

import pytest

from healthcheck import watch
from healthcheck.action_log import ActionLog
from muster import slurm
from muster.errors import ConfigError
from muster.recipe import load_recipe
from muster.site import Site
from resume import checkpoint, lease, ranks, rundir
from resume.__main__ import main as save
from resume.checkpoint import CheckpointError, Fenced
from resume.draft import CheckpointDraft
from resume.guard import Guard, GuardArguments


def draft(folder: Path, step: int = 5) -> CheckpointDraft:
    one = CheckpointDraft(folder, step, 1, 0, 1, 1, folder / "owner.json")
    one.dir.mkdir(parents=True)
    return one


ARRAY = """JobId=8 ArrayJobId=8 ArrayTaskId=1 JobName=x
   JobState=RUNNING Reason=None Restarts=0
   NodeList=n4

JobId=9 ArrayJobId=8 ArrayTaskId=0 JobName=x
   JobState=PENDING Reason=Resources Restarts=3
   NodeList=
"""


@pytest.mark.parametrize(("job", "state"), [("8", "RUNNING"), ("9", "PENDING")])
def test_a_task_of_an_array_is_itself(
    job: str, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_scontrol", lambda *_, **__: ARRAY)
    shown = slurm.show_job(job)
    assert (shown.job_id, shown.state, shown.address) == (job, state, f"8_{9 - int(job)}")
    assert shown.reason == {"8": "None", "9": "Resources"}[job]


def test_a_restart_finds_its_snapshot(tmp_path: Path) -> None:
    recipe, run = tmp_path / "recipe", tmp_path / "run"
    recipe.mkdir()
    (recipe / "recipe.yaml").write_text("first")
    (recipe / ".#train.py").symlink_to("ann@host.17:1")
    rundir.prepare(run)
    lease.take(run, "7", 0, 0.1)
    assert rundir.snapshot_of(run, "7") is None
    rundir.snapshot(recipe, run, "7")
    (recipe / "recipe.yaml").write_text("half edited [")
    taken = rundir.snapshot_of(run, "7")
    assert taken is not None
    assert (taken / "recipe.yaml").read_text() == "first"
    assert rundir.snapshot_of(run, "8") is None


def test_a_link_in_dev_shm_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").touch()
    (tmp_path / "muster-0").mkdir()
    (tmp_path / "muster-0" / "7.1.1").symlink_to(tmp_path / "victim")
    guard = Guard(GuardArguments(tmp_path, "7", 0, 1, 4.0, "", []), "n1")
    with pytest.raises(PermissionError):
        guard._prepare(1, tmp_path / "muster-0" / "7.1.1", fresh=True)
    assert (tmp_path / "victim" / "precious").exists()


def test_storage_that_is_away_sets_nothing_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = draft(tmp_path)
    (one.dir / "shard").write_text("x")
    one.seal([one.dir / "shard"])
    one.publish()

    def stale(_path: Path, **_: object) -> str:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(checkpoint, "digest_file", stale)
    with pytest.raises(OSError, match="Stale"):
        checkpoint.pick(tmp_path)
    assert one.published.exists()


def test_what_never_verifies_is_not_sealed(tmp_path: Path) -> None:
    one = draft(tmp_path)
    (tmp_path / "real").write_text("x")
    (one.dir / "link").symlink_to(tmp_path / "real")
    with pytest.raises(CheckpointError, match="link"):
        one.seal([one.dir / "link"])
    (one.dir / "manifest.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"manifest.json"):
        one.seal([one.dir / "manifest.json"])


def test_save_refuses_two_files_of_one_name_and_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_RUN_DIR", str(tmp_path / "run"))
    for name in ("a", "b"):
        Path(name).mkdir()
        Path(name, "model").write_text(name)
    Path("latest").symlink_to("a/model")
    assert save(["save", "5", "a/model", "b/model"]) == 64
    assert save(["save", "5", "latest"]) == 64
    assert Path("a/model").read_text() == "a"


def test_a_rank_of_an_older_attempt_is_fenced(tmp_path: Path) -> None:
    owner = tmp_path / "owner.json"
    token = lease.take(tmp_path, "7", 0, 0.1)
    lease.launch(tmp_path, token, 2)
    checkpoint.check_token(owner, token, 2)
    with pytest.raises(Fenced):
        checkpoint.check_token(owner, token, 1)


def test_children_without_the_marks_are_killed(tmp_path: Path) -> None:
    marks = {"MUSTER_RUN_DIR": str(tmp_path), "MUSTER_ATTEMPT": "1", "SLURM_STEP_ID": "0"}
    rank = subprocess.Popen(["sh", "-c", "env -i sleep 60; true"], env={**os.environ, **marks})
    try:
        deadline = time.monotonic() + 10
        while len(ranks.find(tmp_path)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        child = [pid for pid in ranks.find(tmp_path) if pid != rank.pid]
        assert len(child) == 1
        ranks.kill(tmp_path)
        rank.wait(5)
        while ranks._is_alive(child[0]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not ranks._is_alive(child[0])
    finally:
        rank.kill()


def node(states: set[str], reason: str) -> slurm.Node:
    return slurm.Node("n1", frozenset(states), "1", reason=reason, partitions=["p"])


def test_watch_outlives_a_node_that_leaves_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = {"n1": node({"IDLE", "DRAIN"}, "muster:gpu_count:hardware:replace x")}
    monkeypatch.setattr(slurm, "show_nodes", lambda *_: dict(nodes))
    one = watch.Watch(
        Site(replace_command=["sleep", "0.3"]), tmp_path / "s", ActionLog(Path("/dev/full")),
        dry_run=False,
    )  # fmt: skip
    assert one.round()
    nodes.clear()
    assert one.round()
    time.sleep(1)
    assert one.round()


@pytest.mark.parametrize(
    "line",
    ["nodes: !!bool maybe", "x: " + "[" * 3000, "hang: {floor_s: 1" + "0" * 400 + "}",
     "hang: {floor_s: !!int ''}", "x: !!timestamp foo"],
)  # fmt: skip
def test_strange_yaml_is_one_line(line: str, tmp_path: Path) -> None:
    text = "name: a\nsummary: s\ncommands: [{name: t, run: x}]\n"
    more = "" if line.startswith("nodes") else "nodes: 1\n"
    (tmp_path / "recipe.yaml").write_text(text + more + line + "\n")
    with pytest.raises(ConfigError):
        load_recipe(tmp_path)


@pytest.mark.parametrize("text", ["{}", '{"token": "x", "job": "1"}', "[]"])
def test_an_owner_file_of_somebody_else(text: str, tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text(text)
    (tmp_path / "lease").write_bytes(b"\xff")
    assert lease.owns(tmp_path, 1)
    assert lease.take(tmp_path, "7", 0, 0.1) == 1
