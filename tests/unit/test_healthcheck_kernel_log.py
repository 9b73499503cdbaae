"""The kernel's log: what the kernel said is read, what anybody else wrote there is not."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.profile import Profile
from healthcheck.read.kernel_log import clean, first, kernel_log, parse_journal, parse_kmsg
from muster.site import Site
from tests.harness.programs import put

BOOT = 1_800_000_000.0
BOOT_ID = "0123abcd-0000-4000-8000-000000000000"
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, name=python3, GPU has fallen off the bus."
KMSG = f"""\
5,0,0,-;Linux version 6.1.0
 SUBSYSTEM=pci
 DEVICE=+pci:0000:3b:00.0
6,3964,206764307,-,caller=T7;nvme nvme0: 8/0/0 default/read/poll queues
4,3965,300500000,c;{XID}
12,3966,300600000,-;{XID} written by a process
30,3967,300700000,-;systemd[1]: started
"""


def test_records_of_the_kernel_alone_with_its_time() -> None:
    lines, whole = parse_kmsg(KMSG, BOOT)
    assert [line.text for line in lines] == [
        *("Linux version 6.1.0", "nvme nvme0: 8/0/0 default/read/poll queues", XID)
    ]
    assert [line.time - BOOT for line in lines] == [0, pytest.approx(206.764307), 300.5]
    assert whole
    assert not parse_kmsg(KMSG.partition("\n")[2], BOOT)[1]


HIDDEN = {
    # a record's message: what a check sees of it
    r"name=x\x0aNVRM: Xid (PCI:0000:3b:00): 79": "name=x NVRM: Xid (PCI:0000:3b:00): 79",
    r"\x1b[31mred\x1b[0m": "red",
    r"G\xc3\xa9rard \xff": "Gérard \ufffd",
    r"a\x5cb": r"a\b",
    "x" * 5000: "x" * 4000,
    "cr\r": "cr",
    r"not hex \xzz": r"not hex \xzz",
}


@pytest.mark.parametrize("message", HIDDEN)
def test_a_message_is_one_plain_line(message: str) -> None:
    lines, _ = parse_kmsg(f"6,1,1,-;{message}\n", BOOT)
    assert [line.text for line in lines] == [HIDDEN[message]]


def entry(**values: object) -> str:
    usual = {
        "_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": XID, "PRIORITY": "4",
        "_SOURCE_MONOTONIC_TIMESTAMP": "300500000", "__REALTIME_TIMESTAMP": "1800000301000000",
        "_BOOT_ID": BOOT_ID.replace("-", ""), **values,
    }  # fmt: skip
    return json.dumps({key: value for key, value in usual.items() if value is not None})


JOURNAL = {
    # name: (entry, the texts that come out)
    "kernel": (entry(), [XID]),
    "kernel, no facility": (entry(SYSLOG_FACILITY=None), [XID]),
    "bytes": (entry(MESSAGE=list(b"caf\xc3\xa9\x1b[0m")), ["café"]),
    "too long to show": (entry(MESSAGE=None), []),
    "no bytes": (entry(MESSAGE=[1, 300]), []),
    "logger": (entry(_TRANSPORT="syslog"), []),
    "printed by a service": (entry(_TRANSPORT="stdout"), []),
    "written into /dev/kmsg": (entry(SYSLOG_FACILITY="1"), []),
    "no transport": (entry(_TRANSPORT=None), []),
    "another boot": (entry(_BOOT_ID="f" * 32), []),
    "no time": (entry(_SOURCE_MONOTONIC_TIMESTAMP=None, __REALTIME_TIMESTAMP="soon"), []),
    "cut": (entry()[:-1], []),
    "no object": ("[1]", []),
    "deep": ('{"a":' * 100_000, []),
}


@pytest.mark.parametrize("name", JOURNAL)
def test_entries_of_the_journal(name: str) -> None:
    text, expected = JOURNAL[name]
    assert [line.text for line in parse_journal(f"{text}\n", BOOT, BOOT_ID)] == expected


def test_time_of_a_journal_entry_is_the_kernels() -> None:
    assert parse_journal(entry(), BOOT, BOOT_ID)[0].time == BOOT + 300.5
    late = entry(_SOURCE_MONOTONIC_TIMESTAMP=None)
    assert parse_journal(late, BOOT, None)[0].time == BOOT + 301


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(data: bytes) -> None:
    text = data.decode(errors="replace")
    for lines in (parse_kmsg(text, BOOT)[0], parse_journal(text, BOOT, None)):
        assert all(line.text.isprintable() for line in lines)


@given(st.text(max_size=200))
def test_clean_text_has_no_second_line(text: str) -> None:
    assert clean(text).isprintable()


def facts(root: Path, since: float | None = None) -> Facts:
    return Facts(Env(root, 10), Profile(), Site(), when="gate", node="n3", since=since)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A fake node that booted 1000 s ago."""
    for folder in ("dev", "proc"):
        (tmp_path / folder).mkdir()
    (tmp_path / "proc/uptime").write_text("1000.25 8000.00\n")
    (tmp_path / "dev/kmsg").write_text(KMSG)
    return tmp_path


def test_from_the_device(root: Path) -> None:
    log = kernel_log(facts(root))
    assert log.lines is not None
    found = first(log.lines, lambda text: text.startswith("NVRM: Xid"))
    assert found is not None
    assert found.time == pytest.approx(time.time() - 1000.25 + 300.5, abs=60)
    assert log.whole


def test_since(root: Path) -> None:
    log = kernel_log(facts(root, since=time.time() - 750))
    assert log.lines is not None
    assert [line.text for line in log.lines] == [XID]
    assert kernel_log(facts(root, since=time.time())).lines == ()


def test_boot_time_from_stat(root: Path) -> None:
    (root / "proc/uptime").unlink()
    assert kernel_log(facts(root)).lines is None
    (root / "proc/stat").write_text("cpu 1 2\nbtime 1800000000\nprocesses 3\n")
    lines = kernel_log(facts(root)).lines
    assert lines is not None
    assert lines[-1].time == pytest.approx(1_800_000_300.5, abs=0.01)


UNREADABLE = {
    # what journalctl is: why the log is unknown
    "echo 'No journal files were opened' >&2; exit 1": "No journal files were opened",
    "exit 0": "it shows no line of the kernel",
    "echo '{'": "it shows no line of the kernel",
}


@pytest.mark.parametrize("program", UNREADABLE)
def test_no_log_is_no_good_log(
    root: Path, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "bin", "journalctl", program)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (root / "dev/kmsg").write_text("nothing of the kernel\n")
    log = kernel_log(facts(root))
    assert (log.lines, log.why) == (None, "has nothing of the kernel in /dev/kmsg")
    (root / "dev/kmsg").unlink()
    log = kernel_log(facts(root))
    assert log.lines is None
    assert log.why == f"cannot read its kernel log: journalctl: {UNREADABLE[program]}"


def test_from_the_journal(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shown").write_text(entry() + "\n" + entry(_TRANSPORT="syslog") + "\n")
    put(tmp_path / "bin", "journalctl", f'echo "$@" >{tmp_path}/asked; cat {tmp_path}/shown')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    (root / "dev/kmsg").unlink()
    log = kernel_log(facts(root))
    assert log.lines is not None
    assert [line.text for line in log.lines] == [XID]
    assert (tmp_path / "asked").read_text() == "-k -b -o json --no-pager -q -n 20000\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="writes into the kernel's log")
@pytest.mark.may_skip("only root may write into the kernel's log")
def test_a_process_that_writes_into_the_real_log_is_not_heard() -> None:
    word = f"muster-test-{uuid.uuid4().hex}"
    try:
        with open("/dev/kmsg", "w") as log:  # noqa: PTH123  (a device)
            log.write(f"<2>{word} level alone\n")
        with open("/dev/kmsg", "w") as log:  # noqa: PTH123
            log.write(f"{word} plain\n")
        written = Env(Path("/"), 10).records("/dev/kmsg") or ""
    except OSError:
        pytest.skip("there is no kernel log in this container")
    assert written.count(word) == 2
    lines = kernel_log(facts(Path("/"))).lines
    assert lines
    assert [line for line in lines if word in line.text] == []
