"""One launch: what srun is told, what a rank finds in its environment, what its end leaves."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from resume.launch import _RANK_SH, LaunchPlan, environment, launch, srun_argv
from resume.step import parse

LONG = 30.0
Program = Callable[[str, str], Path]


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    (tmp_path / "beats").mkdir()
    return LaunchPlan(
        run_dir=tmp_path / "run", recipe_dir=tmp_path / "my recipe", attempt=3, token=2,
        command="echo $RANK of $WORLD_SIZE", nodes=("n1", "n3"), ranks_per_node=4,
        cpus_per_rank=6, resume=None, beat_dir=tmp_path / "beats", master_addr="10.0.0.1",
        master_port=29_123,
    )  # fmt: skip


def test_srun_line(plan: LaunchPlan) -> None:
    argv = srun_argv(plan)
    assert {
        "--overlap", "--no-kill", "--kill-on-bad-exit=1", "--nodes=2", "--ntasks=8",
        "--ntasks-per-node=4", "--nodelist=n1,n3", "--cpus-per-task=6", "--input=none",
        f"--chdir={plan.run_dir}/recipe",
    } <= set(argv)  # fmt: skip
    assert argv[-3:] == ["sh", "-c", _RANK_SH]
    assert not any(
        "cpus-per" in w for w in srun_argv(dataclasses.replace(plan, cpus_per_rank=None))
    )


def test_srun_line_of_a_user_keeps_his_options(plan: LaunchPlan, tmp_path: Path) -> None:
    words = ["-l", "--gres=gpu:2", "--export=NONE", "-N2", "-w", "n7,n8", "--", "python", "a b.py"]
    step = parse(words, {}, 4, tmp_path)
    argv = srun_argv(dataclasses.replace(plan, step=step, command=step.program))
    ours = ["--nodes=2", "--ntasks=8", "--ntasks-per-node=4", "--nodelist=n1,n3"]
    assert argv[:3] == ["srun", "-l", "--gres=gpu:2"]
    assert set(ours) | {"--overlap", "--no-kill", f"--chdir={tmp_path}"} <= set(argv)
    assert not any(word.startswith(("--output", "--input", "--cpu-bind")) for word in argv)
    (export,) = (word for word in argv if word.startswith("--export"))
    assert {"MUSTER_COMMAND", "MUSTER_BEAT_DIR", "PYTHONPATH"} <= set(export[9:].split(","))


def test_variables_of_the_allocation_do_not_bend_the_step(
    plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_EXPORT_ENV", "NONE")
    monkeypatch.setenv("SLURM_NTASKS", "99")
    assert not {"SLURM_EXPORT_ENV", "SLURM_NTASKS"} & environment(plan).keys()


@pytest.mark.parametrize(
    ("resume", "said"), [(None, ""), (Path("/c/step_00000005"), "/c/step_00000005")]
)
def test_environment_of_the_contract(resume: Path | None, said: str, plan: LaunchPlan) -> None:
    found = environment(dataclasses.replace(plan, resume=resume))
    assert found["MUSTER_RESUME"] == said
    assert {key: found[key] for key in found if key.startswith(("MUSTER_", "MASTER_"))} == {
        "MUSTER_RUN_DIR": str(plan.run_dir), "MUSTER_RECIPE_DIR": str(plan.recipe_dir),
        "MUSTER_ATTEMPT": "3", "MUSTER_TOKEN": "2", "MUSTER_RESUME": said, "MUSTER_SKIP": "",
        "MUSTER_BEAT_DIR": str(plan.beat_dir), "MUSTER_COMMAND": plan.command,
        "MUSTER_LOG_DIR": str(plan.log_dir),
        "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29123",
    }  # fmt: skip
    assert found["LOCAL_WORLD_SIZE"] == "4"


def rank(plan: LaunchPlan, command: str) -> subprocess.Popen[bytes]:
    """What srun starts as rank 5."""
    numbers = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    env = {**environment(dataclasses.replace(plan, command=command)), **numbers}
    env["MUSTER_LOG_DIR"] = ""  # as for a user's own srun line: output goes where srun's goes
    return subprocess.Popen(["sh", "-c", _RANK_SH], env=env, stdout=subprocess.PIPE)


@pytest.mark.parametrize("folder", ["plain", "a b", "back\\slash %t", "$HOME;'"])
def test_a_rank_writes_its_own_log(folder: str, plan: LaunchPlan, tmp_path: Path) -> None:
    plan = dataclasses.replace(plan, run_dir=tmp_path / folder, command="echo out; echo err >&2")
    plan.log_dir.mkdir(parents=True)
    env = {**environment(plan), "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    subprocess.run(["sh", "-c", _RANK_SH], env=env, check=True)
    assert (plan.log_dir / "rank_5.log").read_text() == "out\nerr\n"


def test_a_log_that_cannot_be_written_is_storage_trouble(plan: LaunchPlan, tmp_path: Path) -> None:
    plan = dataclasses.replace(plan, run_dir=tmp_path / "gone")
    env = {**environment(plan), "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8"}
    done = subprocess.run(["sh", "-c", _RANK_SH], env=env, check=False, stderr=subprocess.PIPE)
    assert done.returncode == 74
    assert (plan.beat_dir / "rank_5.exit").read_text() == "74\n"


@pytest.mark.parametrize(
    ("command", "code"),
    [("exit 0", 0), ("exit 78", 78), ("kill -9 $$", 137), ("no-such-program", 127),
     ("cd / && exit 3", 3), ("echo 'a b' >/dev/null; false", 1)],
)  # fmt: skip
def test_exit_code_is_left_for_the_guard(command: str, code: int, plan: LaunchPlan) -> None:
    process = rank(plan, command)
    process.communicate(timeout=LONG)
    assert process.returncode == code
    assert (plan.beat_dir / "rank_5.exit").read_text() == f"{code}\n"
    assert [p.name for p in plan.beat_dir.iterdir()] == ["rank_5.exit"]


def test_torch_names(plan: LaunchPlan) -> None:
    process = rank(plan, 'echo "$RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $MASTER_PORT"')
    assert process.communicate(timeout=LONG)[0] == b"5 1 8 4 29123\n"


def test_a_rank_that_slurm_ends_still_leaves_its_code(plan: LaunchPlan) -> None:
    process = rank(plan, "echo up; exec sleep 600")
    assert process.stdout is not None
    with process.stdout as out:
        assert out.readline() == b"up\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):  # Slurm signals all of a step
            os.kill(pid, signal.SIGTERM)
        assert process.wait(LONG) == 143
    assert (plan.beat_dir / "rank_5.exit").read_text() == "143\n"


def test_launch_and_end_leave_no_child(plan: LaunchPlan, program: Program, tmp_path: Path) -> None:
    program(
        "srun", f'printf "%s\\n" "$@" >{tmp_path}/argv; echo "$MUSTER_ATTEMPT"; sleep 600 & wait'
    )
    launched = launch(plan)
    log, deadline = plan.log_dir / "srun.log", time.monotonic() + LONG
    while log.read_text() != "3\n":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert launched.poll() is None
    launched.end()
    assert launched.poll() == -signal.SIGKILL
    launched.end()
    assert (tmp_path / "argv").read_text().startswith("--overlap\n")
