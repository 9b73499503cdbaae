"""Burn-in in pairs on a real Slurm: a node that sums wrong and one with a slow cable are blamed."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from healthcheck.deep.pairs import Blame, Pair, blame, rounds
from muster.cluster import LocalCluster
from tests.harness import sick_torch
from tests.harness.nodes import add_to_site

pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow]

SLOW_CABLE = "tc qdisc add dev eth0 root tbf rate 4mbit burst 32kbit latency 400ms"


def passed(cluster: LocalCluster, pair: Pair) -> bool | None:
    """What `muster check --when pair` says on both nodes; None: it did not say."""
    srun = ["srun", "-N2", "-n2", "--ntasks-per-node=1", "-w", ",".join(pair), "--exclusive"]
    check = ["muster", "check", "--when", "pair", "--json"]
    done = cluster.exec([*srun, *check], timeout_s=900)
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    said = [line["status"] for line in lines if line.get("check") == "pair_allreduce"]
    print(pair, [line["detail"] for line in lines if "detail" in line], done.err[-300:])
    if "FAIL" in said:
        return False
    return True if said == ["PASS", "PASS"] else None


def test_a_corrupt_and_a_slow_node_are_found_and_no_other(
    make_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = make_cluster(nodes=6, settings=(("HealthCheckInterval", "0"),))
    profile = tmp_path / "profile.yaml"
    profile.write_text("gpus: 8\ngpus_on_pci: false\nslurm_sizes: false\npair_busbw_gb_s: 0.002\n")
    python = sick_torch.make(tmp_path / "sick", hosts="n2", corrupt=True)
    keys = {"profile": str(profile), "deep_python": [str(python)], "deep_pair_s": 280}
    add_to_site(cluster, **keys, deep_tcp_s=0.3)
    assert cluster.exec(["on-node", "n5", "bash", "-c", SLOW_CABLE]).ok
    results: dict[Pair, bool | None] = {}
    for one in rounds([f"n{i}" for i in range(1, 7)], 3):
        with ThreadPoolExecutor(len(one)) as pool:
            said = pool.map(lambda pair: passed(cluster, pair), one)
            results.update(zip(one, said, strict=True))
    assert None not in results.values(), results
    assert blame(results) == Blame(["n2", "n5"], [])
