"""When the supervisor is gone the job is requeued, once; and never when it ended on purpose."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from muster.slurm import Node
from resume import journal, lease, rescue
from resume.guard import GuardArguments
from resume.journal import Journal
from resume.lease import LeaseWatch
from tests.harness.programs import Scontrol, node_record

CAUSE = "batch_host_lost"


@pytest.fixture(autouse=True)
def lost_host(scontrol: Scontrol) -> None:
    """Slurm has given the batch host up."""
    scontrol.nodes(node_record("n1", "DOWN*"), node_record("n2"))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rescue, "_RETRY_S", 1.0)
    monkeypatch.setattr(rescue, "_PATIENCE_S", 20.0)


@pytest.fixture
def arguments(tmp_path: Path) -> GuardArguments:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    lease.take(run_dir, "7", 0, 0)
    Journal(run_dir / "journal.jsonl", 1).append("first_step", attempt=1)
    return GuardArguments(run_dir, "7", 0, 1, 15.0, "n", [])


def stood_still(run_dir: Path) -> LeaseWatch:
    """A lease that has not moved for long."""
    watch = LeaseWatch(run_dir)
    watch.still_s()
    watch.changed_at = time.monotonic() - 1000
    return watch


@pytest.mark.parametrize("batch_host", ["n1", "(null)"])
def test_job_that_lost_its_supervisor_is_requeued_and_word_is_left(
    batch_host: str, arguments: GuardArguments, scontrol: Scontrol
) -> None:
    scontrol.job(BatchHost=batch_host)
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]
    told = json.loads(rescue.rescue_file(arguments.run_dir, "7", 0).read_text())
    assert (told["by"], told["cause"]) == ("n2", CAUSE)
    assert told["noticed"] <= told["time"]
    assert told["batch_host"] == (None if batch_host == "(null)" else "n1")


def test_what_listens_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        port = slurmd.getsockname()[1]
        assert rescue.answers(Node("n1", frozenset(), "127.0.0.1", port))
    assert not rescue.answers(Node("n1", frozenset(), "127.0.0.1", port))
    assert not rescue.answers(Node("n1", frozenset(), "no.such.host.invalid", port))


def test_many_guards_requeue_once(arguments: GuardArguments, scontrol: Scontrol) -> None:
    def one(name: str) -> int:
        return rescue.rescue(arguments, name, stood_still(arguments.run_dir), CAUSE)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, [f"n{n}" for n in range(8)])) == [0] * 8
    assert scontrol.requeued == ["7"]


def job(**values: object) -> Callable[[GuardArguments, Scontrol], None]:
    return lambda _, scontrol: scontrol.job(**values)


def event(name: str, **facts: Any) -> Callable[[GuardArguments, Scontrol], None]:
    return lambda a, _: Journal(a.run_dir / "journal.jsonl", 1).append(name, **facts)


def newer_owner(arguments: GuardArguments, _: Scontrol) -> None:
    lease.take(arguments.run_dir, "7", 1, 0)


ON_PURPOSE: dict[str, Callable[[GuardArguments, Scontrol], None]] = {
    "cancelled": job(JobState="CANCELLED"),
    "completed": job(JobState="COMPLETED"),
    "completing without a reason": job(JobState="COMPLETING"),
    "waiting again": job(JobState="PENDING", Reason="BeginTime"),
    "restarted since": job(Restarts=1),
    "a newer owner": newer_owner,
    **{f"journal ends with {end}": event(end) for end in sorted(journal.ENDS)},
}


@pytest.mark.parametrize("name", ON_PURPOSE)
def test_what_ended_on_purpose_is_left_alone(
    name: str, arguments: GuardArguments, scontrol: Scontrol
) -> None:
    ON_PURPOSE[name](arguments, scontrol)
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == []
    assert not rescue.rescue_file(arguments.run_dir, "7", 0).exists()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("RUNNING", "None"),
        ("COMPLETING", "NonZeroExitCode"),
        ("FAILED", "RaisedSignal:9(Killed)"),
        ("TIMEOUT", "TimeLimit"),
        ("PREEMPTED", "None"),
    ],
)
def test_states_of_a_job_that_lost_its_script(
    state: str, reason: str, arguments: GuardArguments, scontrol: Scontrol
) -> None:
    scontrol.job(JobState=state, Reason=reason)
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]


def test_a_lease_that_still_moves_means_that_only_this_node_is_cut_off(
    arguments: GuardArguments, scontrol: Scontrol
) -> None:
    watch = stood_still(arguments.run_dir)
    (arguments.run_dir / "lease").write_text("1 99\n")
    assert rescue.rescue(arguments, "n2", watch, CAUSE) == 0
    assert scontrol.requeued == []


def test_a_job_that_is_ending_has_no_supervisor_however_fresh_its_lease(
    arguments: GuardArguments, scontrol: Scontrol
) -> None:
    scontrol.job(JobState="COMPLETING", Reason="NonZeroExitCode")
    watch = stood_still(arguments.run_dir)
    (arguments.run_dir / "lease").write_text("1 99\n")
    assert rescue.rescue(arguments, "n2", watch, CAUSE) == 0
    assert scontrol.requeued == ["7"]


def test_a_journal_without_an_end_or_none_at_all(
    arguments: GuardArguments, scontrol: Scontrol
) -> None:
    (arguments.run_dir / "journal.jsonl").unlink()
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]


def test_slurm_that_is_away_for_a_while_is_asked_again(
    arguments: GuardArguments, scontrol: Scontrol, capfd: pytest.CaptureFixture[str]
) -> None:
    (scontrol.state / "job").rename(scontrol.state / "later")
    watch = stood_still(arguments.run_dir)
    with ThreadPoolExecutor(1) as pool:
        rescuing = pool.submit(rescue.rescue, arguments, "n2", watch, CAUSE)
        calls, deadline = scontrol.state / "calls", time.monotonic() + 60
        while not calls.exists() or calls.read_text().count("show job") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        (scontrol.state / "later").rename(scontrol.state / "job")
        assert rescuing.result(60) == 0
    assert scontrol.requeued == ["7"]
    assert "muster guard: n2: scontrol show job" in capfd.readouterr().err


def test_patience_ends(
    arguments: GuardArguments, scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "_PATIENCE_S", 0.2)
    (scontrol.state / "job").unlink()
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 1


def test_word_that_cannot_be_left_does_not_keep_the_job_down(
    arguments: GuardArguments, scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk an empty marker can be made, and a file with words cannot."""

    def full(_path: Path, _value: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rescue, "write_json", full)
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]


def test_lost_host_must_be_down_first(arguments: GuardArguments, scontrol: Scontrol) -> None:
    """Slurm 22.05 forgets the GPUs of a job that is requeued while its lost host is only silent."""
    scontrol.nodes(node_record("n1", "ALLOCATED*"))
    with ThreadPoolExecutor(1) as pool:
        watch = stood_still(arguments.run_dir)
        future = pool.submit(rescue.rescue, arguments, "n2", watch, "batch_host_lost")
        time.sleep(1.0)
        assert scontrol.requeued == []
        scontrol.nodes(node_record("n1", "DOWN*"))
        assert future.result(30) == 0
    assert scontrol.requeued == ["7"]


def test_a_host_that_was_back_before_slurm_missed_it(
    arguments: GuardArguments, scontrol: Scontrol, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rescue, "_DOWN_WAIT_S", 1000.0)
    scontrol.nodes(node_record("n1", BootTime="2024-06-01T09:00:00"), node_record("n2"))
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]


def test_a_guard_that_slurm_will_kill_does_not_wait_for_the_whole_lease(
    arguments: GuardArguments, scontrol: Scontrol
) -> None:
    watch = stood_still(arguments.run_dir)
    watch.changed_at = time.monotonic() - 3.0  # the lease is 15 s
    assert rescue.rescue(arguments, "n2", watch, CAUSE, hurry_s=1.0) == 0
    assert scontrol.requeued == ["7"]


@pytest.mark.parametrize(
    ("place", "hurry_s", "turn_s"),
    [(0, None, 0), (7, None, 0), (8, None, 1), (999, None, 60), (8, 1.0, 0.5), (0, 1.0, 0)],
)
def test_a_thousand_guards_do_not_ask_at_once(
    place: int, hurry_s: float | None, turn_s: float
) -> None:
    assert rescue._turn_s(place, hurry_s) == turn_s


def test_a_preempted_job_comes_back(arguments: GuardArguments, scontrol: Scontrol) -> None:
    scontrol.job(JobState="COMPLETING", PreemptTime="2024-06-01T09:00:00")
    assert rescue.rescue(arguments, "n2", stood_still(arguments.run_dir), CAUSE) == 0
    assert scontrol.requeued == ["7"]
