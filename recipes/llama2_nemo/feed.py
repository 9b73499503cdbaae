"""Samples for NeMo: its own sampler counts, data.py says which sample is meant.

Megatron's sampler goes through numbers from that of the first training step's first sample on, and
gives each data parallel rank its micro batches; the data set below takes such a number for a place
in a training step. So nothing has to be saved of the data loader.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from nemo.lightning.data import WrappedDataLoader
from nemo.lightning.pytorch.plugins import MegatronDataSampler
from torch.utils.data import Dataset

import resume
from batches import Batches
from config import Config
from data import Samples


class Stream(Dataset[tuple[int, int]]):
    """Training samples as NeMo's sampler counts them: number to (position, sample)."""

    def __init__(self, run: resume.Run, config: Config, samples: Samples, batches: Batches) -> None:
        self.run, self.train, self.samples, self.batches = run, config.train, samples, batches

    def __len__(self) -> int:
        """One batch more than is trained: the sampler refuses to start at the end."""
        return (self.train.steps + 1) * self.train.global_batch

    def __getitem__(self, number: int) -> tuple[int, int]:
        """Batch and training step have the same number, unless data is left out on purpose."""
        step, place = divmod(number, self.train.global_batch)
        position = self.batches.first(self.run.batch(step + 1)) + place
        (sample,) = self.samples.order([position], self.train.seed)
        return position, sample

    def collate(self, pairs: Sequence[tuple[int, int]]) -> dict[str, Any]:
        """A micro batch."""
        positions, ids = zip(*pairs, strict=True)
        return {**micro_batch(self.samples, ids), "positions": positions, "ids": ids}


def micro_batch(samples: Samples, ids: Sequence[int], counted: int | None = None) -> dict[str, Any]:
    """Tensors for one forward pass; `counted` samples have a loss, None: all."""
    tokens = torch.from_numpy(samples.fetch(ids))
    mask = torch.ones(len(ids), samples.seq_len)
    if counted is not None:
        mask[counted:] = 0
    return {
        "tokens": tokens[:, :-1].contiguous(),
        "labels": tokens[:, 1:].contiguous(),
        "loss_mask": mask,
        "position_ids": torch.arange(samples.seq_len).expand(len(ids), -1).contiguous(),
    }


class Feed(pl.LightningDataModule):
    """What NeMo asks for data."""

    def __init__(self, config: Config, stream: Stream, saved_step: int) -> None:
        super().__init__()
        self.seq_length = config.train.seq_len  # NeMo's telemetry looks at it
        self.stream = stream
        self.data_sampler = MegatronDataSampler(
            seq_len=config.train.seq_len,
            micro_batch_size=config.train.micro_batch,
            global_batch_size=config.train.global_batch,
            init_consumed_samples=saved_step * config.train.global_batch,
            output_log=False,
        )

    def train_dataloader(self) -> Any:
        """Without workers: a sample is a read of its own bytes in mapped memory."""
        return WrappedDataLoader(
            mode="train", dataset=self.stream, collate_fn=self.stream.collate, num_workers=0
        )


def held_out(config: Config, samples: Samples, rank: int, copies: int) -> Iterator[dict[str, Any]]:
    """Micro batches of the held-out samples for one data parallel rank, the same every time.

    Filled up to whole batches, as NeMo's sampler counts passes; what fills up has no loss.
    """
    size, wanted = config.train.micro_batch, config.eval.samples
    whole = -(-wanted // config.train.global_batch) * config.train.global_batch
    for first in range(rank * size, whole, size * copies):
        ids = samples.eval_ids(range(first, first + size))
        yield micro_batch(samples, ids, counted=max(0, min(size, wanted - first)))
