"""When a node is drained by its own check, and when it is left alone."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import reason as reasons
from healthcheck.action_log import ActionLog
from healthcheck.drain import act, decide, limit, too_late
from healthcheck.finding import Action, Finding
from muster.site import Site
from muster.slurm import Node

BROKEN = Finding("gpu_count", "FAIL", "hardware", "replace", "shows 7 of 8 GPUs", "replace it")
TEXT = "muster:gpu_count:hardware:replace shows 7 of 8 GPUs boot=00112233"


def nodes(count: int = 4, **states: str | tuple[str, str]) -> dict[str, Node]:
    """n1.. are idle; nodes(n2="DOWN", n3=("IDLE+DRAIN", reason)) says otherwise."""
    made = {}
    for name in (f"n{i}" for i in range(1, count + 1)):
        given = states.get(name, "IDLE")
        state, reason = given if isinstance(given, tuple) else (given, "")
        made[name] = Node(
            name, frozenset(state.split("+")), name, reason=reason, partitions=["main"]
        )
    return made


ROWS = {
    "fit for a drain": (nodes(), "drain", TEXT),
    "runs a job": (nodes(n1="ALLOCATED"), "drain", TEXT),
    "drained by muster": (nodes(n1=("IDLE+DRAIN", TEXT)), "keep", TEXT),
    "drained by Ann": (nodes(n1=("IDLE+DRAIN", "fan")), "refuse", "out of service already: fan"),
    "drained by nobody": (nodes(n1="IDLE+DRAIN"), "refuse", "out of service already"),
    "down": (nodes(n1=("DOWN", "Not responding")), "refuse", "out of service already"),
    "maintenance": (nodes(n1="IDLE+MAINT"), "refuse", "its state is IDLE+MAINT"),
    "reserved for maintenance, as Slurm 22.05 says it": (
        nodes(n1="IDLE+MAINTENANCE+RESERVED"),
        "refuse",
        "its state is IDLE+MAINTENANCE",
    ),
    "reboots": (nodes(n1="IDLE+REBOOT_ISSUED"), "refuse", "its state is"),
    "an old reason is left over": (nodes(n1=("IDLE", "was burnt")), "drain", TEXT),
    "unknown to Slurm": (nodes(0), "refuse", "knows no node n1"),
    "budget spent": (nodes(n2=("IDLE+DRAIN", TEXT)), "full", "partition main has as many"),
    "others are out for other reasons": (nodes(n2=("IDLE+DRAIN", "fan"), n3="DOWN"), "drain", TEXT),
    "ordered by Ann": (nodes(n1=("MIXED+FAIL", "Action:Replace")), "keep", "Action:Replace"),
    "failing for another reason": (nodes(n1=("MIXED+FAIL", "fan")), "refuse", "its state is FAIL"),
    "budget spent by an order": (
        nodes(n2=("IDLE+FAIL", "Action:Reboot")),
        "full",
        "partition main has as many",
    ),
    "budget left": (nodes(20, n2=("IDLE+DRAIN", TEXT)), "drain", TEXT),
}


@pytest.mark.parametrize("name", ROWS)
def test_decide(name: str) -> None:
    known, kind, why = ROWS[name]
    decision = decide(BROKEN, "00112233", known, "n1", Site())
    assert (decision.kind, why in decision.why) == (kind, True), decision


HYPERPOD = Site(hyperpod_repairs=True)


@pytest.mark.parametrize(
    ("action", "state", "reason"),
    [("replace", "fail", "Action:Replace"), ("reboot", "fail", "Action:Reboot"),
     ("reset", "fail", "Action:Reboot"),
     ("drain", "drain", "muster:gpu_count:hardware:drain shows 7 of 8 GPUs boot=00112233")],
)  # fmt: skip
def test_on_hyperpod_its_agent_is_told(action: Action, state: str, reason: str) -> None:
    decision = decide(replace(BROKEN, action=action), "00112233", nodes(), "n1", HYPERPOD)
    assert (decision.kind, decision.state, decision.why) == ("drain", state, reason)


def test_limit_is_at_least_one() -> None:
    assert [limit(n, 0.1) for n in (1, 8, 19, 20, 1000)] == [1, 1, 1, 2, 100]
    assert limit(10, 0.0) == 1


def test_who_came_too_late_gives_the_node_back() -> None:
    both = nodes(n2=("IDLE+DRAIN", TEXT), n3=("IDLE+DRAIN", TEXT))
    assert not too_late("n2", both, 0.1)
    assert too_late("n3", both, 0.1)
    assert not too_late("n3", both, 0.5)


def test_reason_there_and_back() -> None:
    text = reasons.write(reasons.Reason("gpu_count", "hardware", "replace", "x", "00112233"))
    assert reasons.read(text) == reasons.Reason("gpu_count", "hardware", "replace", "x", "00112233")
    assert reasons.read("muster:a:b:replace") == reasons.Reason("a", "b", "replace")


def test_reason_is_short_plain_text() -> None:
    long = reasons.Reason("gpu_count", "hardware", "replace", "\u00e9'\"\n\\" * 999, "00112233")
    wide = replace(long, detail="y" * 999)
    for text in (reasons.write(long), reasons.write(wide)):
        assert len(text) <= 200
        assert text.isascii()
        assert not set(text) & set("\"'\n\\")
        assert text.endswith(" boot=00112233")


@pytest.mark.parametrize(
    "text",
    ["", "Not responding", "muster", "muster:", "muster:a:b", "muster:a:b:explode",
     "xmuster:a:b:replace", "see muster:a:b:replace",
     "Muster:a:b:replace", "muster:a:b:replaced", "muster:a b:c:replace"],
)  # fmt: skip
def test_reasons_of_others(text: str) -> None:
    assert reasons.read(text) is None


@pytest.mark.parametrize(
    ("text", "user", "slurms"),
    [("Not responding", "slurm", True), ("Not responding", "ann", False), ("", None, True),
     ("Node unexpectedly rebooted", "slurm", True), ("fan", "slurm", False), ("none", None, True),
     ("Not responding since noon", "root", False)],
)  # fmt: skip
def test_slurms_own_words(text: str, user: str | None, slurms: bool) -> None:
    assert reasons.is_slurms(text, user, frozenset({"root", "slurm"})) is slurms


SHOWN = """NodeName=n1 Arch=x86_64
   State={state} ThreadsPerCore=1
   Partitions=main
   Reason={reason} [root@2026-01-02T03:04:05]
"""


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scontrol that shows the file `shown` and writes down updates; without the file it fails."""
    path = tmp_path / "bin/scontrol"
    path.parent.mkdir()
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = update ]; then echo "$@" >>{tmp_path}/updates; exit 0; fi\n'
        f"cat {tmp_path}/shown\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    (tmp_path / "shown").write_text("NodeName=n1\n   State=IDLE\n   Partitions=main\n")
    return tmp_path


def test_drain_and_log(scontrol: Path) -> None:
    log = scontrol / "new/actions.jsonl"
    outcome = act(BROKEN, "00112233", "n1", Site(), ActionLog(log), dry_run=False)
    assert outcome.kind == "drained"
    assert outcome.said == f"node n1 is drained: {TEXT}"
    assert (scontrol / "updates").read_text() == f"update nodename=n1 state=drain reason={TEXT}\n"
    line = json.loads(log.read_text())
    assert (line["event"], line["node"], line["why"]) == ("drained", "n1", TEXT)
    assert line["time"] > 1e9


def test_dry_run_updates_nothing(scontrol: Path) -> None:
    outcome = act(BROKEN, "00112233", "n1", Site(), ActionLog(scontrol / "log"), dry_run=True)
    assert outcome.kind == "would"
    assert outcome.said == f"node n1 would be drained: {TEXT}"
    assert not (scontrol / "updates").exists()
    assert not (scontrol / "log").exists()


def test_on_hyperpod_the_node_fails_and_its_job_goes_on(scontrol: Path) -> None:
    log = scontrol / "actions.jsonl"
    act(BROKEN, None, "n1", HYPERPOD, ActionLog(log), dry_run=False)
    said = "update nodename=n1 state=fail reason=Action:Replace\n"
    assert (scontrol / "updates").read_text() == said
    line = json.loads(log.read_text())
    assert (line["check"], line["detail"]) == ("gpu_count", "shows 7 of 8 GPUs")


def test_a_refusal_is_logged_once(scontrol: Path) -> None:
    (scontrol / "shown").write_text(SHOWN.format(state="IDLE+DRAIN", reason="fan"))
    log = ActionLog(scontrol / "log")
    for _ in range(3):
        outcome = act(BROKEN, None, "n1", Site(), log, dry_run=False)
        assert outcome.said == "node n1 is not drained: it is out of service already: fan"
    assert len((scontrol / "log").read_text().splitlines()) == 1
    assert not (scontrol / "updates").exists()


@pytest.mark.parametrize("shown", [None, "", "slurm_load_node error: Unable to contact\n", "Node"])
def test_when_slurm_does_not_answer_nothing_is_done(scontrol: Path, shown: str | None) -> None:
    if shown is None:
        (scontrol / "shown").unlink()
    else:
        (scontrol / "shown").write_text(shown)
    outcome = act(BROKEN, None, "n1", Site(), ActionLog(scontrol / "log"), dry_run=False)
    assert outcome.kind == "refused"
    assert "not drained" in (outcome.said or "")
    assert not (scontrol / "updates").exists()


def test_a_log_that_cannot_be_written_goes_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    ActionLog(tmp_path / "file/actions.jsonl").write("drained", "n1", "why")
    assert json.loads(capsys.readouterr().err)["event"] == "drained"


def test_a_log_that_is_a_fifo_is_written_while_somebody_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    ActionLog(path).write_once("drained", "n1", "why")
    assert json.loads(os.read(reader, 1000))["event"] == "drained"
    os.close(reader)
    assert capsys.readouterr().err == ""
    ActionLog(path).write_once("drained", "n1", "why")
    assert json.loads(capsys.readouterr().err)["event"] == "drained"
    assert path.is_fifo()
