"""What Lightning would do by itself, and must not; and its checkpoints are those of llama2_fsdp."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning")
pytestmark = pytest.mark.torch

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LIGHTNING, FSDP = RECIPES / "llama2_lightning", RECIPES / "llama2_fsdp"
# What a rank sees that `muster run` has started on two nodes of a Slurm job.
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NAME": "llama2_lightning",
    "SLURM_NTASKS": "2",
    "SLURM_NTASKS_PER_NODE": "1",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_NODELIST": "n[0-1]",
    "SLURM_JOB_NODELIST": "n[0-1]",
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    data = tmp_path_factory.mktemp("data")
    command = [sys.executable, str(FSDP / "prepare.py"), "--out", str(data)]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return (f"data.dir={data}", "log.tensorboard=false", "dist.timeout_s=120")


def checkpoint(ranks: Any, step: int) -> str:
    return str(ranks.run_dir / "checkpoints" / f"step_{step:08d}")


def test_sigterm_to_one_rank_inside_slurm_is_a_request_to_leave(
    words: tuple[str, ...], launch_warm: Any, tmp_path: Path
) -> None:
    """Lightning's handler broadcasts inside the signal; its SLURMEnvironment requeues the job."""
    more = (*words, "train.steps=4000", "checkpoint.every=1000000")
    ranks = launch_warm(LIGHTNING, tmp_path, 2, *more, **SLURM)
    ranks.wait_for(lambda: len(ranks.metrics()) >= 2)
    ranks.processes[1].send_signal(signal.SIGTERM)
    assert ranks.codes() == [0, 0], ranks.errors()
    assert ranks.errors() == ["", ""]
    step = max(ranks.metrics())
    assert step < 4000
    assert ranks.checkpoints() == [f"step_{step:08d}"]


def test_a_run_of_llama2_fsdp_goes_on_here_and_back_bit_for_bit(
    words: tuple[str, ...], launch_warm: Any, tmp_path: Path
) -> None:
    more = (*words, "train.steps=9", "checkpoint.every=3", "train.micro_batch=2")
    whole = launch_warm(FSDP, tmp_path / "1", 2, *more)
    assert whole.codes() == [0, 0], whole.errors()
    here = launch_warm(LIGHTNING, tmp_path / "2", 2, *more, MUSTER_RESUME=checkpoint(whole, 3))
    assert here.codes() == [0, 0], here.errors()
    back = launch_warm(FSDP, tmp_path / "3", 2, *more, MUSTER_RESUME=checkpoint(here, 6))
    assert back.codes() == [0, 0], back.errors()
    same = ("loss", "samples", "grad_norm", "lr", "tokens")
    want = {step: [line[name] for name in same] for step, line in whole.metrics().items()}
    for ranks, first in ((here, 4), (back, 7)):
        got = {step: [line[name] for name in same] for step, line in ranks.metrics().items()}
        assert got == {step: row for step, row in want.items() if step >= first}
        assert ranks.done() == whole.done()


LOGGER = """
from lightning.pytorch.loggers.logger import Logger


class Mine(Logger):
    name, version = "mine", 0

    def log_hyperparams(self, *args, **words): ...

    def log_metrics(self, metrics, step):
        with open(os.environ["NOTE"], "a") as note:
            note.write(f"{step} {metrics['step']}\\n")
"""


def test_loggers_of_a_user_see_the_number_of_the_training_step_after_a_resume(
    words: tuple[str, ...], launch_warm: Any, tmp_path: Path
) -> None:
    """The progress counters of Lightning go on: a restart is not a new training step 1."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in LIGHTNING.glob("*"):
        (folder / path.name).symlink_to(path)
    text = (LIGHTNING / "train.py").read_text()
    (folder / "train.py").unlink()
    (folder / "train.py").write_text(
        text.replace("logger=False", "logger=Mine()", 1).replace("HERE = ", f"{LOGGER}\nHERE = ", 1)
    )
    more = (*words, "train.steps=4", "checkpoint.every=2")
    note = tmp_path / "note"
    one = launch_warm(folder, tmp_path / "1", 1, *more, NOTE=str(note))
    assert one.codes() == [0], one.errors()
    two = launch_warm(
        folder, tmp_path / "2", 1, *more, NOTE=str(note), MUSTER_RESUME=checkpoint(one, 2)
    )
    assert two.codes() == [0], two.errors()
    assert note.read_text().split() == [str(step) for step in (1, 2, 3, 4, 3, 4) for _ in range(2)]
