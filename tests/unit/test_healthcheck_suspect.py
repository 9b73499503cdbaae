"""Which node is at fault, as rows: what every node found, who must be blamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Optional, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.finding import Action, Class, Finding, Status
from healthcheck.suspect import judge, read_findings, shared_cause

T = 1_800_000_000.0
Found = Optional[Sequence[Finding]]


def finding(rule: str, status: str = "FAIL", **more: Any) -> Finding:
    values = {"check": rule.partition(".")[0], "class_": "hardware", "action": "reboot", **more}
    return Finding(status=status, detail=f"shows {rule}", fix="", rule=rule, **values)  # type: ignore[arg-type]


def xid(number: int, at: float = 0.0, **more: Any) -> Finding:
    return finding(f"xid.{number}", time=T + at, **more)


def app(number: int, at: float = 0.0) -> Finding:
    return xid(number, at, status="WARN", class_="software", action="none")


GOOD = finding("gpu_count", "PASS")
BLIND = finding("gpu_count", "UNKNOWN", action="none")
MOUNT = finding("mount", class_="storage", action="none")
PORT = finding("ib_port", class_="network", action="drain")
DISK = finding("scratch_space", class_="software", action="drain")
SHORT = finding("gpu_count", action="replace")

ROWS: dict[str, tuple[list[Found], str, Optional[str], str, tuple[str, ...]]] = {
    # name: (findings of n1, n2, ..., verdict, node, action, also)
    "nothing": ([[GOOD], [GOOD]], "unknown", None, "none", ()),
    "no findings at all": ([[], []], "unknown", None, "none", ()),
    "probes failed": ([[BLIND], [BLIND]], "unknown", None, "none", ()),
    "a warning is no fault": ([[finding("gpu_temperature", "WARN")], []], "unknown", None, "none",
        ()),
    "a GPU is gone": ([[GOOD], [SHORT]], "hardware", "n2", "replace", ()),
    "the earliest by the kernel's clock": (
        [[xid(79, 9)], [xid(79, 2)]], "hardware", "n2", "reboot", ("n1",)),
    "a time comes before no time": ([[SHORT], [xid(48)]], "hardware", "n2", "reboot", ("n1",)),
    "the worst action of the node": ([[xid(79), SHORT], []], "hardware", "n1", "replace", ()),
    "one gives no answer": ([[GOOD], None, [GOOD]], "hardware", "n2", "none", ()),
    "a fault comes before silence": (
        [None, [GOOD], [xid(79)]], "hardware", "n3", "reboot", ("n1",)),
    "its peers crash": ([[xid(79)], [app(31, -5)], [app(43)]], "hardware", "n1", "reboot", ()),
    "the program": ([[GOOD], [app(31, 5)], [app(13, 2)]], "software", "n3", "none", ()),
    "only cleaned up": ([[app(45)], [GOOD]], "unknown", None, "none", ()),
    "a warning without a kernel line": (
        [[finding("driver", "WARN", class_="software", action="none")], []], "unknown", None,
        "none", ()),
    "the switch after its GPU": (
        [[xid(79), finding("sxid.20034", time=T + 29, action="replace")], []], "hardware", "n1",
        "reboot", ()),
    "the switch long after its GPU": (
        [[xid(79), finding("sxid.20034", time=T + 31, action="replace")], []], "hardware", "n1",
        "replace", ()),
    "silence beside what three share": (
        [None, [MOUNT], [MOUNT], [MOUNT]], "infrastructure", None, "none", ()),
    "a fault without a time beside what three share": (
        [[SHORT], *[[xid(74, i)] for i in range(3)]], "hardware", "n1", "replace", ()),
    "a mount on one of three": ([[MOUNT], [GOOD], [GOOD]], "hardware", "n1", "none", ()),
    "a mount on both": ([[MOUNT], [MOUNT]], "infrastructure", None, "none", ()),
    "a mount on three of four": ([[MOUNT], [MOUNT], [MOUNT], []], "infrastructure", None, "none",
        ()),
    "a mount on two of four": ([[MOUNT], [MOUNT], [], []], "hardware", "n1", "none", ("n2",)),
    "a port": ([[GOOD], [PORT]], "hardware", "n2", "drain", ()),
    "the same Xid on both of two": ([[xid(79, 1)], [xid(79)]], "hardware", "n2", "reboot", ("n1",)),
    "the same Xid on three within minutes": (
        [[xid(79)], [xid(79, 100)], [xid(79, 299)], []], "infrastructure", None, "none", ()),
    "the same Xid on three within hours": (
        [[xid(79)], [xid(79, 999)], [xid(79, 1999)], []], "hardware", "n1", "reboot",
        ("n2", "n3")),
    "three times on one node": ([[xid(79)] * 3, [], []], "hardware", "n1", "reboot", ()),
    "all silent": ([None, None], "infrastructure", None, "none", ()),
    "three of eight silent": ([None] * 3 + [[]] * 5, "infrastructure", None, "none", ()),
    "two of eight silent": ([None] * 2 + [[]] * 6, "hardware", "n1", "none", ("n2",)),
    "a fault before what three share": (
        [[xid(79)], *[[xid(74, 5 + i)] for i in range(3)]], "hardware", "n1", "reboot", ()),
    "a fault after what three share": (
        [[xid(79, 50)], *[[xid(74, i)] for i in range(3)]], "infrastructure", None, "none", ()),
    "a full disk": ([[GOOD], [DISK]], "hardware", "n2", "drain", ()),
    "a full disk on both is no news": ([[DISK], [DISK]], "unknown", None, "none", ()),
    "a full disk and a broken GPU": ([[DISK], [xid(48)]], "hardware", "n2", "reboot", ("n1",)),
    "one node": ([[MOUNT]], "hardware", "n1", "none", ()),
    "no node": ([], "unknown", None, "none", ()),
}  # fmt: skip


def reports(found: Sequence[Found]) -> dict[str, Found]:
    return {f"n{number}": one for number, one in enumerate(found, start=1)}


@pytest.mark.parametrize("name", ROWS)
def test_judge(name: str) -> None:
    found, *expected = ROWS[name]
    suspect = judge(reports(found))
    assert [suspect.verdict, suspect.node, suspect.action, suspect.also] == expected, suspect
    hints = [one for f in found for one in f or () if one.status == "WARN"]
    assert bool(suspect.evidence) == (suspect.verdict != "unknown" or bool(hints))


def test_what_followed_is_no_evidence() -> None:
    suspect = judge({"n1": [app(43, 3), xid(79, 2), app(31, 4), app(13, -9)], "n2": [app(45, 3)]})
    assert len(suspect.evidence) == 1
    assert suspect.why == suspect.evidence[0]
    assert suspect.why.startswith("node n1 shows xid.79 (xid) at ")
    assert suspect.as_json()["evidence"] == list(suspect.evidence)


def test_a_following_xid_needs_its_leader_first() -> None:
    warned = xid(74, 2, status="WARN", action="none")
    assert judge({"n1": [warned, app(31, 4)]}).verdict == "unknown"
    assert judge({"n1": [warned, app(31, 1)]}).verdict == "software"


def test_a_hundred_faults_are_five_lines() -> None:
    many = [xid(79, i, gpu=str(i), check=f"c{i}") for i in range(100)]
    assert len(judge({"n1": many}).evidence) == 5


def lines(findings: Sequence[Finding], last: object = None) -> str:
    node = last or {"node": "n1", "boot_id": "x", "fit": False, "unfit": []}
    return "\n".join([*(json.dumps({"node": "n1", **f.as_json()}) for f in findings),
                      json.dumps(node)])  # fmt: skip


def test_findings_there_and_back() -> None:
    found = [xid(79), SHORT, GOOD, MOUNT]
    assert read_findings("srun: some noise\n" + lines(found)) == found


def test_an_output_without_its_last_line_is_no_answer() -> None:
    text = lines([xid(79)])
    assert read_findings("") is None
    assert read_findings(text[: text.rindex("\n")]) is None
    assert read_findings(lines([xid(79)], {"fit": "yes"})) is None


@pytest.mark.parametrize(
    "change",
    [{"check": 3}, {"status": "BAD"}, {"class": None}, {"action": "explode"}, {"status": ["FAIL"]}],
)
def test_a_line_that_is_no_finding_is_left_out(change: dict[str, Any]) -> None:
    line = json.dumps({**xid(79).as_json(), **change})
    assert read_findings(line + "\n" + lines([GOOD])) == [GOOD]


@given(st.text(max_size=300), st.integers(0, 400))
def test_whatever_a_node_says_is_read(noise: str, cut: int) -> None:
    text = lines([xid(79), app(31)])
    read_findings(noise)
    found = read_findings(noise + "\n" + text[:cut])
    assert found is None or len(found) <= 2


FINDINGS = st.builds(
    Finding,
    check=st.sampled_from(["xid", "gpu_count", "mount"]),
    status=st.sampled_from(get_args(Status)),
    class_=st.sampled_from(get_args(Class)),
    action=st.sampled_from(get_args(Action)),
    detail=st.text(max_size=20),
    fix=st.just(""),
    rule=st.sampled_from(["xid.79", "xid.31", "xid.45", "gpu_count", "mount", "sxid.20034"]),
    time=st.none() | st.floats(0, 1000),
)


@given(st.dictionaries(st.sampled_from(["n1", "n2", "n3", "n4"]), st.lists(FINDINGS, max_size=4)))
def test_only_a_node_that_failed_is_blamed(found: dict[str, list[Finding]]) -> None:
    suspect = judge(found)
    for node in [*([suspect.node] if suspect.node else []), *suspect.also]:
        assert any(f.status == "FAIL" or suspect.verdict == "software" for f in found[node])
    if all(f.status in ("PASS", "SKIP", "UNKNOWN") for one in found.values() for f in one):
        assert suspect.verdict == "unknown"
    assert (suspect.verdict == "hardware") <= (suspect.node is not None)
    assert json.loads(json.dumps(suspect.as_json()))["verdict"] == suspect.verdict


def test_shared_cause() -> None:
    assert not shared_cause([("a", 1.0), ("b", 2.0), ("a", 3.0)], 300)
    assert shared_cause([("a", 1.0), ("b", 2.0), ("c", 301.0)], 300)
    assert not shared_cause([("a", 1.0), ("b", 2.0), ("c", 302.0)], 300)
    assert shared_cause([("a", 1.0), ("b", None), ("c", None)], 300)
    assert shared_cause(iter([("a", None), ("b", None)]), 300, count=2)
