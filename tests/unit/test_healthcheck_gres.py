"""Slurm has lost count of GPUs: counted anew when that is sure, never often, never over an edit."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from healthcheck import watch_state
from healthcheck.action_log import ActionLog
from healthcheck.gres_rules import GresUse, Recounts, devices, leaked, next_recount
from healthcheck.gres_watch import GresWatch, edited_since_start, gres_in_use
from healthcheck.job_queue import Entry
from muster.errors import DataError, StorageError

NOW = 1_800_000_000.0
WAITS = Entry("7", "PENDING", "", "", "Resources")


def use(states: str, used: int) -> GresUse:
    return GresUse(frozenset(states.split("+")), used)


LOST_COUNT = {"n1": use("IDLE", 8), "n2": use("IDLE", 0)}
SEEN = Recounts({"n1": NOW - 31})

ROWS: dict[str, tuple[dict[str, Any], str, str]] = {
    # name: (what differs, what is done, a part of why)
    "seen for long enough": ({}, "recount", "1 idle nodes count as used: n1"),
    "planned for the next job": ({"nodes": {"n1": use("IDLE+PLANNED", 8)}}, "recount", "n1"),
    "first look": ({"record": Recounts()}, "none", ""),
    "seen too short": ({"record": Recounts({"n1": NOW - 29})}, "none", ""),
    "another node was seen": ({"record": Recounts({"n2": NOW - 99})}, "none", ""),
    "nobody waits": ({"waiting": False}, "none", ""),
    "nothing counts as used": ({"nodes": {"n1": use("IDLE", 0)}}, "none", ""),
    "a job ends": ({"nodes": {"n1": use("IDLE+COMPLETING", 8)}}, "none", ""),
    "a job runs": ({"nodes": {"n1": use("ALLOCATED", 8)}}, "none", ""),
    "drained": ({"nodes": {"n1": use("IDLE+DRAIN", 8)}}, "none", ""),
    "lost": ({"nodes": {"n1": use("IDLE+NOT_RESPONDING", 8)}}, "none", ""),
    "somebody edits": ({"edited": ["/etc/slurm/gres.conf"]}, "wait", "not read /etc/slurm/gres"),
    "just done": ({"record": replace(SEEN, done_at=(NOW - 299,))}, "wait", "less than 300 s ago"),
    "done a while ago": ({"record": replace(SEEN, done_at=(NOW - 301,))}, "recount", "n1"),
    "often today": (
        {"record": replace(SEEN, done_at=(NOW - 86399, NOW - 400))}, "wait", "2 recounts in a day"),
    "often yesterday": ({"record": replace(SEEN, done_at=(NOW - 86401, NOW - 400))}, "recount", ""),
    "switched off": ({"per_day": 0}, "wait", "run 'scontrol reconfigure' yourself"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rules(name: str) -> None:
    changes, kind, why = ROWS[name]
    given: dict[str, Any] = {
        "waiting": True,
        "nodes": LOST_COUNT,
        "record": SEEN,
        "per_day": 2,
        "edited": (),
        "now": NOW,
        **changes,
    }
    waiting, nodes, record = (given.pop(name) for name in ("waiting", "nodes", "record"))
    action = next_recount(waiting, nodes, record, **given)
    assert (action.kind, why in action.why) == (kind, True), action
    if kind == "recount":
        assert action.record.done_at[-1] == NOW
        assert not action.record.seen


def test_a_node_that_was_well_in_between_starts_again() -> None:
    args: dict[str, Any] = {"per_day": 2, "edited": ()}
    well = {"n1": use("ALLOCATED", 8)}
    record = next_recount(True, LOST_COUNT, Recounts(), now=NOW, **args).record
    record = next_recount(True, well, record, now=NOW + 20, **args).record
    later = next_recount(True, LOST_COUNT, record, now=NOW + 40, **args)
    assert later.kind == "none"
    assert later.record.seen == {"n1": NOW + 40}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("gpu:h100:8(IDX:0-7)", 8),
        ("gpu:h100:3(IDX:0-1,5),nic:0", 3),
        ("gpu:2(IDX:0,1),shard:4(1/2,3/4)", 6),
        ("gpu:a100_1g.5gb:7(IDX:0-6)", 7),
        ("gpu:h100:0(IDX:N/A)", 0),
        ("gpu:0", 0),
        ("", 0),
        ("(null)", 0),
    ],
)
def test_devices_are_counted(text: str, number: int) -> None:
    assert devices(text) == number


NODES = """NodeName=n1 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:h100:8
   GresDrain=N/A
   GresUsed=gpu:h100:8(IDX:0-7)
   State=IDLE ThreadsPerCore=1
   Reason=n2 NodeName= GresUsed=gpu:9 [root@2026-01-01T00:00:00]

NodeName=n2 Arch=x86_64 CoresPerSocket=1
   GresUsed=gpu:h100:0(IDX:N/A)
   State=IDLE ThreadsPerCore=1

"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A controller whose slurmctld began after its files were written, and lost count on n1."""
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("slurm.conf", "gres.conf"):
        (etc / name).touch()
        os.utime(etc / name, (time.time() - 900, time.time() - 900))
    started = int(time.time()) - 800
    began = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(started))
    os.utime(etc / "gres.conf", (started + 0.9, started + 0.9))  # as on the local cluster
    (tmp_path / "nodes").write_text(NODES)
    (tmp_path / "config").write_text(f"BOOT_TIME   = {began}\nSLURM_CONF   = {etc}/slurm.conf\n")
    tool = tmp_path / "bin" / "scontrol"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\ncase "$*" in\n"--details show node") cat {tmp_path}/nodes ;;\n'
        f'"show config") cat {tmp_path}/config ;;\n'
        f"reconfigure) [ ! -e {tmp_path}/refuses ] && echo done >>{tmp_path}/done ;;\n"
        "*) exit 9 ;;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_TIME_FORMAT", raising=False)
    return tmp_path


def watch(place: Path, **more: Any) -> GresWatch:
    given = {"dry_run": False, "per_day": 2, **more}
    return GresWatch(place / "watch.json", ActionLog(place / "log"), **given)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [time.time()]
    monkeypatch.setattr("healthcheck.gres_watch.time.time", lambda: now[0])
    return lambda s: now.__setitem__(0, now[0] + s)


def done(place: Path) -> int:
    path = place / "done"
    return len(path.read_text().splitlines()) if path.exists() else 0


def events(place: Path) -> list[tuple[str, str]]:
    lines = map(json.loads, (place / "log").read_text().splitlines())
    return [(line["event"], line["why"]) for line in lines]


def test_slurm_counts_anew_once(place: Path, later: Callable[[float], None]) -> None:
    one = watch(place)
    for _ in range(4):  # 0, 20, 40 and 60 s
        one.round([WAITS])
        later(20)
    assert done(place) == 1
    assert [event for event, _ in events(place)] == ["recounted"]
    assert "n1" in events(place)[0][1]
    for _ in range(3):  # another watch knows when it was
        again = watch(place)
        again.round([WAITS])
        later(31)
        again.round([WAITS])
    assert done(place) == 1
    later(300)
    again.round([WAITS])
    assert done(place) == 2
    (place / "watch_recounts.json").write_text("{}")
    with pytest.raises(DataError, match=r"watch_recounts\.json.* is damaged"):
        watch(place)


def test_a_dry_run_says_it_once(place: Path, later: Callable[[float], None]) -> None:
    one = watch(place, dry_run=True)
    for _ in range(5):
        one.round([WAITS])
        later(31)
    assert done(place) == 0
    assert not (place / "watch_recounts.json").exists()
    assert [(event, why[:9]) for event, why in events(place)] == [("waits", "dry run: ")]


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf", "muster/nodes.conf"])
def test_a_change_that_slurmctld_has_not_read_is_left_to_a_person(
    place: Path, later: Callable[[float], None], name: str
) -> None:
    path = place / "etc" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.utime(path, (time.time() - 700, time.time() - 700))
    assert edited_since_start() == [str(path)]
    one = watch(place)
    for _ in range(3):
        one.round([WAITS])
        later(31)
    assert done(place) == 0
    assert [(event, str(path) in why) for event, why in events(place)] == [("waits", True)]


def test_what_cannot_be_written_down_is_not_done(
    place: Path, later: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("watch.json", "No space left on device", "make room")

    one = watch(place)
    one.round([WAITS])
    later(31)
    monkeypatch.setattr(watch_state, "save_recounts", full)
    with pytest.raises(StorageError):
        one.round([WAITS])
    assert done(place) == 0


def test_slurm_that_refuses_or_is_away_is_said(place: Path, later: Callable[[float], None]) -> None:
    (place / "refuses").touch()
    one = watch(place)
    one.round([WAITS])
    later(31)
    one.round([WAITS])
    (place / "config").unlink()
    later(400)
    one.round([WAITS])
    later(31)
    one.round([WAITS])
    whys = [why for _, why in events(place)]
    assert [why.split(":")[0] for why in whys] == ["scontrol reconfigure", "scontrol show config"]


def test_nobody_is_asked_while_nobody_waits(place: Path) -> None:
    (place / "bin/scontrol").write_text("#!/bin/sh\nexit 9\n")
    one = watch(place)
    one.round([Entry("7", "PENDING", "", "", "Priority"), Entry("8", "RUNNING", "n1", "", "None")])
    assert not (place / "log").exists()


def test_nodes_are_read(place: Path) -> None:
    assert gres_in_use() == {"n1": use("IDLE", 8), "n2": use("IDLE", 0)}
    assert leaked(gres_in_use()) == ["n1"]
