"""The recipe contract as a Lightning callback: resume, beat, log, save, leave when asked.

Lightning counts passes as batches; here everything happens at the edge of a training step, when all
passes of all ranks are done and the weights have changed. Source of the contract:
docs/reference/train_contract.md.
"""

import math
import signal
import time
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from typing_extensions import override

import resume
from batches import Batches
from checkpoint import Saver, live_state, load
from config import Config, Optim
from data import MASK, Samples, as_int64
from errors import Stop
from hf_weights import Weights
from log import Logger
from model import copy_weights, flops_per_token, init_weights
from module import Pass, Pretraining
from optimizers import began_at
from together import end_together


class Contract(pl.Callback):
    """One run under the contract. `step` and `loss` are those of the last training step."""

    saver: Saver
    logger: Logger

    def __init__(
        self,
        run: resume.Run,
        config: Config,
        data: tuple[Samples, Batches],
        *,
        facts: dict[str, Any],
        saved: dict[str, Any],
        given: Weights | None,
        group: dist.ProcessGroup,
    ) -> None:
        """`saved` says where the run goes on, `facts` what must not change until it ends; `given`
        are weights to start from. The group is for checkpoints alone.
        """
        self.run, self.config = run, config
        self.samples, self.batches = data
        self.facts, self.given, self.group = facts, given, group
        self.step, self.consumed, self.loss = saved["step"], saved["consumed"], saved["loss"]
        self.began = began_at(saved, config.optim.kind)  # where the optimizer's state begins
        self.started = 0.0
        # Lightning's own handler talks to the other ranks from inside a signal: they would hang.
        self.on_sigterm = signal.getsignal(signal.SIGTERM)

    @override
    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Set the weights: of the checkpoint that the supervisor has verified, given, or drawn."""
        module, optimizer = _ours(pl_module), trainer.optimizers[0]
        if self.run.resume is not None:
            num_updates = self.step - self.began
            load(self.run.resume, module.model, optimizer, num_updates, self.group)
        elif self.given is not None:
            copy_weights(module.model, self.given.rows)
        else:
            init_weights(module.model, self.config.train.seed)
        # The NaNs have shown what was not initialised; later they would cost memory bandwidth.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        count_from(trainer, self.step)
        state = live_state(module.model, optimizer)
        self.saver = Saver(self.run, self.config.checkpoint, state, self.group, self.step or None)
        flops = flops_per_token(self.config.model, self.config.train.seq_len)
        self.logger = Logger(self.run, self.config, module.device, self.step, flops)

    @override
    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """SIGTERM is a request to leave, as it was before the Trainer put its own handler there."""
        signal.signal(signal.SIGTERM, self.on_sigterm)

    @override
    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Pass, batch_idx: int
    ) -> None:
        """Before the first pass of a training step."""
        if batch_idx % trainer.accumulate_grad_batches:
            return
        self.started = time.perf_counter()
        self.run.beat("step", self.step + 1)
        rate = learning_rate(self.config.optim, self.step + 1, self.config.train.steps)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate

    @override
    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Pass,
        batch_idx: int,
    ) -> None:
        """After the last pass of a training step: add up, log, save, leave."""
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        module, config = _ours(pl_module), self.config
        num_leave, metrics = self._edge(module, trainer.optimizers[0].param_groups[0]["lr"])
        if config.eval.every and self.step % config.eval.every == 0:
            self.run.beat("eval", self.step)
            metrics["eval_loss"] = self._evaluate(module)
        self.logger.log(metrics)
        for logger in trainer.loggers:  # those that you add
            logger.log_metrics(metrics, self.step)

        leaving, last = num_leave > 0, self.step == config.train.steps
        if leaving or last or self.step % config.checkpoint.every == 0:
            self.run.beat("save", self.step)
            counts = {"step": self.step, "consumed": self.consumed, "loss": self.loss}
            kind = {"kind": config.optim.kind, "began_at": self.began}
            state = {"run": self.facts, **counts, "batches": self.batches.sizes, "optimizer": kind}
            self.saver.save(self.step, state)
        if leaving and not last:
            trainer.should_stop = True  # on all ranks, in the same training step

    def _edge(self, module: Pretraining, rate: float) -> tuple[int, dict[str, Any]]:
        """Add numbers over the ranks; all learn of a request or a failure.

        Returns how many ranks were asked to leave, and what to log.
        """
        loss_sum, seen, norm = module.take_sums()
        dist.all_reduce(loss_sum)
        failed = self.saver.problem is not None
        words = [as_int64(seen & MASK), int(self.run.leave_requested), int(failed)]
        edge = torch.tensor(words, device=module.device)
        dist.all_reduce(edge)
        seen, num_leave, num_problems = edge.tolist()
        self.loss, grad_norm = loss_sum.item() / self.run.world_size, norm.item()
        self.consumed += self.config.train.global_batch
        if num_problems:
            end_together(self.saver.problem)
        if not (math.isfinite(self.loss) and math.isfinite(grad_norm)):
            what = f"loss {self.loss}, gradient norm {grad_norm}"
            fix = "lower optim.lr or look at the data of this step"
            end_together(Stop(Stop.DIVERGED, f"training step {self.step}", what, fix))
        return num_leave, {
            "step": self.step,
            "loss": self.loss,
            "grad_norm": grad_norm,
            "lr": rate,
            "tokens": self.consumed * self.config.train.seq_len,
            "step_s": time.perf_counter() - self.started,
            "first_sample": self.batches.first(self.run.batch(self.step)),
            "num_samples": self.config.train.global_batch,
            "samples": f"{seen & MASK:016x}",  # who saw what, over all ranks
        }

    @torch.no_grad()
    def _evaluate(self, module: Pretraining) -> float:
        """Mean loss on the held-out samples, the same ones every time.

        All ranks make the same number of passes, as FSDP needs; what is short is filled up and not
        counted.
        """
        run, samples, num = self.run, self.samples, self.config.eval.samples
        size = self.config.train.micro_batch
        stride = size * run.world_size
        total = torch.zeros((), dtype=torch.float64, device=module.device)
        for first in range(run.rank * size, -(-num // stride) * stride, stride):
            numbers = range(first, first + size)
            counts = torch.tensor([n < num for n in numbers], device=module.device)
            tokens = torch.from_numpy(samples.fetch(samples.eval_ids(numbers))).to(module.device)
            total += (module.sample_losses(tokens) * counts).sum()
        dist.all_reduce(total)
        return total.item() / num


def _ours(module: pl.LightningModule) -> Pretraining:
    if not isinstance(module, Pretraining):
        raise TypeError(f"Contract trains {Pretraining.__name__}, not {type(module).__name__}")
    return module


def count_from(trainer: pl.Trainer, step: int) -> None:
    """Let trainer.global_step go on from there; the passes of an earlier attempt do not matter."""
    loop = trainer.fit_loop.epoch_loop
    steps = loop.automatic_optimization.optim_progress.optimizer.step
    steps.total.ready = steps.total.completed = step
    loop._batches_that_stepped = step  # noqa: SLF001  (what your loggers count by)


def learning_rate(options: Optim, step: int, num_steps: int) -> float:
    """Linear from 0 to the peak in warmup_steps, then half a cosine down to min_lr_ratio of it."""
    if step <= options.warmup_steps:
        return options.lr * step / options.warmup_steps
    done = min(1.0, (step - options.warmup_steps) / max(1, num_steps - options.warmup_steps))
    low = options.lr * options.min_lr_ratio
    return low + (options.lr - low) * (1 + math.cos(math.pi * done)) / 2
