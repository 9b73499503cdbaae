"""Slurm's own words in, records out; and a scontrol that fails, hangs or says nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster import slurm
from muster.errors import UnavailableError
from tests.harness.programs import Scontrol, job_record, node_record

Program = Callable[[str, str], Path]

FIELDS = [
    ("   Command=/a b/run.sbatch x=1 --y", {"Command": "/a b/run.sbatch x=1 --y"}),
    ("   WorkDir=/with = sign Name=3", {"WorkDir": "/with = sign Name=3"}),
    ("   Comment=a State=IDLE b", {"Comment": "a State=IDLE b"}),
    ("   Reason=gpu 3 is off ECC=2 [root@2024]", {"Reason": "gpu 3 is off ECC=2 [root@2024]"}),
    ("   A=1 B=2 C=", {"A": "1", "B": "2", "C": ""}),
    ("   OS=Linux 6.1 #1 SMP (2023-05-08)", {"OS": "Linux 6.1 #1 SMP (2023-05-08)"}),
    ("JobId=7 JobName=x JobState=COMPLETED Restarts=9", {
        "JobId": "7", "JobName": "x JobState=COMPLETED Restarts=9"}),
    ("   RunTime=00:00:10 TimeLimit=1-00:00:00", {
        "RunTime": "00:00:10", "TimeLimit": "1-00:00:00"}),
    ("   Comment=a\u2028   JobState=FAILED", {"Comment": "a\u2028   JobState=FAILED"}),
    ("JobId=7 JobName=x\x85   UserId=root(0)", {"JobId": "7", "JobName": "x\x85   UserId=root(0)"}),
    ("   Priority=1\n   Priority=2", {"Priority": "1"}),
    ("", {}),
    ("no pairs here", {}),
]  # fmt: skip


@pytest.mark.parametrize(("block", "wanted"), FIELDS)
def test_fields(block: str, wanted: dict[str, str]) -> None:
    assert slurm.fields(block) == wanted


def test_job_of_several_lines() -> None:
    block = job_record(Command="/my recipes/run.sbatch a=1", JobName="a job", Reason="NodeDown")
    job = slurm.parse_job(block, ["n1", "n2"])
    assert (job.job_id, job.state, job.nodes, job.restarts) == ("7", "RUNNING", ["n1", "n2"], 0)
    assert (job.batch_host, job.requeue, job.reason) == ("n1", True, "NodeDown")
    assert job.command == "/my recipes/run.sbatch a=1"


@pytest.mark.parametrize(
    ("key", "value", "field", "wanted"),
    [
        ("BatchHost", "(null)", "batch_host", None),
        ("BatchHost", "", "batch_host", None),
        ("Requeue", "0", "requeue", False),
        ("Restarts", "3", "restarts", 3),
        ("Restarts", "many", "restarts", 0),
    ],
)
def test_job_field(key: str, value: str, field: str, wanted: object) -> None:
    assert getattr(slurm.parse_job(job_record(**{key: value}), []), field) == wanted


@pytest.mark.parametrize(
    ("state", "reason", "lost"),
    [
        ("RUNNING", "None", True),
        ("RUNNING", "", True),
        ("COMPLETING", "NonZeroExitCode", True),
        ("COMPLETING", "None", False),
        ("FAILED", "RaisedSignal:9(Killed)", True),
        ("FAILED", "None", False),
        ("CANCELLED", "None", False),
        ("CANCELLED", "NodeDown", False),
        ("COMPLETED", "None", False),
        ("PENDING", "BeginTime", False),
        ("TIMEOUT", "TimeLimit", True),
        ("COMPLETING", "TimeLimit", True),
        ("PREEMPTED", "None", True),
        ("OUT_OF_MEMORY", "OutOfMemory", True),
    ],
)
def test_job_that_lost_its_script(state: str, reason: str, lost: bool) -> None:
    job = slurm.parse_job(job_record(JobState=state, Reason=reason), [])
    assert job.lost_its_script is lost


def test_a_preempted_job_is_told_from_a_cancelled_one_while_it_completes() -> None:
    for when, preempted in (("2026-11-29T18:38:59", True), ("None", False)):
        job = slurm.parse_job(job_record(JobState="COMPLETING", PreemptTime=when), [])
        assert (job.preempted, job.lost_its_script) == (preempted, preempted)


@pytest.mark.parametrize(
    ("boot", "start", "after"),
    [
        ("2026-11-29T18:38:56", "2026-11-29T18:38:55", True),
        ("2026-11-29T18:38:55", "2026-11-29T18:38:55", False),
        ("2026-11-29T18:38:55", "2026-12-01T08:00:00", False),
        ("None", "2026-12-01T08:00:00", False),
        ("2026-11-29T18:38:55", "Unknown", False),
    ],
)
def test_a_node_that_booted_after_the_job_started(boot: str, start: str, after: bool) -> None:
    job = slurm.Job("7", "RUNNING", [], "n1", 0, "", requeue=True, start_time=start)
    assert slurm.Node("n1", frozenset(), "1", boot_time=boot).booted_after(job) is after


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []), ("(null)", []), ("n1", ["n1"]), ("n[1-3,7]", ["n1", "n2", "n3", "n7"]),
        ("a,b[08-10]", ["a", "b08", "b09", "b10"]), ("r[1-2]n[1,3]x,l",
         ["r1n1x", "r1n3x", "r2n1x", "r2n3x", "l"]), ("n[001]-ib0", ["n001-ib0"]),
    ],
)  # fmt: skip
def test_node_lists_are_written_out(text: str, names: list[str]) -> None:
    assert slurm.hostnames(text) == names


def test_a_job_from_its_environment_alone() -> None:
    job = slurm.job_from_environment(
        {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_RESTART_COUNT": "3"}
    )
    assert (job.job_id, job.nodes, job.restarts, job.requeue) == ("7", ["n1", "n2"], 3, False)


STATES = [
    ("IDLE", {"IDLE"}, False, False),
    ("IDLE+DRAIN", {"IDLE", "DRAIN"}, False, True),
    ("MIXED+DRAIN", {"MIXED", "DRAIN"}, False, True),
    ("DOWN", {"DOWN"}, True, False),
    ("DOWN*", {"DOWN", "NOT_RESPONDING"}, True, False),
    ("DOWN*+DRAIN", {"DOWN", "NOT_RESPONDING", "DRAIN"}, True, True),
    ("ALLOCATED*", {"ALLOCATED", "NOT_RESPONDING"}, False, False),
    ("ALLOCATED+NOT_RESPONDING", {"ALLOCATED", "NOT_RESPONDING"}, False, False),
    ("IDLE+REBOOT_REQUESTED", {"IDLE", "REBOOT_REQUESTED"}, False, True),
    ("IDLE+CLOUD+POWERED_DOWN", {"IDLE", "CLOUD", "POWERED_DOWN"}, True, False),
    ("IDLE~", {"IDLE"}, False, False),
    ("MIXED-", {"MIXED"}, False, False),
    ("IDLE+MAINTENANCE+MAINT", {"IDLE", "MAINTENANCE", "MAINT"}, False, True),
]


@pytest.mark.parametrize(("state", "words", "lost", "closed"), STATES)
def test_node_state(state: str, words: set[str], lost: bool, closed: bool) -> None:
    node = slurm.parse_node(node_record("n1", state))
    assert (set(node.states), node.lost, node.closed) == (words, lost, closed)


@pytest.mark.parametrize(
    ("reason", "text", "user"),
    [
        ("", "", None),
        ("broken", "broken", None),
        ("broken [root@2024-01-01T10:00:00]", "broken", "root"),
        ("a [b] c [slurm@2024-01-01T10:00:00]", "a [b] c", "slurm"),
        ("see [http://x@y] [me@now]", "see [http://x@y]", "me"),
        ("muster:gpu:hardware Xid=79 [root@2024]", "muster:gpu:hardware Xid=79", "root"),
        ("State=IDLE is a lie [root@2024]", "State=IDLE is a lie", "root"),
    ],
)
def test_node_reason(reason: str, text: str, user: str | None) -> None:
    node = slurm.parse_node(node_record("n1", "IDLE+DRAIN", Reason=reason))
    assert (node.reason, node.reason_user) == (text, user)
    assert "IDLE" in node.states


def test_node_address_port_and_partitions() -> None:
    node = slurm.parse_node(node_record("n1", NodeAddr="10.0.0.1", Port=17001))
    assert (node.address, node.port, node.partitions) == ("10.0.0.1", 17001, ["main", "big"])
    bare = slurm.parse_node("NodeName=n9 State=IDLE")
    assert (bare.address, bare.port, bare.partitions) == ("n9", 6818, [])


@given(st.text(max_size=200))
def test_any_text_is_parsed_without_a_crash(text: str) -> None:
    slurm.fields(text)
    slurm.parse_job(f"JobId=1 JobName=x\n{text}", [])
    slurm.parse_node(f"NodeName=n1 Arch=x\n{text}")


def test_show_job_and_nodes_from_a_real_program(scontrol: Scontrol) -> None:
    scontrol.nodes(node_record("n1"), node_record("n2", "DOWN*", Reason="dead [root@x]"))
    assert slurm.show_job("7").nodes == ["n1", "n2"]
    nodes = slurm.show_nodes(["n1", "n2"])
    assert [(n.name, n.lost) for n in nodes.values()] == [("n1", False), ("n2", True)]
    assert slurm.show_nodes([]) == {}
    assert (scontrol.state / "calls").read_text().split("\n")[-2] == "show node n1,n2"


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [("", []), ("(null)", []), ("None", []), ("n1", ["n1"]), ("n1,gpu2", ["n1", "gpu2"]),
     ("n[1-2,7]", ["n1", "n2", "n7"])],
)  # fmt: skip
def test_hostnames(nodelist: str, names: list[str], program: Program) -> None:
    program("scontrol", '[[ "$*" == "show hostnames n[1-2,7]" ]] && printf "%s\\n" n1 n2 n7')
    assert slurm.hostnames(nodelist) == names


FAILURES = [
    ("exit 1", "scontrol show job 7: failed"),
    ("echo first >&2; echo 'slurm_load_jobs error: Invalid job id' >&2; exit 1",
     "scontrol show job 7: slurm_load_jobs error: Invalid job id"),
    ("echo said on stdout; exit 3", "scontrol show job 7: said on stdout"),
    ("exit 0", "scontrol show job 7: no record"),
    ("echo No jobs in the system", "scontrol show job 7: no record"),
    ("kill -9 $$", "scontrol show job 7: failed"),
]  # fmt: skip


@pytest.mark.parametrize(("script", "line"), FAILURES)
def test_failing_scontrol_is_one_line(script: str, line: str, program: Program) -> None:
    program("scontrol", script)
    with pytest.raises(UnavailableError) as caught:
        slurm.show_job("7")
    assert str(caught.value).replace("show job:", "show job 7:").startswith(line)
    assert caught.value.code == 69


def test_hanging_scontrol_is_given_up(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    program("scontrol", "sleep 600 & sleep 600")
    for ask in (lambda: slurm.show_job("7"), slurm.show_nodes, lambda: slurm.requeue("7")):
        with pytest.raises(UnavailableError, match="no answer in time"):
            ask()


def test_without_scontrol(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="scontrol: command not found"):
        slurm.show_job("7")


def test_requeue_says_it_to_scontrol(scontrol: Scontrol) -> None:
    slurm.requeue("7")
    assert scontrol.requeued == ["7"]
    assert slurm.show_job("7").restarts == 1


@pytest.mark.parametrize(
    "arguments", ["", " nodes=3", " a b c -- x=1", " " + "x" * 300, " --text=" + "y/" * 3000]
)
def test_script_with_blanks_and_arguments(arguments: str, tmp_path: Path) -> None:
    script = tmp_path / "my recipe" / "run it.sbatch"
    script.parent.mkdir()
    script.write_text("#!/bin/bash\n")
    job = slurm.parse_job(job_record(Command=f"{script}{arguments}"), [])
    assert slurm.script_of(job) == script


@pytest.mark.parametrize("command", ["(null)", "", "/no/such/run.sbatch a b", "/tmp"])
def test_script_that_is_not_there(command: str) -> None:
    assert slurm.script_of(slurm.parse_job(job_record(Command=command), [])) is None


def test_a_step_of_ours_knows_nothing_of_the_one_we_are_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_CONF", "SRUN_DEBUG", "PYXIS_CONTAINER_IMAGE", "MINE"):
        monkeypatch.setenv(name, "1")
    kept = {name for name in slurm.bare_environment() if name.startswith(("SL", "SR", "PYX", "MI"))}
    assert kept == {"SLURM_CONF", "MINE"}
