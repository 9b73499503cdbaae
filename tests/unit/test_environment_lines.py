"""The lines of the page for a container, Docker, a virtual environment and conda, typed in a shell.

A small sbatch writes down what it gets: the words after the script go to the real `muster run`, the
variables to the job, as Slurm does. Docker's line is run on by a stand-in for docker, which takes
the words of the real one and no other.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from resume import cli
from resume.container import Container, wanted
from resume.launch import LaunchPlan, environment

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests/containers/fake"
PAGE = ROOT / "docs/how-to/use_images.md"
IMAGE = "/shared/images/pytorch-25.12-1.sqsh"
SBATCH = """#!/usr/bin/env python3
import json, os, sys
json.dump([sys.argv[1:], dict(os.environ)], open(os.environ["SAID"], "w"))
"""


def lines() -> dict[str, str]:
    """{environment: the line} of the page."""
    table = PAGE.read_text("utf-8").partition("| environment | line |")[2].partition("\n\n")[0]
    return dict(re.findall(r"^\| ([\w ]+) \| `([^`]+)` \|$", table, re.MULTILINE))


def typed(name: str, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    """What sbatch gets of a line: the words, and the variables for the job."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/sbatch").write_text(SBATCH)
    (tmp_path / "bin/sbatch").chmod(0o755)
    line = lines()[name]
    for place in (IMAGE, "/shared/data", "/shared/envs/torch"):
        line = line.replace(place, f"{tmp_path}{place}")
    env = {"PATH": f"{tmp_path}/bin:{FAKE}:/usr/bin:/bin", "SAID": str(tmp_path / "said")}
    subprocess.run(["bash", "-c", line], env=env, cwd=tmp_path, check=True, timeout=300)
    words, given = json.loads((tmp_path / "said").read_text())
    assert words[0] == "run.sbatch"
    return words[1:], given


def container(words: list[str], tmp_path: Path) -> Container:
    """What `muster run` makes of them."""
    (tmp_path / "shared/data").mkdir(parents=True, exist_ok=True)
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    given = parser.parse_args(["run", *words])
    asked = (given.image, given.mount, given.env, {"SLURM_GPUS_ON_NODE": "8"}, tmp_path)
    found = wanted(*asked, docker=given.docker)
    assert found is not None
    return found


def test_a_container(tmp_path: Path) -> None:
    words, _ = typed("container", tmp_path)
    image = Path(f"{tmp_path}{IMAGE}")
    image.parent.mkdir(parents=True)
    image.touch()
    data = f"{tmp_path}/shared/data:{tmp_path}/shared/data:ro"
    assert container(words, tmp_path) == Container(str(image), (data,))


def test_docker(tmp_path: Path) -> None:
    words, _ = typed("Docker", tmp_path)
    found = container(words, tmp_path)
    run, mine = tmp_path / "run", tmp_path / "mine"
    (run / "recipe").mkdir(parents=True)
    mine.mkdir()
    command = "echo $IN_DOCKER $PWD $RANK $MUSTER_ATTEMPT ${ONLY_OUTSIDE-none} 'a  b'"
    plan = LaunchPlan(
        run_dir=run, recipe_dir=mine, attempt=3, token=1, command=command, nodes=("n1",),
        ranks_per_node=1, cpus_per_rank=None, resume=None, beat_dir=run, master_addr="n1",
        master_port=29_000, container=found,
    )  # fmt: skip
    rank = {"RANK": "0", "SLURM_JOB_ID": "7", "ONLY_OUTSIDE": "1", "PATH": f"{FAKE}:/usr/bin:/bin"}
    env = {**os.environ, **environment(plan), **rank}
    argv = ["bash", "-c", env["MUSTER_COMMAND"]]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"nvcr.io/nvidia/pytorch:25.12-py3 {run}/recipe 0 3 none a  b\n"


def test_a_virtual_environment(tmp_path: Path) -> None:
    """A real one."""
    folder = f"{tmp_path}/shared/envs/torch"
    make = [sys.executable, "-m", "venv", "--without-pip", folder]
    subprocess.run(make, check=True, timeout=300)
    words, given = typed("virtual environment", tmp_path)
    assert words == []
    assert shutil.which("python", path=given["PATH"]) == f"{folder}/bin/python"


def test_conda(tmp_path: Path) -> None:
    folder = tmp_path / "shared/envs/torch/bin"
    folder.mkdir(parents=True)
    (folder / "python").symlink_to(sys.executable)
    words, given = typed("conda", tmp_path)
    assert words == []
    assert shutil.which("python", path=given["PATH"]) == str(folder / "python")
    assert given["CONDA_PREFIX"] == str(folder.parent)


def test_every_line_of_the_page_is_typed() -> None:
    assert set(lines()) == {"container", "Docker", "virtual environment", "conda"}


def refused(program: str, *words: str) -> str:
    argv = [str(FAKE / program), *words]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0
    return done.stderr


def test_the_stand_ins_refuse_what_the_real_ones_do() -> None:
    assert "unknown flag: --gpu" in refused("docker", "run", "--gpu=all", "a:1")
    assert "unknown flag: --mounts" in refused("docker", "run", "--mounts=a", "a:1")
    assert "does not exist" in refused(
        "docker", "run", "--mount=type=bind,source=/no/such,target=/a", "a:1"
    )
    assert "invalid reference" in refused("docker", "run", "--rm", "./a.sqsh")
    assert "unrecognized arguments" in refused("conda", "run", "-p", "/", "--env", "a", "true")
    assert "Not a conda environment" in refused("conda", "run", "-p", "/no/such", "true")


@pytest.mark.may_skip("needs Docker's client, which not every machine has")
def test_the_options_are_those_of_a_real_docker() -> None:
    if shutil.which("docker") is None:
        pytest.skip("no docker here")
    said = subprocess.run(
        ["docker", "run", "--help"], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    real = set(re.findall(r"^\s+(?:-\w, )?--([a-z0-9-]+)", said, re.MULTILINE))
    table = (ROOT / "tests/data/containers/docker_run_options.yaml").read_text("utf-8")
    ours = set(re.findall(r"^([a-z0-9-]+): ", table, re.MULTILINE))
    given = {"rm", "network", "ipc", "pid", "ulimit", "env", "gpus", "mount", "workdir", "user",
             "name", "label", "env-file", "device", "entrypoint"}  # fmt: skip
    assert given <= real & ours
    assert ours - real <= {"kernel-memory", "disable-content-trust"}  # which are on their way out
