"""What the kernel itself said since this boot, with the kernel's own time.

From /dev/kmsg, which answers at once and needs no program; where that may not be read, from the
journal. Whatever a process wrote there (`logger`, or a line into /dev/kmsg) is left out: the kernel
marks such records with a facility other than 0 and lets nobody choose that one. So a line that
imitates a fault raises nothing, as long as a check looks at the start of a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from healthcheck import lazy
from healthcheck.read.boot import uptime_s

if TYPE_CHECKING:
    from healthcheck.facts import Facts

KMSG = "/dev/kmsg"
JOURNAL = ("journalctl", "-k", "-b", "-o", "json", "--no-pager", "-q", "-n", "20000")
JOURNAL_S = 5.0

_RECORD = lazy.pattern(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)")
_ESCAPED = re.compile(rb"\\x([0-9a-fA-F]{2})")
_COLOUR = lazy.pattern(r"\x1b\[[0-9;?]*[A-Za-z]")
_LONGEST = 4000


@dataclass(frozen=True)
class KernelLine:
    """One message of the kernel: one line, colours and line ends removed.

    Attributes:
        time: when the kernel said it, Unix seconds (its clock may be off by seconds per week).
        text: the message alone, without time, level and host.
    """

    time: float
    text: str


@dataclass(frozen=True)
class KernelLog:
    """The kernel's lines of this boot, oldest first.

    Attributes:
        lines: None: the log could not be read.
        why: then, the reason, to continue 'node n3 ...'.
        denied: then, that only root may read it.
        whole: False: the oldest lines of this boot are lost.
    """

    lines: Optional[tuple[KernelLine, ...]]
    why: str = ""
    denied: bool = False
    whole: bool = True


def clean(text: str) -> str:
    """A message on one line, without colours and control characters."""
    if text.isprintable() and len(text) <= _LONGEST:
        return text.strip()  # nearly all, and a node that boots says ten thousand lines
    plain = _COLOUR.sub("", text[:_LONGEST])
    return "".join(c if c.isprintable() else " " for c in plain).strip()


def parse_kmsg(text: str, boot: float) -> tuple[list[KernelLine], bool]:
    """Records of /dev/kmsg, and whether the first one since the boot is among them.

    Args:
        text: `level,number,microseconds,flags;message` a line; lines that start with a blank belong
            to the record above. Anything else is left out.
        boot: Unix time of the boot.
    """
    lines, whole = [], False
    for raw in text.split("\n"):
        found = _RECORD.match(raw)
        if not found:
            continue
        level, number, stamp, message = found.groups()
        whole = whole or int(number) == 0
        if int(level) >> 3 == 0:
            lines.append(KernelLine(boot + int(stamp) / 1e6, clean(_unescaped(message))))
    return lines, whole


def _unescaped(message: str) -> str:
    """The kernel writes what is not ASCII, and line ends, as backslash x and two digits."""
    if "\\x" not in message:
        return message
    data = _ESCAPED.sub(lambda m: bytes([int(m[1], 16)]), message.encode(errors="replace"))
    return data.decode(errors="replace")


def parse_journal(text: str, boot: float, boot_id: Optional[str]) -> list[KernelLine]:
    """The kernel's own entries among `journalctl -o json` lines, of the boot `boot_id` if known."""
    lines = []
    for entry in _objects(text):
        if entry.get("_TRANSPORT") != "kernel" or entry.get("SYSLOG_FACILITY", "0") != "0":
            continue
        if boot_id and entry.get("_BOOT_ID") not in (None, boot_id.replace("-", "")):
            continue
        message, when = _message(entry.get("MESSAGE")), _time(entry, boot)
        if message is not None and when is not None:
            lines.append(KernelLine(when, clean(message)))
    return lines


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for raw in text.split("\n"):
        if raw.startswith("{"):
            try:
                entry = json.loads(raw)
            except (ValueError, RecursionError):
                continue  # cut, or no JSON
            if isinstance(entry, dict):
                yield entry


def _message(value: object) -> Optional[str]:
    """A text, or the numbers of its bytes where the journal does not find it printable."""
    if isinstance(value, list) and all(type(n) is int and 0 <= n < 256 for n in value):
        return bytes(value).decode(errors="replace")
    return value if isinstance(value, str) else None


def _time(entry: dict[str, Any], boot: float) -> Optional[float]:
    for key, start in (("_SOURCE_MONOTONIC_TIMESTAMP", boot), ("__REALTIME_TIMESTAMP", 0.0)):
        value = entry.get(key)
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
            return start + int(value) / 1e6
    return None


def kernel_log(facts: Facts) -> KernelLog:
    """The kernel's lines since this boot, and since `facts.since`; for `facts.once`."""
    up_s = facts.once(uptime_s)
    if up_s is None:
        return KernelLog(None, "does not say when it booted")
    boot = facts.env.now() - up_s
    try:
        text = facts.env.records(KMSG)
    except PermissionError:
        text = None
        denied = True
    else:
        denied = False
    if text is not None:
        lines, whole = parse_kmsg(text, boot)
        if not lines:  # a kernel is never silent: this is not its log
            return KernelLog(None, f"has nothing of the kernel in {KMSG}")
        return KernelLog(_since(lines, facts.since), whole=whole)
    done = facts.env.run(list(JOURNAL), JOURNAL_S)
    boot_id = facts.env.read("/proc/sys/kernel/random/boot_id")
    lines = parse_journal(done.out, boot, boot_id) if done.ok else []
    if not lines:
        why = done.reason if not done.ok else "it shows no line of the kernel"
        return KernelLog(None, f"cannot read its kernel log: journalctl: {why}", denied=denied)
    return KernelLog(_since(lines, facts.since))


def _since(lines: Iterable[KernelLine], since: Optional[float]) -> tuple[KernelLine, ...]:
    return tuple(line for line in lines if since is None or line.time >= since)


def first(lines: Iterable[KernelLine], match: Callable[[str], object]) -> Optional[KernelLine]:
    """The oldest line that matches."""
    return next((line for line in lines if match(line.text)), None)
