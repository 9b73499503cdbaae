"""The contract of a recipe around each training step of NeMo's loop: one Lightning callback.

It sets the learning rate and the random states, adds up who saw what and the loss over all ranks,
agrees on leaving, and saves. docs/reference/train_contract.md has the sentences.
"""

import math
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import Callback
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from nemo.lightning.megatron_parallel import CallbackMethods

import resume
from checkpoint import Saver
from config import Config, Optim
from data import as_int64, digest, mix, own_positions
from errors import Stop
from feed import Stream, held_out
from log import Logger
from memory import flops_per_token
from together import end_together

MASK = (1 << 64) - 1


class Contract(Callback, CallbackMethods):  # type: ignore[misc]  # untyped
    """What is done before and after a training step; NeMo does what is between."""

    def __init__(
        self,
        run: resume.Run,
        config: Config,
        stream: Stream,
        saver: Saver,
        *,
        device: torch.device,
        saved: dict[str, Any],
        facts: dict[str, Any],
    ) -> None:
        self.run, self.config, self.stream, self.saver = run, config, stream, saver
        self.device, self.facts = device, facts
        self.step, self.consumed, self.loss = saved["step"], saved["consumed"], saved["loss"]
        flops = flops_per_token(config.model, config.train.seq_len)
        self.logger = Logger(run, config, device, saved["step"], flops)
        self.started = 0.0
        self.seen: dict[int, int] = {}  # position to sample, of this training step on this rank
        self.losses: list[torch.Tensor] = []  # (sum, tokens) of its forward passes
        self.on_sigterm = signal.getsignal(signal.SIGTERM)

    def setup(self, *_: Any, **__: Any) -> None:
        """The library switches to these random states even to initialise nothing."""
        seed_dropout(self.config.train.seed, self.step)

    def on_train_start(self, trainer: Any, *_: Any) -> None:
        """Lightning would end this rank alone on SIGTERM; here it is a request, as SIGUSR2 is."""
        signal.signal(signal.SIGTERM, self.on_sigterm)
        if trainer.global_step != self.step:
            what = f"it is at training step {trainer.global_step}, the checkpoint at {self.step}"
            raise RuntimeError(f"Lightning's loop did not resume: {what}")
        # The NaNs have shown what was not initialised; now they would cost memory bandwidth.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """The training step begins."""
        self.started = time.perf_counter()
        self.step += 1
        self.run.beat("step", self.step)
        self.seen = {}
        rate = learning_rate(self.config.optim, self.step, self.config.train.steps)
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = rate  # follows from the training step: there is no scheduler to save
        seed_dropout(self.config.train.seed, self.step)
        self.prefetch()

    def prefetch(self) -> None:
        """Begin to fetch what this rank needs next, where data is streamed."""
        train, stream = self.config.train, self.stream
        copies = parallel_state.get_data_parallel_world_size()
        num_passes = train.global_batch // (train.micro_batch * copies)
        rank = parallel_state.get_data_parallel_rank()
        first = stream.batches.first(self.run.batch(self.step + 1))
        upcoming = own_positions(first, train.micro_batch, num_passes, rank, copies)
        stream.samples.prefetch(upcoming, train.seed)

    def on_megatron_microbatch_start(self, batch: Any, **_: Any) -> None:
        """Note which samples really arrive; a piece of an interleaved model sees them again."""
        self.seen |= dict(zip(batch.get("positions", ()), batch.get("ids", ()), strict=True))

    def on_megatron_step_end(self, microbatch_outputs: Any, **_: Any) -> None:
        """Note their losses, of training and of evaluation."""
        self.losses = [output["loss_sum_and_ub_size"] for output in microbatch_outputs]

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        """The edge: numbers are added over ranks, and all learn of a request or a failure."""
        config, run, step = self.config, self.run, self.step
        first = self.stream.batches.first(run.batch(step))
        seen = digest(list(self.seen), list(self.seen.values()), first) * speaks_for_data()
        loss_sum, num_tokens = self.added_losses()
        words = [as_int64(seen & MASK), int(run.leave_requested)]
        edge = torch.tensor([*words, int(self.saver.problem is not None)], device=self.device)
        dist.all_reduce(edge)
        seen, num_leave, num_problems = edge.tolist()
        self.loss = loss_sum / num_tokens
        grad_norm = float(trainer.callback_metrics["grad_norm"])
        self.consumed += config.train.global_batch
        if num_problems:
            end_together(self.saver.problem)
        if not (math.isfinite(self.loss) and math.isfinite(grad_norm)):
            what = f"loss {self.loss}, gradient norm {grad_norm}"
            fix = "lower optim.lr or look at the data of this step"
            end_together(Stop(Stop.DIVERGED, f"training step {step}", what, fix))
        metrics = {
            "step": step,
            "loss": self.loss,
            "grad_norm": grad_norm,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "tokens": self.consumed * config.train.seq_len,
            "step_s": time.perf_counter() - self.started,
            "first_sample": first,
            "num_samples": config.train.global_batch,
            "samples": f"{seen & MASK:016x}",  # who saw what, over all ranks
        }
        if config.eval.every and step % config.eval.every == 0:
            run.beat("eval", step)
            metrics["eval_loss"] = self.evaluate(trainer)
        self.logger.log(metrics)

        if num_leave or step == config.train.steps or step % config.checkpoint.every == 0:
            run.beat("save", step)
            state = {"step": step, "consumed": self.consumed, "loss": self.loss}
            state |= {"batches": self.stream.batches.sizes, "layout": fixed_layout(config)}
            self.saver.save(trainer, step, {"run": self.facts, **state})
        trainer.should_stop = num_leave > 0

    def added_losses(self) -> tuple[float, float]:
        """(sum of the losses of all tokens, their number), each token counted once."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            for loss in self.losses:  # of the last pipeline rank; empty elsewhere
                total += loss
        dist.all_reduce(total)
        loss_sum, num_tokens = total.tolist()
        return loss_sum, num_tokens

    @torch.no_grad()
    def evaluate(self, trainer: Any) -> float:
        """Mean loss on the held-out samples, the same ones every time."""
        model, config = trainer.strategy.megatron_parallel, self.config
        rank = parallel_state.get_data_parallel_rank()
        copies = parallel_state.get_data_parallel_world_size()
        batches = held_out(config, self.stream.samples, rank, copies)
        if config.parallel.overlap:
            model.force_param_sync()  # what overlaps with the next forward pass
        model.eval()
        found = []
        for _ in range(-(-config.eval.samples // config.train.global_batch)):
            model.validation_step(batches)
            found += self.losses
        model.train()
        self.losses = found
        loss_sum, num_tokens = self.added_losses()
        return loss_sum / num_tokens


def fixed_layout(config: Config) -> dict[str, Any]:
    """What a checkpoint that is not fully reshardable must find again."""
    names = ("tensor", "pipeline", "interleave")
    return {
        "checkpoint.format": config.checkpoint.format,
        **{f"parallel.{name}": getattr(config.parallel, name) for name in names},
    }


def learning_rate(options: Optim, step: int, num_steps: int) -> float:
    """Linear from 0 to the peak in warmup_steps, then half a cosine down to min_lr_ratio of it."""
    if step <= options.warmup_steps:
        return options.lr * step / options.warmup_steps
    done = min(1.0, (step - options.warmup_steps) / max(1, num_steps - options.warmup_steps))
    low = options.lr * options.min_lr_ratio
    return low + (options.lr - low) * (1 + math.cos(math.pi * done)) / 2


def seed_dropout(seed: int, step: int) -> None:
    """Random numbers follow from the training step alone, so there is no state to save.

    Ranks with other samples or other layers get others; the library adds the tensor parallel rank
    where a tensor is split, and nothing where its copies must stay equal.
    """
    place = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    place = place << 16 | parallel_state.get_pipeline_model_parallel_rank()
    model_parallel_cuda_manual_seed(mix(mix(mix(seed) ^ step) ^ place) & 0x7FFF_FFFF)


def speaks_for_data() -> bool:
    """Whether this rank is the one of a copy of the model that reports which samples it saw."""
    return bool(
        parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
        and parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    )
