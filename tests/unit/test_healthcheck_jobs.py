"""What the watch does with jobs: helped once, never against a person's word, never many at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from healthcheck import job_queue, watch_state
from healthcheck.job_queue import Entry, starts_muster
from healthcheck.job_rules import JobRecord, View, next_job_action
from healthcheck.job_watch import looks_like_trouble
from muster.errors import DataError
from muster.slurm import Job, Node

NOW = 1_800_000_000.0


def at(offset_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + offset_s))


def node(
    name: str, states: str = "IDLE", reason: str = "", since: float = -700, **more: Any
) -> Node:
    facts = {"reason_user": "root", "boot_time": at(-9000), "reason_time": at(since), **more}
    return Node(name, frozenset(states.split("+")), "10.0.0.1", reason=reason, **facts)


def failed(name: str, since: float = -700, reason: str = "Prolog error", **more: Any) -> Node:
    return node(name, "IDLE+DRAIN", reason, since, **more)


HELD = Job(
    "7", "PENDING", [], None, 1, "", requeue=True, reason="launch_failed_requeued_held",
    submit_time=at(-690), start_time=at(-680),
)  # fmt: skip
RUNS = Job("7", "RUNNING", ["n1", "n2"], "n1", 1, "", requeue=True, start_time=at(-5000))
LOST = node("n1", "DOWN+NOT_RESPONDING", "Not responding")
ONCE = (NOW - 5000,)
LATE = JobRecord(1, since=NOW - 301)


def view(*nodes: Node, answers: bool = False) -> View:
    known = {one.name: one for one in nodes}
    return View(known, answers, frozenset({"root"}), 300.0, 3, 300.0, NOW)


THREE = [failed(f"n{n}", -60 - n) for n in (1, 2, 3)]
THREE_LOST = [node(f"n{n}", "DOWN", "Not responding", -60 - n) for n in (1, 2, 3)]

ROWS: dict[str, tuple[Job, Any, View, str, str]] = {
    # name: (job, record, view, what is done, a part of why)
    "held": (HELD, None, view(failed("n1"), node("n2")), "release", "excluded: n1"),
    "held, blanks": (
        replace(HELD, reason="launch failed requeued held"), None, view(failed("n1")), "release",
        "excluded: n1"),
    "held, muster has rewritten the reason": (
        HELD, None, view(failed("n1", -650, "muster:gpu_count:hardware:replace 7 of 8")), "release",
        "excluded: n1"),
    "held, the batch could not start": (
        HELD, None, view(failed("n1", reason="batch job complete failure")), "release", "n1"),
    "held, a later drain": (HELD, None, view(failed("n1", -600)), "release", "no node to blame"),
    "held, an older drain": (HELD, None, view(failed("n1", -900)), "release", "no node to blame"),
    "held, a person's drain": (
        HELD, None, view(failed("n1", reason="fan", reason_user="ann")), "release", "no node"),
    "held, a person wrote the same": (
        HELD, None, view(failed("n1", reason_user="ann")), "release", "no node to blame"),
    "held, drained no more": (
        HELD, None, view(node("n1", "IDLE", "Prolog error")), "release", "no node to blame"),
    "held, it must have that node": (
        replace(HELD, required_nodes=("n1",)), None, view(failed("n1")), "release",
        "no node to blame"),
    "held again in this restart": (
        HELD, JobRecord(1, cured=("release",), cured_at=ONCE), view(), "wait", "tried in this"),
    "held in the next restart": (
        HELD, JobRecord(0, cured=("release",), cured_at=ONCE), view(), "release", ""),
    "held for the fourth time": (
        HELD, JobRecord(0, cured_at=ONCE * 3), view(), "wait", "helped 3 times"),
    "held for the fourth time, the first was yesterday": (
        HELD, JobRecord(0, cured_at=(NOW - 86401, NOW - 9, NOW - 8)), view(), "release", ""),
    "held after too many failed launches": (
        replace(HELD, reason="JobHoldMaxRequeue"), None, view(), "release", ""),
    "held, many nodes fail": (HELD, None, view(*THREE), "wait", "is it the infrastructure"),
    "held by its user": (replace(HELD, reason="JobHeldUser"), None, view(), "none", ""),
    "held by an admin": (replace(HELD, reason="JobHeldAdmin"), None, view(), "none", ""),
    "scontrol requeuehold": (
        replace(HELD, reason="job_requeued_in_held_state"), None, view(), "none", ""),
    "waits for nodes": (replace(HELD, reason="Resources"), None, view(), "none", ""),
    "runs": (RUNS, None, view(node("n1", "ALLOCATED")), "none", ""),
    "stranded just now": (RUNS, None, view(LOST), "wait", "have 300 s to bring it back"),
    "stranded for long": (RUNS, LATE, view(LOST), "requeue", "n1 is lost"),
    "stranded in an earlier restart": (
        RUNS, replace(LATE, restart=0), view(LOST), "wait", "have 300 s"),
    "its host answers": (RUNS, LATE, view(LOST, answers=True), "none", ""),
    "its host has booted": (
        RUNS, LATE, view(node("n1", boot_time=at(-400)), answers=True), "requeue", "n1 has booted"),
    "a worker is lost": (RUNS, LATE, view(node("n1"), replace(LOST, name="n2")), "none", ""),
    "stranded, no requeue": (replace(RUNS, requeue=False), LATE, view(LOST), "wait", "scancel it"),
    "stranded again": (
        RUNS, replace(LATE, cured=("requeue",), cured_at=ONCE), view(LOST), "wait",
        "tried in this"),
    "stranded after a release": (
        RUNS, replace(LATE, cured=("release",), cured_at=ONCE), view(LOST), "requeue", ""),
    "many hosts are lost": (RUNS, LATE, view(*THREE_LOST), "wait", "is it the infrastructure"),
    "completing": (replace(RUNS, state="COMPLETING"), LATE, view(LOST), "none", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_next_job_action(name: str) -> None:
    job, record, seen, kind, why = ROWS[name]
    action = next_job_action(job, record, seen)
    assert (action.kind, why in action.why) == (kind, True), action
    if kind in ("release", "requeue"):
        assert action.record is not None
        again = next_job_action(job, action.record, seen)
        assert again.kind == "wait", "once in a restart"
        assert action.record.cured_at[-1] == NOW


def test_what_the_user_excluded_stays_excluded() -> None:
    job = replace(HELD, excluded_nodes=("n9", "n1"))
    seen = view(failed("n2"), failed("n1"))
    assert next_job_action(job, None, seen).excluded == ("n9", "n1", "n2")
    assert next_job_action(job, None, view(failed("n1"))).excluded == ()  # nothing to change


def test_trouble_that_goes_away_is_forgotten_but_not_what_was_done() -> None:
    calm = view(node("n1"))
    assert next_job_action(RUNS, LATE, calm).record is None
    after = replace(LATE, cured=("requeue",), cured_at=ONCE)
    assert next_job_action(RUNS, after, calm).record == replace(after, since=None)


@pytest.mark.parametrize(
    ("script", "ours"),
    [
        ('exec muster run "$@"', True),
        ("#!/bin/sh\n\nsleep 600; /usr/local/bin/muster  run -- a=1", True),
        ("python3 -m muster run", True),
        ("'/opt/my tools/muster' run", True),
        ("./muster.pyz run", True),
        ("muster srun -N2 -- python train.py", True),
        ("exec srun --auto-resume=1 --nodes=2 python train.py", True),
        ("# muster run, some day\nsrun python train.py", False),
        ("#SBATCH --comment='muster run'", False),
        ("srun --auto-resume=0 x", False),
        ("muster report runs/7", False),
        ("clustermuster run", False),
        ("", False),
    ],
)
def test_whose_job_it_is(script: str, ours: bool) -> None:
    assert starts_muster(script) is ours


@pytest.mark.parametrize(
    ("entry", "asked"),
    [
        (Entry("7", "PENDING", "n/a", "N/A", "launch failed requeued held"), True),
        (Entry("7", "PENDING", "n/a", "N/A", "JobHeldUser"), False),
        (Entry("7", "RUNNING", "n1", at(-5000), "None"), True),
        (Entry("7", "RUNNING", "n2", at(-5000), "None"), False),
        (Entry("7", "RUNNING", "n3", at(-5000), "None"), True),
        (Entry("7", "RUNNING", "n3", at(-50), "None"), False),
        (Entry("7", "RUNNING", "n4", at(-50), "None"), False),
        (Entry("7", "RUNNING", "n9", at(-50), "None"), False),
    ],
)
def test_only_what_looks_like_trouble_is_asked_about(entry: Entry, asked: bool) -> None:
    nodes = [LOST, node("n2"), node("n3", boot_time=at(-400)), node("n4", boot_time="None")]
    assert looks_like_trouble(entry, {one.name: one for one in nodes}) is asked


def test_a_reason_is_a_persons_text_and_ends_no_line(program: Callable[[str, str], Path]) -> None:
    program("squeue", r"printf '1|PENDING|n/a|N/A|a\342\200\2502|RUNNING|n1|x|y\n'")
    (entry,) = job_queue.entries()
    assert (entry.job_id, entry.reason) == ("1", "a\u20282|RUNNING|n1|x|y")


def test_a_machine_that_refuses_a_connection_is_there() -> None:
    assert job_queue.reachable(replace(LOST, address="127.0.0.1", port=1))
    assert not job_queue.reachable(replace(LOST, address="no such host.invalid"))


def test_records_of_jobs_come_back(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    assert watch_state.load_jobs(path) == {}
    twice = replace(LATE, cured=("release", "requeue"), cured_at=(5.0, 6.5))
    records = {"7": twice, "8_1": JobRecord(0)}
    watch_state.save_jobs(path, records)
    assert watch_state.load_jobs(path) == records
    (tmp_path / "watch_jobs.json").write_text('{"jobs": {"7": {"restart": 1}}}')
    with pytest.raises(DataError, match=r"watch_jobs\.json.* is damaged"):
        watch_state.load_jobs(path)
