"""RUN_DIR of an srun line: the same line again after a requeue, another one for everything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import CreateError, UsageError
from resume.step import Step, parse
from resume.steprun import as_recipe, claim


def line(folder: Path, *program: str) -> Step:
    return parse(["-N1", "--", *(program or ("train",))], {}, 2, folder)


def start(
    folder: Path, *programs: str, job: str = "7", restart: int = 0, pid: int = 1
) -> list[str]:
    """One start of a batch script: the RUN_DIRs of its lines."""
    found = []
    for program in programs:
        place = claim(line(folder, program), job, restart, {"SLURM_TASK_PID": str(pid)})
        with place as run_dir:
            assert run_dir.is_dir()
            found.append(str(run_dir.relative_to(folder)))
    return found


def test_each_line_has_a_folder_of_its_own(tmp_path: Path) -> None:
    assert start(tmp_path, "a", "b", "a") == ["runs/7/srun_0", "runs/7/srun_1", "runs/7/srun_2"]


def test_after_a_requeue_each_line_finds_its_own_again(tmp_path: Path) -> None:
    start(tmp_path, "a", "b", "a")
    again = start(tmp_path, "a", "b", "a", "c", restart=1, pid=2)
    assert again == ["runs/7/srun_0", "runs/7/srun_1", "runs/7/srun_2", "runs/7/srun_3"]
    assert start(tmp_path, "b", "c", restart=2, pid=3) == ["runs/7/srun_1", "runs/7/srun_3"]


def test_same_job_number_of_another_cluster_is_left_alone(tmp_path: Path) -> None:
    start(tmp_path, "a")
    assert start(tmp_path, "a", "b", pid=2) == ["runs/7-2/srun_0", "runs/7-2/srun_1"]
    assert start(tmp_path, "a", restart=1, pid=3) == ["runs/7-2/srun_0"]


def test_named_folder_is_taken(tmp_path: Path) -> None:
    with claim(line(tmp_path), "7", 0, {"MUSTER_RUN_DIR": str(tmp_path / "mine")}) as run_dir:
        assert run_dir == tmp_path / "mine"


def test_two_lines_at_once_are_refused(tmp_path: Path) -> None:
    environment = {"SLURM_TASK_PID": "1"}
    with (
        claim(line(tmp_path, "a"), "7", 0, environment),
        pytest.raises(UsageError, match="another step of this job"),
        claim(line(tmp_path, "b"), "7", 0, environment),
    ):
        pass
    assert start(tmp_path, "b") == ["runs/7/srun_1"]  # given free, and the name was not used up


def test_folder_that_cannot_be_written_has_a_fix(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with (
        pytest.raises(CreateError, match="MUSTER_RUN_DIR"),
        claim(line(tmp_path), "7", 0, {"SLURM_TASK_PID": "1"}),
    ):
        pass


def test_error_inside_is_not_taken_for_one_of_the_folder(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="of the run"),
        claim(line(tmp_path), "7", 0, {"SLURM_TASK_PID": "1"}),
    ):
        raise OSError("of the run")


def test_recipe_of_a_line(tmp_path: Path) -> None:
    recipe = as_recipe(line(tmp_path, "a"))
    assert (recipe.nodes, recipe.ranks_per_node, recipe.budget.retry_blind) == (1, 1, False)
    assert [(c.run, c.done_by) for c in recipe.commands] == [("a", "exit")]
