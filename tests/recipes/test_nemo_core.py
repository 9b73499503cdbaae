"""NeMo 3.0's core lives in the common environment: its exp_manager resumes a run, step for step.

NeMo 3 has no LLM collection any more, so no recipe is built on it; a team that keeps other models
in it needs to know that it can share an environment with the recipes. One program imports it once
and then trains in forks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nemo")
pytestmark = [pytest.mark.torch, pytest.mark.slow]  # imports NeMo: ./run recipes

PROGRAM = '''
import json, os, sys, warnings

warnings.simplefilter("ignore")
import lightning.pytorch as pl
import torch
from nemo.core import ModelPT
from nemo.utils.exp_manager import exp_manager
from omegaconf import OmegaConf


class Line(ModelPT):
    """y = w x, learned from numbers that follow from the step."""

    def __init__(self, cfg, trainer=None):
        super().__init__(cfg=cfg, trainer=trainer)
        self.net = torch.nn.Linear(4, 1)
        self.losses = {}

    @classmethod
    def list_available_models(cls):
        return None

    def setup_training_data(self, cfg):
        self._train_dl = torch.utils.data.DataLoader(range(100))

    def setup_validation_data(self, cfg):
        self._validation_dl = None

    def training_step(self, batch, number):
        step = self.trainer.global_step
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(step))
        loss = torch.nn.functional.mse_loss(self.net(x), x.sum(1, keepdim=True))
        self.losses[step] = loss.item()
        self.trainer.should_stop = step + 1 == self.until
        return loss


def train(folder, until):
    pl.seed_everything(0, verbose=False)
    optim = {"name": "adamw", "lr": 0.1, "sched": {"name": "CosineAnnealing", "max_steps": 8}}
    model = OmegaConf.create({"train_ds": {"batch_size": 4}, "optim": optim})
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, max_steps=8, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False,
    )
    manager = {
        "explicit_log_dir": folder, "create_tensorboard_logger": False,
        "create_checkpoint_callback": True, "resume_if_exists": True,
        "resume_ignore_no_checkpoint": True, "log_step_timing": False,
        "checkpoint_callback_params": {
            "monitor": "step", "mode": "max", "every_n_epochs": None, "every_n_train_steps": 2,
            "save_top_k": 1, "save_last": True, "filename": "line-{step}",
            "always_save_nemo": False, "save_nemo_on_train_end": False,
        },
    }
    exp_manager(trainer, OmegaConf.create(manager))
    line = Line(model, trainer=trainer)
    line.until = until
    trainer.fit(line)
    weights = [value.tolist() for value in line.net.state_dict().values()]
    rate = trainer.optimizers[0].param_groups[0]["lr"]
    return {"losses": line.losses, "weights": weights, "lr": rate}


def forked(folder, until):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps(train(folder, until)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.wait()
    return json.loads(text)


whole, broken = sys.argv[1:]
print("RESULT", json.dumps([forked(whole, 8), forked(broken, 4), forked(broken, 8)]))
'''


def test_exp_manager_resumes_to_the_weights_of_the_unbroken_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "whole"), str(tmp_path / "broken")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    whole, first, rest = json.loads(line.removeprefix("RESULT "))
    steps = [str(step) for step in range(8)]
    assert sorted(whole["losses"]) == steps
    assert sorted(first["losses"]) == steps[:4]
    assert sorted(rest["losses"]) == steps[4:]
    assert {**first["losses"], **rest["losses"]} == whole["losses"]
    assert rest["weights"] == whole["weights"]
    assert rest["lr"] == whole["lr"]
