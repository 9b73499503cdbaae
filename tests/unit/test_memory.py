"""The kernel's count of processes that it ended for want of memory, wherever it keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

from resume.memory import kills

VMSTAT = "pgfault 7\noom_kill 40\nthp 1\n"
V2 = "0::/system.slice/slurmstepd.scope/job_12/step_3/user/task_0\n"
V1 = "5:cpuset:/slurm/uid_0/job_12/step_3\n4:memory:/slurm/uid_0/job_12/step_3\n0::/init\n"

CASES: dict[str, tuple[dict[str, str], int | None]] = {
    "nothing is known": ({}, None),
    "the node's counter": ({"proc/vmstat": VMSTAT, "proc/self/cgroup": "0::/init.scope\n"}, 40),
    "the job's own, v2": ({
        "proc/vmstat": VMSTAT, "proc/self/cgroup": V2,
        "sys/fs/cgroup/system.slice/slurmstepd.scope/job_12/memory.events": "oom 2\noom_kill 3\n",
    }, 3),
    "all steps of the job, v1": ({
        "proc/vmstat": VMSTAT, "proc/self/cgroup": V1,
        "sys/fs/cgroup/memory/slurm/uid_0/job_12/memory.oom_control": "under_oom 0\noom_kill 0\n",
        "sys/fs/cgroup/memory/slurm/uid_0/job_12/step_3/memory.oom_control": "oom_kill 2\n",
        "sys/fs/cgroup/memory/slurm/uid_0/job_12/step_4/memory.oom_control": "oom_kill 1\n",
    }, 3),
    "a job without a counter": ({"proc/vmstat": VMSTAT, "proc/self/cgroup": V2}, 40),
    "an old kernel": ({"proc/vmstat": "pgfault 7\n"}, None),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_kills(name: str, tmp_path: Path) -> None:
    files, wanted = CASES[name]
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert kills(tmp_path) == wanted
