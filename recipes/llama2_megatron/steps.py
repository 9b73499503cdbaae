"""One forward pass of one piece of the model, as Megatron-Core's schedules call it.

The schedules (1F1B, interleaved, or plain when there is no pipeline) decide when; here is what.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from megatron.core.utils import get_batch_on_this_cp_rank
from torch import Tensor

from config import Config
from data import Samples, mix
from model import bare

Step = Callable[[Iterator[list[int]], Any], tuple[Tensor, Callable[[Tensor], Any]]]


def forward_step(samples: Samples, device: torch.device) -> Step:
    """For the next samples of an iterator: the output of a piece of the model, and its loss."""

    def step(order: Iterator[list[int]], model: Any) -> tuple[Tensor, Callable[[Tensor], Any]]:
        ids = next(order)
        batch: dict[str, Tensor | None] = {"tokens": None, "labels": None, "positions": None}
        if reads_tokens([model]):
            tokens = torch.from_numpy(samples.fetch(ids)).to(device)
            positions = torch.arange(samples.seq_len, device=device).expand(len(ids), -1)
            inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
            batch = {"tokens": inputs, "labels": labels, "positions": positions}
            batch = get_batch_on_this_cp_rank(batch)
        output = model(batch["tokens"], batch["positions"], None, labels=batch["labels"])
        return output, loss_of

    return step


def reads_tokens(models: list[Any]) -> bool:
    """Whether a rank with these pieces of the model sees tokens; those in between do not."""
    return any(bare(model).pre_process or bare(model).post_process for model in models)


def loss_of(each: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(sum over tokens, their number, mean loss of each sample) from (samples, tokens) losses."""
    each = each.float()
    count = torch.tensor(each.numel(), dtype=torch.int, device=each.device)
    return each.sum(), count, each.detach().mean(1)


def added(losses: list[Tensor], device: torch.device) -> Tensor:
    """Sum over forward passes of the mean loss, where it is known, once for each sample."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        for loss in losses:  # of the last pipeline rank; empty elsewhere
            total += loss.mean()
    return total


def speaks_for_data() -> bool:
    """Whether this rank is the one of a copy of the model that reports which samples it saw."""
    return bool(
        parallel_state.get_tensor_model_parallel_rank() == 0
        and parallel_state.get_context_parallel_rank() == 0
        and parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    )


def seed_dropout(seed: int, step: int) -> None:
    """Random numbers follow from the training step alone, so there is no state to save.

    Ranks with other samples or other layers get others; the library adds the tensor parallel rank
    where a tensor is split, and nothing where its copies must stay equal.
    """
    place = parallel_state.get_data_parallel_rank(with_context_parallel=True)
    place = place << 16 | parallel_state.get_pipeline_model_parallel_rank()
    model_parallel_cuda_manual_seed(mix(mix(mix(seed) ^ step) ^ place) & 0x7FFF_FFFF)


@torch.no_grad()
def evaluate(config: Config, models: list[Any], samples: Samples, device: torch.device) -> float:
    """Mean loss on the held-out samples, the same ones every time.

    All copies make the same number of passes, as the pipeline needs; what is short is filled up and
    not counted.
    """
    size, copies = config.train.micro_batch, parallel_state.get_data_parallel_world_size()
    first = parallel_state.get_data_parallel_rank() * size
    unit = size * copies * (config.parallel.pipeline if config.parallel.interleave > 1 else 1)
    numbers = [
        range(start, start + size)
        for start in range(first, -(-config.eval.samples // unit) * unit, size * copies)
    ]
    order = [samples.eval_ids(part) for part in numbers]
    for model in models:
        model.start_param_sync(force_sync=True)
        model.eval()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step(samples, device),
        data_iterator=[iter(order) for _ in models],
        model=models,
        num_microbatches=len(order),
        seq_length=config.train.seq_len,
        micro_batch_size=size,
        forward_only=True,
    )
    for model in models:
        model.train()
    total = torch.zeros((), dtype=torch.float64, device=device)
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        for loss, part in zip(losses, numbers, strict=False):
            counts = torch.tensor([n < config.eval.samples for n in part], device=device)
            total += (loss * counts).sum()
    torch.distributed.all_reduce(total)
    return total.item() / (config.eval.samples * config.parallel.context)
