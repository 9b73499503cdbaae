"""The list of faults as Markdown: docs/reference/faults.md has it, and a test compares the two."""

from __future__ import annotations

from collections.abc import Mapping

from tests.faults.fault import AREAS, Fault

_HEAD = "| fault | emulates | expected | storm | CI |\n|---|---|---|---|---|"


def tables(faults: Mapping[str, Fault]) -> str:
    """A heading and a table for each area."""
    parts = []
    for area in AREAS:
        rows = [_row(name, fault) for name, fault in faults.items() if fault.area == area]
        parts.append("\n".join([f"## {area.capitalize()}", "", _HEAD, *rows]))
    return "\n\n".join(parts)


def _row(name: str, fault: Fault) -> str:
    storm, ci = ("yes" if fault.storm else ""), ", ".join(f"`{one}`" for one in fault.ci)
    return f"| `{name}` | {fault.emulates} | {fault.expected} | {storm} | {ci} |"
