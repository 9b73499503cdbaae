"""From the driver's reports to what they mean: which are causes, which only follow from others.

Pure: events in, verdicts out. The rules and why:
- Xid 154 tells the driver's own recovery action. It beats the table, and 'None' afterwards means
  that a reset has helped: what was before it on that GPU no longer counts.
- Xid 45 ends the channels of a program that another fault, or a person, has stopped. 13, 31 and 43
  after a fault of the hardware are that fault seen by the program.
- SXid 20034 (a link went down) within half a minute after a GPU fell off the bus is the GPU's.
- A program fault that hits one GPU under three different processes is worth a look at the GPU; more
  is not done, because a wrong program is wrong everywhere it runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from healthcheck.policy import POLICY, row
from healthcheck.read.xid import RECOVERY_CHANGED, Event

_CLEANED_UP = 45
_SEEN_BY_PROGRAM = (13, 31, 43)
_OFF_BUS = 79
_LINK_DOWN = 20034
_TEST = 999  # what DCGM and people write to try their tools
_SOON_S = 60.0
_LINK_SOON_S = 30.0
_REPEATED = (13, 14, 31, 32, 44)
_TIMES = 3
_ACTIONS = {1: "reset", 2: "reboot", 3: "drain", 4: "reset"}


@dataclass(frozen=True)
class Verdict:
    """What one event means: the row of the policy table, and whether the node is at fault."""

    event: Event
    rule: str
    failed: bool
    note: str = ""


def verdicts(events: Sequence[Event], recovery: Mapping[str, str]) -> Iterator[Verdict]:
    """What the Xids and SXids mean, oldest first; those that follow from others are left out.

    Args:
        events: of one node and one boot, oldest first.
        recovery: the driver's recovery action now, in words, by PCI address; as far as known.
    """
    seen = [e for e in events if e.kind in ("xid", "sxid") and e.number != _TEST]
    last = {e.bus: e for e in seen if _changes_recovery(e)}
    for event in seen:
        if event.kind == "xid" and event.number == RECOVERY_CHANGED:
            if event is last.get(event.bus):
                yield from _recovery(event)
        elif not _follows(event, seen) and not _repaired(event, last.get(event.bus)):
            yield _verdict(event, seen, last.get(event.bus), recovery)


def _changes_recovery(event: Event) -> bool:
    return event.kind == "xid" and event.number == RECOVERY_CHANGED and event.recovery is not None


def _recovery(event: Event) -> Iterator[Verdict]:
    """The last word of the driver about this GPU; an unknown one touches nothing."""
    if event.recovery == 0:
        return
    wanted = _ACTIONS.get(event.recovery or 0)
    rule = f"xid.{RECOVERY_CHANGED}" + (f".{wanted}" if wanted else "")
    yield Verdict(event, rule, failed=_acts(rule))


def _repaired(event: Event, last: Optional[Event]) -> bool:
    """The driver has withdrawn its wish for an action since: the GPU was reset."""
    return last is not None and last.recovery == 0 and event.time <= last.time


def _follows(event: Event, seen: Sequence[Event]) -> bool:
    if event.kind == "sxid":
        return event.number == _LINK_DOWN and any(
            other.kind == "xid" and other.number == _OFF_BUS
            and 0 <= event.time - other.time <= _LINK_SOON_S
            for other in seen
        )  # fmt: skip
    same = [o for o in seen if o.kind == "xid" and o.bus == event.bus and o is not event]
    if event.number == _CLEANED_UP:
        return event.caused_by is not None or any(
            o.number != _CLEANED_UP and -_SOON_S <= o.time - event.time <= _SOON_S for o in same
        )
    if event.number in _SEEN_BY_PROGRAM:
        return any(_acts(_rule(o)) and o.time <= event.time for o in same)
    return False


def _verdict(
    event: Event, seen: Sequence[Event], last: Optional[Event], recovery: Mapping[str, str]
) -> Verdict:
    rule = _rule(event)
    if event.kind == "xid" and event.number in _REPEATED and _processes(event, seen) >= _TIMES:
        return Verdict(event, "xid.repeated", failed=False, note="under several processes")
    if last is not None and event.kind == "xid" and last.time >= event.time:
        return Verdict(event, rule, failed=False, note="the driver says more in Xid 154")
    asked = recovery.get(event.bus or "")
    if event.kind == "xid" and asked == "None" and POLICY[row(rule)].action == "reset":
        return Verdict(event, rule, failed=False, note="the driver asks for no reset now")
    return Verdict(event, rule, failed=_acts(rule))


def _processes(event: Event, seen: Sequence[Event]) -> int:
    """Processes under which this GPU had this fault."""
    pids = {o.pid for o in seen if (o.kind, o.number, o.bus) == ("xid", event.number, event.bus)}
    return len(pids - {None})


def _rule(event: Event) -> str:
    """By number; where the driver says how bad it is, its word comes behind."""
    return f"{event.kind}.{event.number}" + (f".{event.severity}" if event.severity else "")


def _acts(rule: str) -> bool:
    return POLICY[row(rule)].action != "none"
