"""muster run --docker: what Docker is told, as the shell of a rank says it; what is left behind."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.errors import ConfigError, UnavailableError, UsageError
from muster.image.preflight import Node
from resume.container import Container, wanted
from resume.container_preflight import require_startable
from resume.launch import LaunchPlan, environment, srun_argv

Program = Callable[[str, str], Path]
ROOT = Path(__file__).resolve().parents[2]
EPILOG = ROOT / "containers/docker/epilog.d/muster_docker.sh"
RANK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1", "RANK": "3", "USER": "me", "HOME": "/home/me"}


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return LaunchPlan(
        run_dir=tmp_path / "run", recipe_dir=tmp_path / "a b", attempt=2, token=5,
        command="python train.py --name 'x y' \"$RANK\"", nodes=("n1", "n3"), ranks_per_node=4,
        cpus_per_rank=None, resume=None, beat_dir=Path("/dev/shm/muster-0/7.1.1"),
        master_addr="10.0.0.1", master_port=29_123,
        container=Container("nvcr.io/a:1", ("/data:/d:ro",), ("HF_HOME",), docker=True),
    )  # fmt: skip


def told(plan: LaunchPlan, program: Program) -> list[str]:
    """The words that docker gets from the shell of a rank."""
    program("docker", 'printf "%s\\0" "$@"')
    env = {**os.environ, **environment(plan), **RANK}
    argv = ["bash", "-c", environment(plan)["MUSTER_COMMAND"]]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.split("\0")[:-1]


def test_what_docker_is_told(plan: LaunchPlan, program: Program) -> None:
    words = told(plan, program)
    image = words.index("nvcr.io/a:1")
    assert words[0] == "run"
    assert words[image + 1 :] == ["-c", plan.command]
    options = words[1:image]
    assert {
        "--rm", "--network=host", "--ipc=host", "--pid=host", "--gpus=all", "--entrypoint=bash",
        f"--user={os.getuid()}:{os.getgid()}", "--name=muster-7-5-2-3", "--label=muster.job=7",
        f"--workdir={plan.run_dir}/recipe", "--ulimit=memlock=-1", "--ulimit=stack=-1",
    } <= set(options)  # fmt: skip
    assert [word for word in options if word.startswith("--mount=")] == [
        f"--mount=type=bind,source={ROOT},target={ROOT},readonly",
        f"--mount=type=bind,source={plan.recipe_dir},target={plan.recipe_dir}",
        f"--mount=type=bind,source={plan.run_dir},target={plan.run_dir}",
        "--mount=type=bind,source=/data,target=/d,readonly",
    ]


def test_by_its_variables_a_guard_finds_a_rank(plan: LaunchPlan, program: Program) -> None:
    given = {word[6:] for word in told(plan, program) if word.startswith("--env=")}
    asked_for = {"MUSTER_RUN_DIR", "MUSTER_ATTEMPT", "SLURM_STEP_ID", "MUSTER_BEAT_DIR", "RANK"}
    assert asked_for | {"HF_HOME", "PYTHONPATH", "HOME=/tmp", "USER"} <= given
    assert not given & {"MUSTER_COMMAND", "MUSTER_LOG_DIR", "PATH", "LD_LIBRARY_PATH"}


def test_without_gpus(plan: LaunchPlan, program: Program) -> None:
    assert plan.container is not None
    bare = dataclasses.replace(plan.container, gpus=False)
    words = told(dataclasses.replace(plan, container=bare), program)
    assert "--gpus=all" not in words
    assert "--env=NVIDIA_VISIBLE_DEVICES" in words


def test_a_signal_for_the_rank_reaches_docker(plan: LaunchPlan) -> None:
    assert environment(plan)["MUSTER_COMMAND"].startswith("exec docker run ")


def test_infiniband_where_the_node_has_it(
    plan: LaunchPlan, program: Program, tmp_path: Path
) -> None:
    device = tmp_path / "infiniband"
    line = environment(plan)["MUSTER_COMMAND"].replace("/dev/infiniband", str(device))
    program("docker", 'printf "%s\\n" "$@"')
    argv, env = ["bash", "-c", line], {**os.environ, **environment(plan), **RANK}
    for there in (False, True):
        said = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        assert (f"--device={device}" in said) is there
        assert "" not in said[: said.index("nvcr.io/a:1")]  # no empty word in place of it
        device.mkdir(exist_ok=True)


def test_srun_knows_nothing_of_it(plan: LaunchPlan) -> None:
    assert [word for word in srun_argv(plan) if word.startswith("--") and "container" in word] == []


def test_the_sites_fabric_variables(plan: LaunchPlan, program: Program, tmp_path: Path) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text("#!/bin/sh\n[ $1 = print ] && echo 'NCCL_NET=AWS Libfabric'\n")
    hook.chmod(0o755)
    line = environment(plan)["MUSTER_COMMAND"]
    assert "/etc/enroot/hooks.d/20-muster-fabric.sh print" in line
    line = line.replace("/etc/enroot/hooks.d/20-muster-fabric.sh", str(hook))
    program("docker", 'while [ $# -gt 0 ]; do [ "$1" != --env-file ] || cat "$2"; shift; done')
    env = {**os.environ, **environment(plan), **RANK}
    done = subprocess.run(
        ["bash", "-c", line], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "NCCL_NET=AWS Libfabric\n"


def test_what_docker_cannot_do_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.sqsh").touch()
    with pytest.raises(UsageError, match="docker load it"):
        wanted("./a.sqsh", [], [], {}, tmp_path, docker=True)
    with pytest.raises(ConfigError, match="'ro' alone"):
        wanted("a:1", [f"{tmp_path}:/d:ro+rbind"], [], {}, tmp_path, docker=True)
    with pytest.raises(ConfigError, match="--image"):
        wanted(None, [], [], {}, tmp_path, docker=True)
    found = wanted("nvcr.io#nvidia/a:1", [f"{tmp_path}:/d:ro"], [], {}, tmp_path, docker=True)
    assert found == Container("nvcr.io/nvidia/a:1", (f"{tmp_path}:/d:ro",), gpus=False, docker=True)


def test_a_daemon_that_does_not_answer(program: Program) -> None:
    container = Container("a:1", docker=True)
    program("docker", "exit 0")
    require_startable(container, Node())
    program("docker", "echo 'permission denied' >&2; exit 1")
    with pytest.raises(UnavailableError, match=r"permission denied.*group docker"):
        require_startable(container, Node())


def epilog(job: str, path: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": f"{path}:/usr/bin:/bin", "SLURM_JOB_ID": job}
    done = subprocess.run(
        ["bash", str(EPILOG)], env=env, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0
    return done


def test_the_epilog_ends_what_a_job_left(program: Program, tmp_path: Path) -> None:
    log = tmp_path / "log"
    said = f'echo "$*" >>{log}; [ "$1" != ps ] || {{ echo c1; echo c2; }}'
    folder = str(program("docker", said).parent)
    assert "job 7 left 2 containers" in epilog("7", folder).stderr
    assert log.read_text().splitlines() == [
        "ps --quiet --no-trunc --filter label=muster.job=7", "kill c1 c2",
    ]  # fmt: skip
    program("docker", f'echo "$*" >>{log}')
    assert epilog("8", folder).stderr == ""
    assert len(log.read_text().splitlines()) == 3
    assert "Fix: call it as an epilog" in epilog("7; rm", folder).stderr
    program("docker", "exit 1")
    epilog("7", folder)
