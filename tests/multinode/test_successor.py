"""A job that may not be requeued is followed by another, and by one only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.programs import put
from tests.harness.training import ENDED, Training, submit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from muster.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow]  # ./run multinode


@pytest.fixture
def successors(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """The cluster of a site that wants successors."""
    path = cluster.folder.path / "site.yaml"
    before = path.read_text()
    path.write_text(f"{before}submit_successor: true\n")
    yield cluster
    path.write_text(before)


def test_of_two_successors_one_is_refused(
    successors: LocalCluster, ten_lines: Path, tmp_path: Path
) -> None:
    """An sbatch that answers too late has submitted all the same: both start at the same time."""
    jobs = tmp_path / "submitted"
    late = put(tmp_path / "bin", "sbatch", f'PATH=${{PATH#*:}}\nsbatch "$@" >>"{jobs}"\n'
               f'sbatch "$@" >>"{jobs}"\ntail -n 1 "{jobs}"\n')  # fmt: skip
    script = ten_lines / "run.sbatch"
    script.write_text(
        script.read_text().replace("exec ", f'export PATH="{late.parent}:$PATH"\nexec ')
    )
    first = submit(successors, ten_lines, "--", "60", options=["--no-requeue"])
    first.wait_step(8)
    (ten_lines / "train.sh").write_text("exit 1\n")  # an edit that nobody asked to run
    successors.exec(["scancel", "--batch", "--signal=USR1", first.job])
    first.wait_event("successor_submitted")
    first.wait("both successors", lambda: len(jobs.read_text().split()) == 2)
    two = [
        Training(successors, job, first.run_dir, first.output) for job in jobs.read_text().split()
    ]
    assert first.wait_end() == "done", first.story()
    ends = {one.wait_state(ENDED): one for one in two}
    assert set(ends) == {"COMPLETED", "FAILED"}, first.story()
    said = first.output.read_text()  # successors append to it
    assert said.count("is training here") + said.count("another job starts here now") == 1
    owners = [event["job"] for event in first.events("supervisor_started")]
    assert owners == [first.job, ends["COMPLETED"].job]
    assert sorted(first.curve()) == list(range(1, 61))
