"""The forms in which findings leave: HyperPod's line and Prometheus' file (others: test_checks)."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck import prometheus
from healthcheck.finding import Action, Finding, Status
from healthcheck.output import Report, result
from muster.errors import CreateError

PASS = Finding("gpu_count", "PASS", "hardware", "none", "shows 8 of 8 GPUs", "")
SKIP = replace(PASS, status="SKIP")
UNKNOWN = replace(PASS, status="UNKNOWN")


def fail(action: Action, check: str = "gpu_count") -> Finding:
    return replace(PASS, check=check, status="FAIL", action=action, detail="shows: 7 of\n8 GPUs")


def report(*findings: Finding, bad: tuple[Finding, ...] = ()) -> Report:
    return Report("n3", "boot", "prolog", findings, bad)


RESULTS = {
    "fit": (report(PASS, SKIP, UNKNOWN), "Passed:none:"),
    "a failure that does not count": (report(fail("none")), "Passed:none:"),
    "nothing seen": (report(SKIP, UNKNOWN), "Skipped:none:no check could look at anything"),
    "nothing at all": (report(), "Skipped:none:no check could look at anything"),
    "replace": (
        report(bad=(fail("reboot", "a"), fail("replace"))),
        "Failed:replace:gpu_count: shows: 7 of 8 GPUs",
    ),
    "reset": (report(bad=(fail("reset"),)), "Failed:reboot:gpu_count: shows: 7 of 8 GPUs"),
    "reboot": (report(bad=(fail("reboot"),)), "Failed:reboot:gpu_count: shows: 7 of 8 GPUs"),
    "drain": (report(bad=(fail("drain"),)), "Failed:none:gpu_count: shows: 7 of 8 GPUs"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_result(name: str) -> None:
    seen, expected = RESULTS[name]
    assert result(seen) == f"HEALTH_CHECK_RESULT:n3:{expected}"


SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z]+="[^"\\\n]*",?)+)\} (\S+)')


def samples(text: str) -> dict[tuple[str, str], str]:
    """Samples by name and labels; every other line is a comment."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert (match[1], match[2]) not in found, f"twice: {line}"
            found[match[1], match[2]] = match[3]
    return found


def test_prometheus() -> None:
    two = [replace(PASS, gpu="165"), replace(UNKNOWN, gpu="165"), replace(SKIP, gpu="166")]
    seen = report(PASS, *two, fail("reboot", "xid"), bad=(fail("reboot", "xid"),))
    text = prometheus.text(seen, 1_800_000_000.25)
    assert text.endswith("\n")
    assert samples(text) == {
        ("muster_check_status", 'mode="prolog",check="gpu_count",gpu=""'): "0",
        ("muster_check_status", 'mode="prolog",check="gpu_count",gpu="165"'): "4",
        ("muster_check_status", 'mode="prolog",check="gpu_count",gpu="166"'): "3",
        ("muster_check_status", 'mode="prolog",check="xid",gpu=""'): "2",
        ("muster_node_fit", 'mode="prolog"'): "0",
        ("muster_check_time_seconds", 'mode="prolog"'): "1800000000.250",
    }
    fit = samples(prometheus.text(report(PASS), 1.0))
    assert fit["muster_node_fit", 'mode="prolog"'] == "1"


WORDS: list[Status] = ["PASS", "WARN", "FAIL", "SKIP", "UNKNOWN"]


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.none() | st.text(max_size=9)), max_size=9))
def test_whatever_a_gpu_is_called_the_file_is_valid(found: list[tuple[Status, str | None]]) -> None:
    findings = [replace(PASS, status=status, gpu=gpu) for status, gpu in found]
    samples(prometheus.text(report(*findings), 1.0))


def test_the_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "muster.prom"
    prometheus.write(path, report(PASS, fail("none", "xid")), 1.0)
    prometheus.write(path, report(PASS), 2.0)
    assert "xid" not in path.read_text()
    assert [one.name for one in tmp_path.iterdir()] == ["muster.prom"]
    assert path.stat().st_mode & 0o777 == 0o644
    with pytest.raises(CreateError, match="name another file"):
        prometheus.write(tmp_path / "gone/muster.prom", report(PASS), 1.0)


def test_only_a_file_is_replaced_and_a_link_stays_one(tmp_path: Path) -> None:
    fifo, link, file = tmp_path / "fifo", tmp_path / "link", tmp_path / "file"
    os.mkfifo(fifo)
    link.symlink_to("file")
    prometheus.write(link, report(PASS), 1.0)
    assert link.is_symlink()
    assert "muster_node_fit" in file.read_text()
    for place in (fifo, tmp_path, Path("/")):
        with pytest.raises(CreateError, match=r"is no ordinary file\. Fix: name another file"):
            prometheus.write(place, report(PASS), 1.0)
    assert fifo.is_fifo()
    for length in (252, 5000):  # its draft has a longer name
        with pytest.raises(CreateError, match="File name too long"):
            prometheus.write(tmp_path / ("x" * length), report(PASS), 1.0)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "muster.prom"
    prometheus.write(path, report(PASS), 1.0)
    before = path.read_text()
    (tmp_path / f".muster.prom.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(CreateError, match="No space left"):
        prometheus.write(path, report(), 2.0)
    assert path.read_text() == before
