"""muster run --image: what Pyxis is told, what goes into the container, what is refused before."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from muster.errors import ConfigError, DataError, UsageError
from resume.container import HOME, Container, require_mountable, wanted
from resume.launch import LaunchPlan, contract, environment, srun_argv
from resume.step import parse
from slurm.lint.options import SRUN

GPU = {"SLURM_GPUS_ON_NODE": "8"}


@pytest.fixture
def plan(tmp_path: Path) -> LaunchPlan:
    return LaunchPlan(
        run_dir=tmp_path / "run", recipe_dir=tmp_path / "mine", attempt=1, token=1,
        command="python train.py", nodes=("n1", "n3"), ranks_per_node=4, cpus_per_rank=None,
        resume=None, beat_dir=Path("/dev/shm/muster-0/7.1.1"), master_addr="10.0.0.1",
        master_port=29_123, container=Container("/images/a.sqsh", ("/data:/data:ro",)),
    )  # fmt: skip


def options(plan: LaunchPlan) -> dict[str, str]:
    """{name: value} of what Pyxis is told; its options stand before the program."""
    argv = srun_argv(plan)
    said = [word for word in argv[: argv.index("sh")] if "container" in word]
    return {word.partition("=")[0]: word.partition("=")[2] for word in said}


def test_what_pyxis_is_told(plan: LaunchPlan) -> None:
    run, mine = plan.run_dir, plan.recipe_dir
    own = Path(__file__).resolve().parents[2]
    said = options(plan)
    names = said.pop("--container-env").split(",")
    assert said == {
        "--container-image": "/images/a.sqsh",
        "--container-mounts": f"{own}:{own}:ro,{mine}:{mine},{run}:{run},/data:/data:ro",
        "--container-workdir": f"{run}/recipe",
        HOME: "",
    }
    assert set(names) == {*contract(plan), "PYTHONPATH"}


def test_a_run_without_an_image_is_as_it_was(plan: LaunchPlan) -> None:
    assert options(dataclasses.replace(plan, container=None)) == {}


def test_every_option_is_one_of_pyxis(plan: LaunchPlan) -> None:
    """0.20 to 0.24 know all of them; `muster lint` has the same table."""
    assert {option[2:] for option in options(plan)} <= set(SRUN.takes)


def test_of_the_hosts_python_only_ours_goes_in(
    plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/host/site-packages")
    own = str(Path(__file__).resolve().parents[2])
    assert environment(plan)["PYTHONPATH"] == own
    outside = environment(dataclasses.replace(plan, container=None))
    assert outside["PYTHONPATH"] == f"{own}:/host/site-packages"


def test_a_node_without_gpus_is_no_place_for_nvidias_hook(plan: LaunchPlan) -> None:
    assert "NVIDIA_VISIBLE_DEVICES" not in environment(plan)
    plan = dataclasses.replace(plan, container=Container("/a.sqsh", gpus=False))
    assert environment(plan)["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert "NVIDIA_VISIBLE_DEVICES" in options(plan)["--container-env"].split(",")


@pytest.mark.parametrize(
    ("given", "gpus"),
    [({}, False), (GPU, True), ({"SLURM_JOB_GPUS": "0,1"}, True), ({"SLURM_JOB_GPUS": ""}, False)],
)
def test_gpus_are_those_of_the_job(given: dict[str, str], gpus: bool, tmp_path: Path) -> None:
    found = wanted("nvcr.io#a:1", [], [], given, tmp_path)
    assert found is not None
    assert found.gpus == gpus


@pytest.mark.parametrize("name", ["a.sqsh", "./a.sqsh", "{}/a.sqsh"])
def test_a_file_gets_its_whole_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.sqsh").touch()
    found = wanted(name.format(tmp_path), [], [], GPU, tmp_path)
    assert found == Container(str(tmp_path / "a.sqsh"))


def test_an_image_of_a_registry_is_written_as_enroot_wants_it(tmp_path: Path) -> None:
    found = wanted("nvcr.io/nvidia/pytorch:1", [], [], GPU, tmp_path)
    assert found == Container("docker://nvcr.io#nvidia/pytorch:1")


def test_mounts_and_variables(tmp_path: Path, plan: LaunchPlan) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "data").mkdir()
    data = tmp_path / "data"
    found = wanted("a:1", ["data", f"{data}:/d:ro+rbind"], ["HF_HOME"], GPU, tmp_path)
    assert found is not None
    assert found.mounts == (f"{data}:{data}", f"{data}:/d:ro+rbind")
    said = options(dataclasses.replace(plan, container=found))
    assert said["--container-env"].endswith(",HF_HOME")


def test_no_container(tmp_path: Path) -> None:
    assert wanted(None, [], [], GPU, tmp_path) is None
    with pytest.raises(ConfigError, match="--image"):
        wanted(None, ["/data"], [], GPU, tmp_path)


def test_what_cannot_work_is_refused_before_the_job_starts(tmp_path: Path) -> None:
    (tmp_path / "a,b").mkdir()
    with pytest.raises(DataError, match="no such image"):
        wanted("a.sqsh", [], [], GPU, tmp_path)
    with pytest.raises(UsageError):
        wanted("No Image", [], [], GPU, tmp_path)
    with pytest.raises(DataError, match="is not there"):
        wanted("a:1", ["/no/such/data"], [], GPU, tmp_path)
    with pytest.raises(ConfigError, match="',' in a path"):
        wanted("a:1", ["a,b"], [], GPU, tmp_path)


def test_a_run_dir_that_pyxis_cannot_be_told_is_refused(plan: LaunchPlan) -> None:
    require_mountable(plan.run_dir, plan.recipe_dir)
    with pytest.raises(ConfigError, match="rename it"):
        require_mountable(Path("/runs/a,b"))
    with pytest.raises(ConfigError, match="rename it"):
        srun_argv(dataclasses.replace(plan, run_dir=Path("/runs/a:b")))


def own(plan: LaunchPlan, *typed: str) -> list[str]:
    """The options of somebody's own srun line, as srun is told them."""
    step = parse([*typed, "--", "python", "train.py"], {}, 3, Path("/here"))
    argv = srun_argv(dataclasses.replace(plan, container=None, step=step))
    return [word for word in argv[: argv.index("sh")] if "container" in word]


def test_somebodys_own_container_gets_what_ranks_need(plan: LaunchPlan) -> None:
    typed = ("--container-image=/a.sqsh", "--container-mounts", "/d:/d:ro,/e", "--container-env=A")
    code = Path(__file__).resolve().parents[2]
    image, mounts, env = own(plan, *typed)
    assert image == "--container-image=/a.sqsh"
    run = plan.run_dir
    assert mounts == f"--container-mounts=/d:/d:ro,/e,{run}:{run},{code}:{code}:ro"
    name, _, names = env.partition("=")
    assert name == "--container-env"
    assert names.split(",")[0] == "A"
    assert set(names.split(",")) == {"A", "PYTHONPATH", *contract(plan)}


@pytest.mark.parametrize("typed", [("--container-image", "a:1"), ("--container-name=warm",)])
def test_a_container_without_mounts_gets_them_too(typed: tuple[str, ...], plan: LaunchPlan) -> None:
    assert [word.partition("=")[0] for word in own(plan, *typed)][-2:] == [
        "--container-mounts", "--container-env",
    ]  # fmt: skip


def test_defaults_of_pyxis_are_variables(plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYXIS_CONTAINER_IMAGE", "/a.sqsh")
    monkeypatch.setenv("PYXIS_CONTAINER_MOUNTS", "/d:/d")
    mounts, env = own(plan)
    assert mounts.startswith("--container-mounts=/d:/d,")
    assert env.startswith("--container-env=MUSTER_RUN_DIR,")
    step = parse(["--", "true"], {}, 2, plan.run_dir)
    assert environment(dataclasses.replace(plan, step=step))["PYXIS_CONTAINER_IMAGE"] == "/a.sqsh"


def test_the_container_of_a_run_is_the_one_of_its_command_line(
    plan: LaunchPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYXIS_CONTAINER_NAME", "warm")
    assert "PYXIS_CONTAINER_NAME" not in environment(plan)
    with pytest.raises(ConfigError, match=r"PYXIS_CONTAINER_IMAGE.* Fix: --image"):
        wanted(None, (), (), {"PYXIS_CONTAINER_IMAGE": "/a.sqsh"}, plan.run_dir)


def test_an_srun_line_without_a_container_is_as_it_was(plan: LaunchPlan) -> None:
    assert own(plan) == []
    assert own(plan, "--container-mounts=/d:/d") == ["--container-mounts=/d:/d"]
