"""A fit node, as an eight-GPU cloud machine is: every check passes on it, or says why not."""

from __future__ import annotations

import importlib
import pkgutil

from tests.harness import fake_tools
from tests.harness.fake_tools.node import BOOT_ID, FakeNode


def node() -> FakeNode:
    """A new one, free to edit: every module of this folder with an `add(node)` adds its part."""
    made = FakeNode()
    made.files["/proc/sys/kernel/random/boot_id"] = BOOT_ID
    made.files["/proc/uptime"] = f"{made.uptime_s:.2f} 1000000.00"
    for module in sorted(pkgutil.iter_modules(fake_tools.__path__), key=lambda found: found.name):
        add = getattr(importlib.import_module(f"{fake_tools.__name__}.{module.name}"), "add", None)
        if add is not None:
            add(made)
    return made
