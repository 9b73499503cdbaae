"""A fit node whose probes fail at random is never drained: ten thousand periodic runs.

Time-outs, empty answers, Slurm that is away, files that cannot be read, folders that hang. The node
itself stays fit all the time, so whatever would drain it is a false alarm.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any, Optional

import pytest

from healthcheck import registry
from healthcheck.facts import Facts
from healthcheck.finding import Finding
from muster.process import Completed
from tests.harness.fake_tools import good
from tests.harness.fake_tools.node import FakeEnv, FakeNode

OFTEN = 0.05
"""Share of probes that fail: far more than on any real node, so that rare pairs happen too."""


# Checks that still take what they could not read for gone; delete a name when it does no longer.
NOT_YET: set[str] = set()


class Unreliable(FakeEnv):
    """The door to a fit node, through which one look in twenty goes wrong."""

    def __init__(self, node: FakeNode, limit_s: float, chance: random.Random) -> None:
        super().__init__(node, limit_s)
        self._chance = chance
        self.failed = 0

    def _fails(self) -> bool:
        failed = self._chance.random() < OFTEN
        self.failed += failed
        return failed

    def run(self, argv: list[str], timeout_s: float) -> Completed:
        if not self._fails():
            return super().run(argv, timeout_s)
        return self._chance.choice([
            Completed(-signal.SIGKILL, "", "", timed_out=True),
            Completed(0, "", "", timed_out=False),
            Completed(1, "", "slurm_load_node error: Unable to contact slurm controller", False),
            Completed(126, "", f"{argv[0]}: Resource temporarily unavailable", timed_out=False),
        ])  # fmt: skip

    def read_bytes(self, path: str, count: int) -> Optional[bytes]:
        if not self._fails():
            return super().read_bytes(path, count)
        return self._chance.choice([None, b""])

    def entries(self, path: str) -> Optional[list[str]]:
        return None if self._fails() else super().entries(path)

    def link(self, path: str) -> Optional[str]:
        return None if self._fails() else super().link(path)

    def records(self, path: str) -> Optional[str]:
        return self._chance.choice([None, ""]) if self._fails() else super().records(path)

    def space(self, paths: Sequence[str], timeout_s: float) -> dict[str, Optional[dict[str, Any]]]:
        found = super().space(paths, timeout_s)
        return {
            path: self._chance.choice([None, {}, {"error": 5}]) if self._fails() else answer
            for path, answer in found.items()
        }

    def clock_synchronised(self) -> Optional[bool]:
        return None if self._fails() else super().clock_synchronised()

    def remembered(self, name: str) -> Optional[str]:
        return self._chance.choice([None, "", "{"]) if self._fails() else super().remembered(name)


def drains(finding: Finding) -> bool:
    """Whether this finding alone would have the node drained."""
    return (
        finding.status == "FAIL"
        and finding.check not in NOT_YET
        and finding.class_ in ("hardware", "network")
        and finding.action != "none"
    )


def blamed(runs: int, seed: int) -> tuple[Counter[str], int]:
    """What would have drained a fit node in so many runs, and how many probes failed."""
    chance, node, wrong, failed = random.Random(seed), good.node(), Counter[str](), 0
    checks = [one for one in registry.discover() if "periodic" in one.when]
    for _ in range(runs):
        node.now += 300
        door = Unreliable(node, registry.LIMIT_S["periodic"], chance)
        facts = Facts(door, node.profile, node.site, when="periodic", node="n3")
        found = registry.run_checks(checks, facts)
        wrong.update(f"{f.check}: {f.detail}" for f in found if drains(f))
        failed += door.failed
    return wrong, failed


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_fit_node_with_failing_probes_is_not_drained(seed: int) -> None:
    wrong, failed = blamed(100, seed)
    assert wrong == Counter()
    assert failed > 1000  # they did fail


@pytest.mark.slow
def test_ten_thousand_runs() -> None:
    wrong, failed = blamed(10_000, 20_261_129)
    assert wrong == Counter()
    assert failed > 100_000


def test_a_real_fault_among_failing_probes_is_found() -> None:
    """The test above would pass on a blind checker too: this one would not."""
    chance, node = random.Random(4), good.node()
    node.files["/sys/devices/system/edac/mc/mc7/ue_count"] = "1"
    seen = 0
    for _ in range(20):
        facts = Facts(
            Unreliable(node, 45.0, chance), node.profile, node.site, when="periodic", node="n3"
        )
        seen += any(drains(f) for f in registry.run_checks(registry.discover(), facts))
    assert seen >= 15
