"""A node of its own for each test: a folder with steps, run by the real runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.created import CreatedNode


@pytest.fixture
def node(tmp_path: Path) -> CreatedNode:
    """A node without steps."""
    return CreatedNode(tmp_path)
