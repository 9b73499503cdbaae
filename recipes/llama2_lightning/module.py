"""The model as Lightning wants it: how it is sharded, its loss, its optimizer, its clipping."""

from collections.abc import Iterable
from typing import NamedTuple

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812  (everybody calls it F)
from typing_extensions import override

from config import Config
from model import Llama
from optimizers import make_optimizer


class Pass(NamedTuple):
    """What Lightning calls a batch: the samples of one forward pass on this rank."""

    tokens: Tensor  # (samples, seq_len + 1)
    seen: int  # digest of which samples these are


class Pretraining(pl.LightningModule):
    """Next-token loss of Llama 2, sharded by FSDP2."""

    model: Llama

    def __init__(self, config: Config) -> None:
        """The weights come later, when all ranks are there to share them."""
        super().__init__()
        self.config = config
        self.loss_sum = torch.zeros(())  # of this rank in this training step
        self.seen = 0
        self.grad_norm = torch.zeros(())

    @override
    def configure_model(self) -> None:
        """Shard a model whose weights are not yet set; Lightning calls this on every rank.

        Built on the meta device: no rank ever holds the whole model. Deterministic mode fills fresh
        memory with NaN, so a weight that nobody sets shows in the first loss.
        """
        config, device = self.config, self.trainer.strategy.root_device
        with torch.device("meta"):
            model = Llama(config.model, config.train.seq_len, config.train.recompute)
        # Lightning's own mesh knows data x tensor; copies of a sharded model it does not.
        world_size, copies = dist.get_world_size(), config.parallel.replicate
        if copies == 1:
            mesh = init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
        else:
            shape = (copies, world_size // copies)
            mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicate", "shard"))
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)  # rope stays fp32
        auto = config.train.precision == "auto" and device.type == "cuda"
        if auto or config.train.precision == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        for block in model.layers:
            if config.train.compile:
                block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
        model.to_empty(device=device)
        with torch.no_grad():
            model.reset_buffers()
        self.model = model
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)

    @override
    def configure_optimizers(self) -> torch.optim.Optimizer:
        """That of `optim.kind`. Its learning rate is set by contract.py."""
        return make_optimizer(self.config.optim, self.model.parameters())

    def sample_losses(self, tokens: Tensor) -> Tensor:
        """Mean loss of each sample: (samples, seq_len + 1) tokens to (samples,), fp32."""
        logits = self.model(tokens[:, :-1]).float()
        each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        return each.view(tokens.shape[0], -1).mean(1)

    @override
    def training_step(self, batch: Pass, batch_idx: int) -> Tensor:
        """Loss of one forward pass; Lightning divides it by the number of passes too."""
        loss = self.sample_losses(batch.tokens).mean()
        self.loss_sum += loss.detach() / self.trainer.accumulate_grad_batches
        self.seen += batch.seen
        return loss

    @override
    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip here rather than by an option of the Trainer: it keeps the norm to itself."""
        parameters: Iterable[Tensor] = self.model.parameters()
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.config.optim.clip_norm)
        self.grad_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm

    def take_sums(self) -> tuple[Tensor, int, Tensor]:
        """Loss sum, digest and gradient norm of the training step that just ended; starts anew."""
        taken = self.loss_sum.clone(), self.seen, self.grad_norm
        self.loss_sum.zero_()
        self.seen = 0
        return taken
