"""dcgmi of version 4 on eight fit GPUs; `diag3` and `diag4` write other answers."""

from __future__ import annotations

import json
from typing import Any

from tests.harness.fake_tools.node import FakeNode

TESTS = ("software", "pcie", "memory", "diagnostic")
HEALTHY: dict[str, Any] = {
    "body": {"Overall Health": {"value": "Healthy"}}, "header": ["Health Monitor Report"]
}  # fmt: skip


def add(node: FakeNode) -> None:
    """It passes, and its watches are content."""
    node.say("dcgmi", diag4(), words="diag")
    node.say("dcgmi", json.dumps(HEALTHY), words="health")


def diag4(changes: dict[tuple[str, int], dict[str, Any]] | None = None, **root: Any) -> str:
    """Version 4: one result for each GPU; `changes` by (test, GPU)."""
    tests = []
    for name in TESTS:
        results = [
            {
                "entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": "Pass",
                **(changes or {}).get((name, gpu), {}),
            }
            for gpu in range(8)
        ]  # fmt: skip
        failed = any(result["status"] == "Fail" for result in results)
        summary = {"status": "Fail" if failed else "Pass"}
        tests.append({"name": name, "results": results, "test_summary": summary})
    categories = [
        {"category": "Deployment", "tests": tests[:1]},
        {"category": "Hardware", "tests": tests[1:]},
    ]
    said = {"DCGM Diagnostic": {"test_categories": categories, **root}}
    return json.dumps({**said, "metadata": {"version": "4.2.3"}}, indent=2)


def diag3(*results: dict[str, Any]) -> str:
    """Version 3: one test on all GPUs, one with these results, and the null between them."""
    tests: list[Any] = [
        {"name": "Denylist", "results": [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}]},
        None,
        {"name": "Memory", "results": list(results)},
    ]
    root = {"test_categories": [{"category": "Deployment", "tests": tests}], "version": "3.1.8"}
    return "WARNING: something else\n" + json.dumps({"DCGM GPU Diagnostic": root}) + "\nbye\n"


def failed(severity: int | None, text: str = "GPU needs attention") -> dict[str, Any]:
    """A result that fails with that severity."""
    warning: dict[str, Any] = {"warning": text, "error_id": 29, "error_category": 8}
    if severity is not None:
        warning["error_severity"] = severity
    return {"status": "Fail", "warnings": [warning]}
