"""Which GPU sits at a PCI address of this node: its serial number, remembered while it answers.

The kernel names a lost GPU by its address only, and nvidia-smi does not show it any more. The
address means nothing on another node, the serial number does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from healthcheck.finding import Finding

FILE = "gpus.json"
_ADDRESS = re.compile(r"(?:PCI:)?([0-9A-Fa-f]{4,8}):([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})(?:\.[0-7])?")


def address(text: str) -> Optional[str]:
    """A PCI address in one form, whoever wrote it; None: it is none."""
    found = _ADDRESS.fullmatch(text.strip())
    if not found:
        return None
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}"


def remember(known: Mapping[str, str], shown: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Names by address: those known, and those that nvidia-smi shows now as (address, name)."""
    new = {address(bus): name for bus, name in shown}
    return {**known, **{bus: name for bus, name in new.items() if bus is not None}}


def load(folder: Optional[Path]) -> dict[str, str]:
    """Names by address that were saved; whatever is no name by address is left out."""
    if folder is None:
        return {}
    try:
        value = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    pairs = value.items() if isinstance(value, dict) else ()
    return {bus: name for bus, name in pairs if isinstance(name, str) and address(bus)}


def save(folder: Optional[Path], names: Mapping[str, str]) -> None:
    """Replace the file if it says something else."""
    if folder is None or names == load(folder):
        return
    draft = folder / f".{FILE}.{os.getpid()}"
    with contextlib.suppress(OSError):
        draft.write_text(json.dumps(names) + "\n", encoding="utf-8")
        draft.replace(folder / FILE)


def named(findings: Sequence[Finding], names: Mapping[str, str]) -> list[Finding]:
    """The findings, with the GPU's name where only its address was known."""

    def name(gpu: Optional[str]) -> Optional[str]:
        return names.get(address(gpu) or "", gpu) if gpu else gpu

    return [replace(finding, gpu=name(finding.gpu)) for finding in findings]
