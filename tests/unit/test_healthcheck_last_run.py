"""What root's last check tells a user's check, and a prolog."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck.finding import Finding
from healthcheck.last_run import (
    FRESH_S,
    PROLOG,
    LastRun,
    adopt,
    enforced,
    forget,
    load,
    release_of,
    save,
)

NOW = 1_800_000_000.0
XID = Finding("xid", "FAIL", "hardware", "reboot", "fell off the bus", "", "165", "xid.79", NOW)
GOOD = Finding("xid", "PASS", "hardware", "none", "nothing said", "", None, "xid")
BLIND = replace(GOOD, status="SKIP", detail="may not read the log")
HOT = Finding("gpu_hot", "WARN", "hardware", "none", "is at 93 C", "", None, "gpu_hot")
DISK = Finding("scratch", "FAIL", "software", "drain", "is full", "", None, "scratch")
RUN = LastRun(NOW, "boot-1", "r1", over_budget=False, findings=(XID, HOT, GOOD), job="7")


def test_there_and_back(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    save(tmp_path, RUN)
    assert load(tmp_path) == RUN
    save(tmp_path, replace(RUN, over_budget=True, job=None), PROLOG)
    assert load(tmp_path, PROLOG) == replace(RUN, over_budget=True, job=None)
    forget(tmp_path, PROLOG)
    assert load(tmp_path, PROLOG) is None
    assert (tmp_path / "last.json").stat().st_mode & 0o777 == 0o644
    assert len(list(tmp_path.iterdir())) == 1


def test_without_a_folder_nothing_is_kept(tmp_path: Path) -> None:
    save(None, RUN)
    save(tmp_path / "gone", RUN)
    forget(None, PROLOG)
    forget(tmp_path / "gone", PROLOG)
    assert load(None) is None


def test_a_damaged_file_is_none(tmp_path: Path) -> None:
    save(tmp_path, RUN)
    text = (tmp_path / "last.json").read_text()
    for cut in range(0, len(text) - 2, 7):
        (tmp_path / "last.json").write_text(text[:cut])
        assert load(tmp_path) is None
    for other in ("null", "3", "[]", '{"time": 1}', "[" * 9999):
        (tmp_path / "last.json").write_text(other)
        assert load(tmp_path) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away")
@pytest.mark.may_skip("only root can give a file away")
def test_only_the_owner_of_the_folder_is_believed(tmp_path: Path) -> None:
    save(tmp_path, RUN)
    os.chown(tmp_path / "last.json", 65534, 65534)
    assert load(tmp_path) is None


ADOPTED = {
    # name: (own, last, boot id, seconds later, since, found beside the own ones)
    "could not look": ([BLIND], RUN, "boot-1", 1, None, [XID, HOT]),
    "looked itself": ([GOOD], RUN, "boot-1", 1, None, [HOT]),
    "another boot": ([BLIND], RUN, "boot-2", 1, None, []),
    "too old": ([BLIND], RUN, "boot-1", FRESH_S, None, []),
    "from the future": ([BLIND], RUN, "boot-1", -1, None, []),
    "before the job": ([BLIND], RUN, "boot-1", 1, NOW + 1, [HOT]),
    "within the job": ([BLIND], RUN, "boot-1", 1, NOW - 1, [XID, HOT]),
    "no last run": ([BLIND], None, "boot-1", 1, None, []),
}


@pytest.mark.parametrize("name", ADOPTED)
def test_adopt(name: str) -> None:
    own, last, boot_id, later, since, more = ADOPTED[name]
    assert adopt(own, last, boot_id, NOW + later, since) == [*own, *more]


FULL = replace(RUN, over_budget=True, findings=(DISK,))
ENFORCED = {
    # name: (what failed, last run, what may stop a job)
    "no periodic check here": ([DISK, XID], None, [DISK, XID]),
    "new since": ([DISK], RUN, [DISK]),
    "known, and the node not drained for it by the budget": ([DISK], FULL, []),
    "another fault beside that": ([DISK, XID], FULL, [XID]),
    "known, and within the budget": ([DISK], replace(FULL, over_budget=False), [DISK]),
    "a release that was never tried": ([DISK, XID], replace(RUN, release="r0"), []),
    "nothing failed": ([], FULL, []),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_what_may_stop_a_job(name: str) -> None:
    bad, last, allowed = ENFORCED[name]
    assert enforced(bad, last, "r1") == allowed


def test_another_profile_is_another_release() -> None:
    assert release_of("a", 1) == release_of("a", 1)
    assert release_of("a", 1) != release_of("a", 2)
