"""Real exporters, a real Prometheus and a real Slurm: a node's figures know which job is there."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.debs import download
from tests.harness.fixtures import slurm_here
from tests.harness.private_network import PrivateNetwork
from tests.harness.private_root import ROOT
from tests.harness.small_cluster import CONTROLLER, WORKER, SmallCluster

__all__ = ["slurm_here"]

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo ./run lifecycle"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("pgrep", "ssh-keygen"))),
        reason="needs the packages procps and openssh-client",
    ),
]
PAGE = ROOT / "docs" / "how-to" / "monitor_a_cluster.md"
ASK = """
import json, os, urllib.parse, urllib.request
query = urllib.parse.urlencode({"query": os.environ["QUERY"]})
url = "http://127.0.0.1:9090/api/v1/query?" + query
print(urllib.request.urlopen(url, timeout=20).read().decode())
"""
# What the DCGM exporter says of a GPU, with the job that our prolog put into its folder.
GPU = """
import http.server, pathlib
pathlib.Path("/run/muster/gpu_jobs/0").write_text("77\\n")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        job = pathlib.Path("/run/muster/gpu_jobs/0").read_text().strip()
        self.wfile.write(f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",hpc_job="{job}"}} 93\\n'.encode())
http.server.HTTPServer(("10.9.0.11", 9400), Answer).serve_forever()
"""
DCGM_TARGET = '[{"targets": ["10.9.0.11:9400"], "labels": {"node": "n1"}}]'


@pytest.fixture(scope="module")
def cluster(slurm_here: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    with PrivateNetwork() as network:
        one = SmallCluster(tmp_path_factory.mktemp("figures"), network)
        one.describe(monitoring={"enabled": True})
        download(one.shared / "debs", "prometheus", "prometheus-node-exporter")
        take = "cp /mnt/debs/*.deb /var/cache/apt/archives/; "
        figures = " --only node_exporter"
        one.create(
            head=f"{take}{CONTROLLER}{figures} --only prometheus",
            n1=f"{take}{WORKER}{figures}",
            n2=f"{take}{WORKER}{figures}",
        )
        yield one


def ask(cluster: SmallCluster, query: str) -> list[dict[str, Any]]:
    """What Prometheus answers: labels of each figure, and its value."""
    answer = json.loads(cluster.works("head", 'python3 -c "$CODE"', CODE=ASK, QUERY=query))
    assert answer["status"] == "success", answer
    return [{**row["metric"], "value": row["value"][1]} for row in answer["data"]["result"]]


def until(condition: Callable[[], object], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(1)


@pytest.mark.slow
def test_a_nodes_figures_carry_its_job_as_long_as_it_runs(cluster: SmallCluster) -> None:
    def nodes(query: str) -> set[str]:
        return {row["node"] for row in ask(cluster, query)}

    until(lambda: nodes('up{job="node"} == 1') == {"head", "n1", "n2"}, lambda: ask(cluster, "up"))
    assert nodes("slurm_job_info") == set()
    submit = "sbatch --parsable --chdir=/ --output=/dev/null -w n1 --wrap 'sleep 600'"
    job = cluster.works("head", submit).strip()
    queries = re.findall(r"^\|.*\| `(.+)` \|$", PAGE.read_text(), re.MULTILINE)
    (load,) = [query for query in queries if query.startswith("node_load1 ")]
    of_job = load.replace("4711", job)
    until(lambda: ask(cluster, of_job), lambda: ask(cluster, "slurm_job_info"))
    (row,) = ask(cluster, of_job)
    assert float(row.pop("value")) >= 0
    labels = {key: row[key] for key in ("node", "group", "role", "slurm_job", "user")}
    expected = {"node": "n1", "group": "compute", "role": "compute", "slurm_job": job}
    assert labels == {**expected, "user": "root"}
    # Whatever the page tells people to ask is a question that Prometheus understands.
    assert len(queries) >= 6
    for query in queries:
        ask(cluster, query.replace("4711", job))
    cluster.works("head", f"scancel {job}")
    until(lambda: not ask(cluster, of_job), lambda: ask(cluster, "slurm_job_info"))
    assert nodes("node_load1") == {"head", "n1", "n2"}  # figures go on without a job


@pytest.mark.slow
def test_figures_of_gpus_name_the_job_as_all_others_do(cluster: SmallCluster) -> None:
    exporter = 'setsid python3 -c "$CODE" </dev/null >/dev/null 2>&1 &'
    cluster.works("n1", exporter, CODE=GPU)  # it ends with the machine
    cluster.works("head", f"echo '{DCGM_TARGET}' >/etc/prometheus/muster/gpu.json")
    until(lambda: ask(cluster, "DCGM_FI_DEV_GPU_UTIL"), lambda: ask(cluster, "up"))
    (row,) = ask(cluster, 'avg by (node, slurm_job) (DCGM_FI_DEV_GPU_UTIL{slurm_job="77"})')
    assert row == {"node": "n1", "slurm_job": "77", "value": "93"}
    assert "hpc_job" not in ask(cluster, "DCGM_FI_DEV_GPU_UTIL")[0]
