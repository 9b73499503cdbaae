"""What holds for every test: where the repository is, and when a test may be skipped.

A missing daemon or library is a skip on somebody's laptop, and a failure in CI: a green run there
means that everything ran. A test that CI cannot run says why: `@pytest.mark.may_skip("no GPU")`.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

IN_CI = os.environ.get("CI") == "true"
ROOT = Path(__file__).resolve().parents[1]
NEED_A_CLUSTER = (
    *("tests/cluster/", "tests/multinode/", "tests/containers/"),
    *("tests/docs/test_commands.py", "tests/lifecycle/test_created_"),
)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The root of the repository under test."""
    return ROOT


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Of two processes one has all tests that need a cluster: two clusters would starve.

    The others go file by file, so that what a file's tests share is made once.
    """
    from xdist.scheduler import LoadScopeScheduling  # only where tests run side by side

    class ByNeed(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "cluster" if file.startswith(NEED_A_CLUSTER) else file

    return ByNeed(config, log)


@pytest.fixture(autouse=True)
def own_priority() -> Generator[None]:
    """No test makes this process nicer: all later ones, and their clusters, would starve."""
    before = os.nice(0)
    yield
    assert os.nice(0) == before


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("torch") and importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed. Fix: ./run tests")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if IN_CI and report.skipped and not expected_to_fail:
        allowed = item.get_closest_marker("may_skip")
        if not (allowed and allowed.args):
            fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        fail_a_skip(report)
    return report


def fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that says why it was skipped."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"CI does not skip, and this is not marked may_skip(reason). {reason}"
