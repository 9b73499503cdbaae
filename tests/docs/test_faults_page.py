"""The list of faults says what the code says; every verb of the local cluster has its row."""

from __future__ import annotations

import re
from pathlib import Path

from muster.cluster.cluster import HEAD_VERBS, VERBS
from tests.faults import catalogue, fault

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def test_every_fault_is_listed_as_it_is() -> None:
    page = (REFERENCE / "faults.md").read_text(encoding="utf-8")
    fix = "python3 -m tests.faults --list"
    assert page.partition("\n## ")[2] == f"{catalogue.tables(fault.discover())}\n"[3:], fix


def test_every_verb_of_the_local_cluster_is_listed() -> None:
    page = (REFERENCE / "local_cluster.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    listed = {words.split()[0] for cell in cells for words in re.findall(r"`([^`]+)`", cell)}
    assert {*VERBS, *HEAD_VERBS} <= listed
