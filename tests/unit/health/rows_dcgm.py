"""dcgmi, row by row; its exit status never counts."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.harness.fake_tools.dcgm import diag3, diag4, failed
from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row


def diag(text: str, rc: int = 0, *, hangs: bool = False) -> Edit:
    """dcgmi diag answers so."""
    return lambda node: node.say("dcgmi", text, words="diag", rc=rc, hangs=hangs)


def on(gpu: int, severity: int | None, test: str = "memory") -> Edit:
    """One test fails on one GPU."""
    return diag(diag4({(test, gpu): failed(severity)}), rc=226)


def watches(overall: str, **body: object) -> Edit:
    """dcgmi health answers so."""
    said = {"body": {"Overall Health": {"value": overall}, **body}}
    return lambda node: node.say("dcgmi", json.dumps(said), words="health")


def says(text: str, rc: int = 0, *, hangs: bool = False) -> Edit:
    """dcgmi health answers with that."""
    return lambda node: node.say("dcgmi", text, words="health", rc=rc, hangs=hangs)


def no_gpus(node: FakeNode) -> None:
    """A node without GPUs."""
    node.profile = replace(node.profile, gpus=0)


NVLINK = {
    "children": {
        "3": {
            "value": "Failure",
            "children": {
                "NvLink system": {
                    "value": "Failure",
                    "children": {"Errors": {"value": "GPU 3 had 1 NVLink replay errors"}},
                }
            },
        }
    }
}
FAIL3 = {"gpu_ids": "4", "status": "FAIL", "warnings": ["Error using CUDA API cudaMalloc"]}
PERSIST3 = {
    "gpu_ids": "4",
    "status": "FAIL",
    "warnings": [{"warning": "Persistence mode for GPU 4 is currently disabled.", "error_id": 30}],
}
PASS3 = {"gpu_ids": "3", "status": "PASS"}
SKIP3 = {"gpu_ids": "3", "status": "SKIP"}
SUMMARY = json.dumps(
    {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "tests": [
                        {
                            "name": "pcie",
                            "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Pass"}],
                            "test_summary": {"status": "Fail"},
                        }
                    ]
                }
            ]
        }
    }
)
NOT_RUN = json.dumps(
    {
        "DCGM Diagnostic": {
            "tests": [
                {
                    "name": "pcie",
                    "results": [{"entity_group": "GPU", "entity_id": 0, "status": "Not Run"}],
                }
            ]
        }
    }
)
ROWS = [
    Row("all pass", "dcgm_diag", "PASS", when="deep", says="32 tests"),
    Row("the last entity is to be isolated", "dcgm_diag", "FAIL", on(7, 2), when="deep",
        rule="dcgm_diag.isolate", action="replace", gpu="GPU 7", says="memory"),
    Row("to be reset", "dcgm_diag", "FAIL", on(3, 6), when="deep", rule="dcgm_diag.reset",
        action="reset"),
    Row("to be looked at", "dcgm_diag", "FAIL", on(3, 4), when="deep", action="drain"),
    Row("severity unknown to it", "dcgm_diag", "FAIL", on(3, 3), when="deep", action="drain"),
    Row("severity unknown to us", "dcgm_diag", "FAIL", on(3, 77), when="deep", action="drain"),
    Row("no severity", "dcgm_diag", "FAIL", on(3, None), when="deep", action="drain"),
    Row("only a setting", "dcgm_diag", "WARN", on(3, 5, "software"), when="deep",
        rule="dcgm_diag.config"),
    Row("to be watched", "dcgm_diag", "WARN", on(3, 1), when="deep", rule="dcgm_diag.monitor"),
    Row("only the summary fails", "dcgm_diag", "FAIL", diag(SUMMARY), when="deep", action="drain"),
    Row("the node cannot run it", "dcgm_diag", "UNKNOWN", diag(diag4(
        runtime_error="Detected unsupported NVML library"), rc=205), when="deep", says="NVML"),
    Row("no test was run", "dcgm_diag", "UNKNOWN", diag(NOT_RUN), when="deep"),
    Row("no tests at all", "dcgm_diag", "UNKNOWN", diag('{"DCGM Diagnostic": {}}'), when="deep"),
    Row("another form", "dcgm_diag", "UNKNOWN", diag('{"DCGM 5": {"tests": []}}'), when="deep"),
    Row("cut", "dcgm_diag", "UNKNOWN", diag(diag4()[:900]), when="deep"),
    Row("empty", "dcgm_diag", "UNKNOWN", diag("", rc=226), when="deep"),
    Row("it hangs", "dcgm_diag", "UNKNOWN", diag("", hangs=True), when="deep"),
    Row("not installed", "dcgm_diag", "SKIP", lambda n: n.tools.pop("dcgmi"), when="deep"),
    Row("no GPUs", "dcgm_diag", "SKIP", no_gpus, when="deep"),
    Row("version 3 passes", "dcgm_diag", "PASS", diag(diag3(PASS3, SKIP3)), when="deep"),
    Row("version 3, the second fails", "dcgm_diag", "FAIL", diag(diag3(PASS3, FAIL3)),
        when="deep", action="drain", gpu="GPU 4", says="cudaMalloc"),
    Row("version 3, a setting", "dcgm_diag", "WARN", diag(diag3(PERSIST3)), when="deep",
        rule="dcgm_diag.config"),
    Row("healthy", "dcgm_health", "PASS"),
    Row("a warning", "dcgm_health", "WARN", watches("Warning", GPU=NVLINK), says="replay"),
    Row("a failure in service", "dcgm_health", "WARN", watches("Failure", GPU=NVLINK)),
    Row("a failure before it returns", "dcgm_health", "FAIL", watches("Failure", GPU=NVLINK),
        when="return", action="drain", says="GPU 3 had 1 NVLink replay errors"),
    Row("switched off", "dcgm_health", "SKIP", says(
        "Error: Health watches not enabled. Please enable watches. \n", rc=255)),
    Row("no engine", "dcgm_health", "UNKNOWN", says(
        "Error: unable to establish a connection to the specified host: localhost\n", rc=234)),
    Row("another word", "dcgm_health", "UNKNOWN", watches("Excellent")),
    Row("it hangs", "dcgm_health", "UNKNOWN", says("", hangs=True)),
    Row("not installed", "dcgm_health", "SKIP", lambda n: n.tools.pop("dcgmi")),
    Row("no GPUs", "dcgm_health", "SKIP", no_gpus),
]  # fmt: skip
