"""What the watch does next, as rows: node, record, what must come out."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from healthcheck import watch_state
from healthcheck.watch_budget import Budget, budget_left, failing_alike
from healthcheck.watch_records import (
    LOST_REASON,
    MOST_FAILURES,
    MOST_VERIFIES,
    PASSES,
    Ended,
    Record,
    after_command,
    after_restart,
    after_verify,
    judge_verify,
)
from healthcheck.watch_rules import next_action
from muster.errors import CreateError, DataError, TemporaryError
from muster.site import Site
from muster.slurm import Node

NOW = 1_800_000_000.0
OURS = "muster:gpu_count:hardware:replace shows 7 of 8 GPUs boot=00112233"
REBOOT = OURS.replace("replace", "reboot")
SITE = Site(
    replace_command=["r", "{node}"],
    reboot_command=["b", "{node}"],
    verify_command=["v", "{node}"],
    lost_after_s=10,
    replace_timeout_s=100,
)


def node(states: str, reason: str = OURS, user: str | None = "root", booted: float = -500) -> Node:
    local = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(NOW + booted))
    return Node(
        "n1", frozenset(states.split("+")), "10.0.0.1", reason=reason, reason_user=user,
        boot_time=local, partitions=["main"],
    )  # fmt: skip


def record(phase: str, **more: object) -> Record:
    values = {"since": NOW - 50, "began": NOW - 90, "reason": OURS, **more}
    return Record(phase, **values)  # type: ignore[arg-type]


BOOTING = record("booting", acted_at=NOW - 60, boot_before=NOW - 500)
SILENT = record("silent", reason="Not responding")

ROWS = {
    # name: (node, record, site, budget, kind, phase of the record that is kept)
    "a fit node": (node("IDLE", ""), None, SITE, 1, "none", None),
    "a person's drain": (node("IDLE+DRAIN", "fan, Ann"), None, SITE, 1, "none", None),
    "a person's drain later": (
        node("IDLE+DRAIN", "fan, Ann"), record("drained"), SITE, 1, "forget", None),
    "a person's drain while it boots": (
        node("DOWN+DRAIN", "fan, Ann", booted=-5), BOOTING, SITE, 1, "forget", None),
    "a person's drain after it was verified": (
        node("DOWN+DRAIN", "mine", booted=-5), replace(BOOTING, phase="verified"), SITE, 1,
        "forget", None),
    "looks like ours": (node("IDLE+DRAIN", "musterer: x"), None, SITE, 1, "none", None),
    "undrained by hand": (node("IDLE", OURS), record("drained"), SITE, 1, "forget", None),
    "ours": (node("IDLE+DRAIN"), None, SITE, 1, "replace", "acting"),
    "ours, reboot": (node("IDLE+DRAIN", REBOOT), None, SITE, 1, "reboot", "acting"),
    "ours, reset": (
        node("IDLE+DRAIN", OURS.replace("replace", "reset")), None, SITE, 1, "reboot", "acting"),
    "ours, for a person": (
        node("IDLE+DRAIN", OURS.replace("replace", "drain")), None, SITE, 1, "wait", "drained"),
    "ours, a job runs": (node("ALLOCATED+DRAIN"), None, SITE, 1, "wait", "drained"),
    "ours, a job runs on a part": (node("MIXED+DRAIN"), None, SITE, 1, "wait", "drained"),
    "ours, a job ends": (node("IDLE+COMPLETING+DRAIN"), None, SITE, 1, "wait", "drained"),
    "ours, dead with a job": (
        node("DOWN+COMPLETING+DRAIN+NOT_RESPONDING"), None, SITE, 1, "replace", "acting"),
    "ours, in maintenance": (node("IDLE+DRAIN+MAINT"), None, SITE, 1, "none", None),
    "ours, reboots already": (
        node("IDLE+DRAIN+REBOOT_ISSUED"), record("drained"), SITE, 1, "wait", "drained"),
    "ours, failing for others": (node("IDLE+DRAIN+FAIL"), None, SITE, 1, "none", None),
    "ours, powered down": (node("IDLE+DRAIN+POWERED_DOWN"), None, SITE, 1, "none", None),
    "ordered": (node("IDLE+FAIL", "Action:Replace"), None, SITE, 1, "replace", "acting"),
    "ordered, reboot": (node("IDLE+FAIL", "Action:Reboot"), None, SITE, 1, "reboot", "acting"),
    "ordered by setting it down": (
        node("DOWN", "Action:Replace"), None, SITE, 1, "replace", "acting"),
    "ordered, a job runs": (
        node("MIXED+FAIL", "Action:Replace"), None, SITE, 1, "wait", "drained"),
    "ordered, the older word": (
        node("FAILING", "Action:Reboot"), None, SITE, 1, "reboot", "acting"),
    "ordered with a drain is no order": (
        node("IDLE+DRAIN", "Action:Replace"), None, SITE, 1, "none", None),
    "nearly ordered": (node("IDLE+FAIL", "action:replace"), None, SITE, 1, "none", None),
    "failing for a person's reason": (node("IDLE+FAIL", "fan"), None, SITE, 1, "none", None),
    "ordered, in maintenance": (
        node("IDLE+FAIL+MAINTENANCE", "Action:Replace"), None, SITE, 1, "none", None),
    "ordered, no budget": (
        node("IDLE+FAIL", "Action:Replace"), None, SITE, 0, "wait", "drained"),
    "ordered, new boot": (
        node("DOWN+FAIL", "Action:Replace", booted=-5), BOOTING, SITE, 1, "verify", "verifying"),
    "ordered, a reboot did not help": (
        node("IDLE+FAIL", "Action:Reboot"), record("drained", reason="Action:Reboot", reboots=1),
        SITE, 1, "reboot", "acting"),
    "a reboot did not help": (
        node("IDLE+DRAIN", REBOOT), record("drained", reason=REBOOT, reboots=1), SITE, 1,
        "replace", "acting"),
    "a reboot did not help, and nothing else is known": (
        node("IDLE+DRAIN", REBOOT), record("drained", reason=REBOOT, reboots=1),
        replace(SITE, replace_command=[]), 1, "reboot", "acting"),
    "HyperPod repairs": (
        node("IDLE+FAIL", "Action:Replace"), None, replace(SITE, hyperpod_repairs=True), 1,
        "none", None),
    "HyperPod repairs what was ours": (
        node("IDLE+DRAIN"), record("drained"), replace(SITE, hyperpod_repairs=True), 1,
        "forget", None),
    "no budget": (node("IDLE+DRAIN"), None, SITE, 0, "wait", "drained"),
    "no command": (
        node("IDLE+DRAIN"), None, replace(SITE, replace_command=[]), 1, "wait", "drained"),
    "pause": (
        node("IDLE+DRAIN"), record("drained", not_before=NOW + 1), SITE, 1, "wait", "drained"),
    "pause over": (
        node("IDLE+DRAIN"), record("drained", not_before=NOW - 1), SITE, 1, "replace", "acting"),
    "three strikes": (
        node("IDLE+DRAIN"), record("drained", failures=MOST_FAILURES), SITE, 1,
        "give_up", "gave_up"),
    "given up": (node("IDLE+DRAIN"), record("gave_up"), SITE, 1, "wait", "gave_up"),
    "given up, same again": (
        node("IDLE+DRAIN", OURS + " more"), record("gave_up"), SITE, 1, "replace", "acting"),
    "given up, new reason of ours": (
        node("IDLE+DRAIN", REBOOT), record("gave_up"), SITE, 1, "reboot", "acting"),
    "command runs": (node("IDLE+DRAIN"), record("acting"), SITE, 1, "wait", "acting"),
    "old boot": (node("DOWN+DRAIN"), BOOTING, SITE, 1, "wait", "booting"),
    "old boot, its time a second off": (
        node("DOWN+DRAIN", booted=-501), BOOTING, SITE, 1, "wait", "booting"),
    "new boot": (node("DOWN+DRAIN", booted=-5), BOOTING, SITE, 1, "verify", "verifying"),
    "new boot of a node that was idle": (
        node("IDLE+DRAIN", booted=-5), BOOTING, SITE, 1, "verify", "verifying"),
    "new boot, silent": (
        node("DOWN+DRAIN+NOT_RESPONDING", booted=-5), BOOTING, SITE, 1, "wait", "booting"),
    "new boot, no budget": (node("DOWN+DRAIN", booted=-5), BOOTING, SITE, 0, "verify", "verifying"),
    "boot before the command": (
        node("DOWN+DRAIN", booted=-65), BOOTING, SITE, 1, "wait", "booting"),
    "unknown boot time": (
        replace(node("DOWN+DRAIN"), boot_time="None"), BOOTING, SITE, 1, "wait", "booting"),
    "never boots": (
        node("DOWN+DRAIN"), replace(BOOTING, acted_at=NOW - 101), SITE, 1, "wait", "drained"),
    "no verify command": (
        node("DOWN+DRAIN", booted=-5), BOOTING, replace(SITE, verify_command=[]), 1,
        "wait", "booting"),
    "verified": (
        node("DOWN+DRAIN", booted=-5), replace(BOOTING, phase="verified"), SITE, 1,
        "resume", "returning"),
    "verified, then silent": (
        node("DOWN+DRAIN+NOT_RESPONDING", booted=-5), replace(BOOTING, phase="verified"), SITE, 1,
        "wait", "booting"),
    "returned": (node("IDLE", ""), record("returning"), SITE, 1, "returned", None),
    "returned with a job": (node("ALLOCATED", ""), record("returning"), SITE, 1, "returned", None),
    "returns": (node("IDLE+NOT_RESPONDING", ""), record("returning"), SITE, 1, "wait", "returning"),
    "never returns": (
        node("IDLE+NOT_RESPONDING", ""), record("returning", since=NOW - 121), SITE, 1,
        "forget", None),
    "returned and lost again": (
        node("DOWN+NOT_RESPONDING", "Not responding"), record("returning"), SITE, 1,
        "wait", "silent"),
    "returned and unfit again": (node("IDLE+DRAIN"), record("returning"), SITE, 1,
        "replace", "acting"),
    "just lost": (
        node("DOWN+NOT_RESPONDING", "Not responding"), None, SITE, 1, "wait", "silent"),
    "lost": (
        node("DOWN+NOT_RESPONDING", "Not responding"), SILENT, SITE, 1, "drain", "silent"),
    "lost, no budget": (
        node("DOWN+NOT_RESPONDING", "Not responding"), SILENT, SITE, 0, "drain", "silent"),
    "rebooted by itself": (
        node("DOWN", "Node unexpectedly rebooted", "slurm"), SILENT, SITE, 1, "drain", "silent"),
    "lost without a reason": (node("DOWN+NOT_RESPONDING", ""), SILENT, SITE, 1, "drain", "silent"),
    "a person wrote Slurm's words": (
        node("DOWN", "Not responding", "ann"), SILENT, SITE, 1, "forget", None),
    "set down by a person": (node("DOWN", "burnt, Ann"), None, SITE, 1, "none", None),
    "lost, then set down by a person": (node("DOWN", "burnt"), SILENT, SITE, 1, "forget", None),
    "lost while drained by a person": (
        node("DOWN+DRAIN+NOT_RESPONDING", "fan, Ann"), None, SITE, 1, "none", None),
    "silent, not yet down": (
        node("IDLE+NOT_RESPONDING", ""), None, SITE, 1, "none", None),
    "came back": (node("IDLE", ""), SILENT, SITE, 1, "forget", None),
    "powered down by Slurm": (node("DOWN+POWERED_DOWN", ""), SILENT, SITE, 1, "wait", "silent"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_next_action(name: str) -> None:
    seen, known, site, left, kind, phase = ROWS[name]
    action = next_action(seen, known, site, NOW, Budget(left))
    assert action.kind == kind, action
    assert (action.record.phase if action.record else None) == phase


def test_acting_remembers_the_boot_before_it_acts() -> None:
    action = next_action(node("IDLE+DRAIN"), None, SITE, NOW, Budget(1))
    assert action.record is not None
    assert (action.record.acted_at, action.record.boot_before) == (NOW, NOW - 500)


def test_failures_pause_longer_and_end_in_giving_up() -> None:
    known, pauses = record("acting"), []
    for _ in range(MOST_FAILURES):
        known = after_command(known, Ended("exit status 1"), NOW)
        pauses.append(known.not_before - NOW)
    assert pauses == [10, 40, 160]
    assert next_action(node("IDLE+DRAIN"), known, SITE, NOW, Budget(1)).kind == "give_up"


def test_a_failed_verification_is_tried_again_then_counts_as_a_failure() -> None:
    known = after_command(record("acting", acted_at=NOW - 60), Ended(None), NOW)
    assert known.phase == "booting"
    for count in range(1, MOST_VERIFIES):
        known = after_verify(known, Ended("exit status 1"), 0, NOW)
        assert (known.phase, known.verifies, known.failures) == ("booting", count, 0)
        waits = next_action(node("DOWN+DRAIN", booted=-5), known, SITE, NOW, Budget(1))
        assert waits.kind == "wait"
    known = after_verify(known, Ended("exit status 1"), 0, NOW)
    assert (known.phase, known.verifies, known.failures) == ("drained", 0, 1)


def passed(known: Record, boot_id: str | None = "b1") -> Record:
    return after_verify(known, Ended(None, boot_id), 7, NOW)


def test_a_node_returns_after_three_passes_in_a_row_in_one_boot() -> None:
    known = record("verifying")
    for count in range(1, PASSES):
        known = passed(known)
        assert (known.phase, known.passes, known.not_before) == ("booting", count, NOW + 7)
        booted = node("DOWN+DRAIN", booted=-5)
        waiting = replace(known, acted_at=NOW - 60, boot_before=NOW - 500)
        assert next_action(booted, waiting, SITE, NOW, Budget(1)).kind == "wait"
        assert next_action(booted, waiting, SITE, NOW + 7, Budget(1)).kind == "verify"
    assert passed(known).phase == "verified"
    failed = after_verify(known, Ended("exit status 1"), 7, NOW)
    assert failed.passes == 0
    assert passed(known, "b2").passes == 1
    assert passed(after_restart(replace(passed(known), boot_id=None))).passes == 1


def test_a_reboot_that_did_not_help_is_counted() -> None:
    known = replace(BOOTING, verb="reboot", acted_at=NOW - 101)
    late = next_action(node("DOWN+DRAIN", REBOOT), known, SITE, NOW, Budget(1)).record
    assert late is not None
    assert (late.phase, late.reboots, late.failures) == ("drained", 1, 1)
    for _ in range(MOST_VERIFIES):
        known = after_verify(known, Ended("unfit"), 0, NOW)
    assert (known.phase, known.reboots) == ("drained", 1)
    assert after_command(record("acting", verb="reboot"), Ended("no BMC"), NOW).reboots == 0
    again = replace(BOOTING, verb="replace", acted_at=NOW - 101)
    late = next_action(node("DOWN+DRAIN"), again, SITE, NOW, Budget(1)).record
    assert late is not None
    assert late.reboots == 0


LAST = '{"node": "n1", "boot_id": "%s", "fit": true, "unfit": []}'
OLD, NEW = "00112233-4444", "aabbccdd-4444"


@pytest.mark.parametrize(
    ("reason", "output", "problem", "told"),
    [(OURS, LAST % NEW, None, NEW), (OURS, "noise\n" + LAST % NEW + "\nbye {", None, NEW),
     (OURS, LAST % OLD, "still runs the boot 00112233", OLD),
     (LOST_REASON, LAST % OLD, None, OLD), ("Action:Replace", LAST % OLD, None, OLD),
     (OURS, "", None, None), (OURS, LAST % "", None, None), (OURS, "[" * 9999, None, None),
     (OURS, '{"boot_id": 3}', None, None)],
)  # fmt: skip
def test_the_boot_of_the_fault_is_no_new_boot(
    reason: str, output: str, problem: str | None, told: str | None
) -> None:
    ended = judge_verify(reason, output)
    assert ended.boot_id == told
    assert ended.problem == problem or (problem and problem in (ended.problem or ""))


@pytest.mark.parametrize("phase", ["acting", "verifying", "verified"])
def test_after_a_restart_the_command_counts_as_given(phase: str) -> None:
    again = after_restart(record(phase, acted_at=NOW - 60))
    assert next_action(node("IDLE+DRAIN"), again, SITE, NOW, Budget(1)).kind == "wait"
    booted = node("DOWN+DRAIN", booted=-5)
    assert next_action(booted, again, SITE, NOW, Budget(1)).kind == "verify"


def test_budget_is_the_tightest_of_the_partitions() -> None:
    nodes = {f"n{i}": replace(node("IDLE", ""), name=f"n{i}") for i in range(1, 21)}
    nodes["n1"] = replace(nodes["n1"], partitions=["main", "small"])
    nodes["n2"] = replace(nodes["n2"], partitions=["main", "small"])
    busy = {"n2": record("booting"), "n3": record("drained"), "n4": record("gave_up")}
    assert budget_left(nodes["n1"], nodes, {}, 0.1) == 1
    assert budget_left(nodes["n5"], nodes, {}, 0.1) == 2
    assert budget_left(nodes["n1"], nodes, busy, 0.1) == 0
    assert budget_left(nodes["n5"], nodes, busy, 0.1) == 1
    assert budget_left(nodes["n5"], nodes, busy, 0.0) == 0


def test_the_state_file_brings_records_back(tmp_path: Path) -> None:
    path = tmp_path / "watch.json"
    assert watch_state.load(path) == {}
    records = {"n1": BOOTING, "n2": record("gave_up", failures=3)}
    watch_state.save(path, records)
    assert watch_state.load(path) == records


GOOD = json.dumps({"nodes": {"n1": asdict(BOOTING)}})


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"nodes": 3}', '{"nodes": {"n1": {}}}', '{"nodes": {"n1": [1]}}',
     GOOD.replace("booting", "asleep"), GOOD.replace(str(BOOTING.since), '"x"'),
     *(GOOD[:cut] for cut in range(1, len(GOOD) - 1, 7)), "\udcff"],
)  # fmt: skip
def test_a_damaged_state_file_is_not_guessed_at(tmp_path: Path, text: str) -> None:
    path = tmp_path / "watch.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError, match="is damaged"):
        watch_state.load(path)


def test_one_watch_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / "watch.json"
    with (
        watch_state.locked(path),
        pytest.raises(TemporaryError, match="another watch"),
        watch_state.locked(path),
    ):
        pass
    with watch_state.locked(path):
        pass


@pytest.mark.parametrize("name", ["watch.json", "watch_jobs.json", "watch_recounts.json"])
def test_what_is_no_file_is_no_state_and_stays(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with (
        pytest.raises(CreateError, match=f"{name}: is no ordinary file. Fix: name another file"),
        watch_state.locked(tmp_path / "watch.json"),
    ):
        pass
    assert [one.name for one in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).is_fifo()


def test_nodes_that_fail_alike_are_left_alone_for_a_while() -> None:
    """Three within five minutes, until five minutes after the last of them."""
    ages = {"n1": -200.0, "n2": -100.0, "n3": -10.0}
    alike = {name: record("drained", began=NOW + age) for name, age in ages.items()}
    why = failing_alike("n1", alike, 300, NOW)
    assert why is not None
    assert why.startswith("3 nodes show gpu_count at the same time (n1, n2, n3)")
    assert failing_alike("n1", alike, 300, NOW + 289) == why
    assert failing_alike("n1", alike, 300, NOW + 291) is None
    assert failing_alike("n1", alike, 100, NOW) is None
    assert failing_alike("n4", alike, 300, NOW) is None
    other = OURS.replace("gpu_count", "gpu_ecc")
    assert failing_alike("n1", {**alike, "n3": record("drained", reason=other)}, 300, NOW) is None
    gone = {**alike, "n3": record("booting")}
    assert failing_alike("n1", gone, 300, NOW) is None
    lost = {"n1": SILENT, "n2": SILENT, "n3": record("drained", reason=LOST_REASON)}
    assert "silence" in str(failing_alike("n1", lost, 300, NOW))
    drained, budget = node("IDLE+DRAIN"), Budget(1, alike=why)
    assert next_action(drained, None, SITE, NOW, budget).kind == "wait"
    assert next_action(node("IDLE+FAIL", "Action:Replace"), None, SITE, NOW, budget).kind == (
        "replace"
    )
    silent = node("DOWN", "Not responding")
    assert next_action(silent, SILENT, SITE, NOW, budget).kind == "wait"
    assert next_action(silent, SILENT, SITE, NOW, replace(budget, alike=None)).kind == "drain"


def test_many_lost_at_once_are_not_drained() -> None:
    """Twenty nodes that fall silent together have a shared cause, and are not twenty bad nodes."""
    lost = node("DOWN", reason="Not responding", user="root")
    old = Record("silent", since=NOW - 1000, began=NOW - 1000, reason="Not responding")
    assert next_action(lost, old, SITE, NOW, Budget(1, drain_left=1)).kind == "drain"
    assert next_action(lost, old, SITE, NOW, Budget(1, drain_left=0)).kind == "wait"
