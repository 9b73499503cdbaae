"""What `muster check --act` does about its own node, against a Slurm that answers from files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import last_run
from healthcheck.act import Here, act, drains
from healthcheck.action_log import ActionLog
from healthcheck.finding import Finding
from healthcheck.last_run import PROLOG, LastRun
from muster.site import Site
from tests.harness.programs import Scontrol, node_record

NOW = 1_800_000_000.0
BOOT = "00112233-4444-5555-6666-777777777777"
XID = Finding("xid", "FAIL", "hardware", "reboot", "lost GPU 3", "", "1650000001", "xid.79", NOW)
SHORT = Finding("gpu_count", "FAIL", "hardware", "replace", "shows 7 of 8 GPUs", "")
PORT = Finding("ib_port", "FAIL", "network", "drain", "has mlx5_3 down", "")
DISK = Finding("scratch", "FAIL", "software", "drain", "is full", "")


@pytest.fixture
def here(tmp_path: Path, scontrol: Scontrol) -> Here:
    scontrol.nodes(node_record("n1", "MIXED"), *(node_record(f"n{i}") for i in range(2, 9)))
    state = tmp_path / "state"
    state.mkdir()
    log = ActionLog(tmp_path / "actions.jsonl")
    return Here("n1", BOOT, Site(), state, log, NOW, dry_run=False)


def updates(scontrol: Scontrol) -> list[str]:
    lines = (scontrol.state / "calls").read_text().splitlines()
    return [line.removeprefix("update ") for line in lines if line.startswith("update ")]


def test_what_takes_a_node_out() -> None:
    assert all(drains(finding) for finding in (XID, SHORT, PORT))
    assert not drains(DISK)
    assert not drains(replace(XID, status="WARN"))
    assert not drains(replace(XID, status="UNKNOWN"))
    assert not drains(replace(PORT, action="none"))
    assert not drains(replace(PORT, class_="storage"))


def test_the_worst_is_the_reason(here: Here, scontrol: Scontrol) -> None:
    assert "is drained" in str(act([PORT, XID, SHORT, DISK], here).said)
    reason = "muster:gpu_count:hardware:replace shows 7 of 8 GPUs boot=00112233"
    assert updates(scontrol) == [f"nodename=n1 state=drain reason={reason}"]


def test_the_second_time_in_another_boot_is_a_replacement(here: Here, scontrol: Scontrol) -> None:
    act([XID], here)
    act([XID], here)
    later = replace(here, boot_id="8899aabb-0", now=NOW + 3600)
    act([XID], later)
    first, same, second = updates(scontrol)
    assert first == same
    assert "reason=muster:xid:hardware:reboot lost GPU 3 boot=00112233" in first
    assert (
        "muster:xid:hardware:replace lost GPU 3, again after xid.79 on n1 boot=8899aabb" in second
    )
    (strikes,) = [json.loads(f.read_text()) for f in (here.state or Path()).glob("strikes/*")]
    assert [(s["boot"], s["action"]) for s in strikes] == [
        ("00112233", "reboot"), ("8899aabb", "replace"),
    ]  # fmt: skip


def test_a_strike_counts_only_when_the_node_was_drained(here: Here, scontrol: Scontrol) -> None:
    drained = node_record("n2", "IDLE+DRAIN", Reason="muster:xid:hardware:reboot x [root@now]")
    scontrol.nodes(node_record("n1"), drained)
    assert act([XID], here).over_budget
    assert act([XID], replace(here, dry_run=True)).over_budget
    scontrol.nodes(node_record("n1", "IDLE+DRAIN", Reason="fan [ann@now]"))
    acted = act([XID], here)
    assert "out of service already: fan" in str(acted.said)
    assert not acted.over_budget
    scontrol.nodes(node_record("n1"))
    assert "would be drained" in str(act([XID], replace(here, dry_run=True)).said)
    assert updates(scontrol) == []
    assert not list((here.state or Path()).glob("strikes/*"))


def test_the_budget_is_asked_for_what_would_stop_a_job(here: Here, scontrol: Scontrol) -> None:
    """A full disk drains nothing here, but a prolog would: may it?"""
    assert not act([DISK], here).over_budget
    drained = node_record("n2", "IDLE+DRAIN", Reason="muster:xid:hardware:reboot x [root@now]")
    scontrol.nodes(node_record("n1"), drained)
    assert act([DISK], here).over_budget
    (scontrol.state / "nodes").unlink()
    assert not act([DISK], here).over_budget
    assert updates(scontrol) == []


def test_a_fit_node_asks_slurm_nothing(here: Here, scontrol: Scontrol) -> None:
    assert act([replace(XID, status="PASS")], here).said is None
    assert not (scontrol.state / "calls").exists()


MARKER = LastRun(NOW - 60, BOOT, "r1", over_budget=False, findings=(DISK, SHORT), job="42")


@pytest.mark.parametrize("slurms", ["Prolog error", "Epilog error"])
def test_slurms_word_for_our_prolog_becomes_ours(
    here: Here, scontrol: Scontrol, slurms: str
) -> None:
    scontrol.nodes(node_record("n1", "IDLE+DRAIN", Reason=f"{slurms} [slurm@now]"))
    last_run.save(here.state, MARKER, PROLOG)
    said = act([SHORT], replace(here, dry_run=True)).said
    assert "would become" in str(said)
    assert updates(scontrol) == []
    said = act([SHORT], here).said
    text = "muster:gpu_count:hardware:replace shows 7 of 8 GPUs, job=42 boot=00112233"
    assert said == f"node n1: '{slurms}' is now: {text}"
    assert updates(scontrol) == [f"nodename=n1 state=drain reason={text}"]
    assert last_run.load(here.state, PROLOG) is None
    assert act([], here).said is None


@pytest.mark.parametrize(
    ("state", "reason", "boot_id"),
    [("IDLE+DRAIN", "Prolog error", "another boot"), ("IDLE+DRAIN", "prolog error, Ann", BOOT),
     ("IDLE", "Prolog error", BOOT)],
)  # fmt: skip
def test_what_our_prolog_did_not_drain_stays(
    here: Here, scontrol: Scontrol, state: str, reason: str, boot_id: str
) -> None:
    scontrol.nodes(node_record("n1", state, Reason=f"{reason} [slurm@now]"))
    last_run.save(here.state, replace(MARKER, boot_id=boot_id), PROLOG)
    assert act([], here).said is None
    assert updates(scontrol) == [] if (scontrol.state / "calls").exists() else True


def test_on_hyperpod_its_agent_hears_of_a_failed_prolog(here: Here, scontrol: Scontrol) -> None:
    scontrol.nodes(node_record("n1", "IDLE+DRAIN", Reason="Prolog error [slurm@now]"))
    last_run.save(here.state, MARKER, PROLOG)
    act([], replace(here, site=Site(hyperpod_repairs=True)))
    assert updates(scontrol) == ["nodename=n1 state=fail reason=Action:Replace"]
