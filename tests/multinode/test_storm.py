"""A short storm: faults at random moments, and the training is the one that nobody disturbed.

./run faults --storm --seed 7 --minutes 30 --every 20     a long one
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from muster.cluster import LocalCluster
from tests.faults import fault, twin
from tests.faults.storm import STORM_SHAPE, Storm

pytestmark = [pytest.mark.cluster, pytest.mark.torch]


@pytest.mark.parametrize("seed", [1])
def test_storm(seed: int, slurm_here: None, tmp_path: Path) -> None:
    wild = [one for one in fault.discover().values() if one.storm]
    cluster = LocalCluster(f"s{os.getpid()}", STORM_SHAPE)
    cluster.up(owner_pid=os.getpid())
    try:
        recipe = twin.discover()["llama2_fsdp"]
        result = Storm(cluster, recipe, wild, tmp_path / "storm", seed, 0.8, 12).rage()
    finally:
        cluster.down()
    assert not result["problems"], result
