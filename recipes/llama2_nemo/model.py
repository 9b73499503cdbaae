"""NeMo's Llama, described from the options, and what this machine can compute with.

The library's own modules throughout. With Transformer Engine on GPUs its fused layers are used, and
otherwise Megatron-Core's local ones; which of them, and what follows from it, is decided in
`Kernels` and nowhere else.
"""

import importlib.util
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from nemo.collections import llm
from nemo.collections.llm.gpt.model.base import default_layer_spec
from torch import Tensor

from config import Config
from options import bad

Batch = dict[str, Any]


@dataclass(frozen=True)
class Kernels:
    """What this machine can compute with."""

    on_gpu: bool
    engine: bool  # Transformer Engine
    wgrad: bool  # Apex's weight gradient that adds into the buffer; the output layer asks for it

    @classmethod
    def here(cls) -> "Kernels":
        """Look."""
        on_gpu = torch.cuda.is_available()
        engine = on_gpu and importlib.util.find_spec("transformer_engine") is not None
        fused = on_gpu and importlib.util.find_spec("fused_weight_gradient_mlp_cuda") is not None
        return cls(on_gpu, engine, fused)


class RMSNorm(torch.nn.RMSNorm):
    """As torch has it. The library's wrapper (transformer/torch_norm.py) refuses sequence parallel,
    although all it takes is the mark that tells whose gradients must be added over the ranks.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def leave(weight: Tensor) -> Tensor:
    """Initialise nothing."""
    return weight


def uses_bf16(config: Config, kernels: Kernels) -> bool:
    """Whether weights and activations are bf16, with fp32 master weights."""
    auto = config.train.precision == "auto" and kernels.on_gpu
    return auto or config.train.precision == "bf16"


def describe(config: Config, kernels: Kernels) -> llm.LlamaConfig:
    """The library's options. Fusions are on where the machine has them.

    How the model is split is told to the strategy, and the types of its numbers to the precision
    plug-in; NeMo copies both in here.
    """
    model, train = config.model, config.train
    if config.parallel.context > 1 and not kernels.engine:
        what = f"{config.parallel.context} needs Transformer Engine on GPUs, which is not here"
        raise bad("parallel.context", what, "set it to 1, or use the container image")
    full = train.recompute == "full"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="If you are using transformer_engine")
        return llm.LlamaConfig(
            num_layers=model.num_layers,
            hidden_size=model.dim,
            num_attention_heads=model.num_heads,
            num_query_groups=model.num_kv_heads,
            ffn_hidden_size=model.ffn_dim,
            layernorm_epsilon=model.norm_eps,
            rotary_base=model.rope_theta,
            seq_length=model.max_seq_len,
            vocab_size=model.vocab_size,
            hidden_dropout=train.dropout,
            attention_dropout=train.dropout,
            # weights.py sets every weight, the same for every layout. Not perform_initialization:
            # without it split weights are not marked as such, and the gradient norm is wrong.
            init_method=leave,
            output_layer_init_method=leave,
            attention_softmax_in_fp32=True,
            deterministic_mode=train.deterministic,
            recompute_granularity={"none": None, "attention": "selective", "full": "full"}[
                train.recompute
            ],
            recompute_method="uniform" if full else None,
            recompute_num_layers=1 if full else None,
            batch_p2p_comm=kernels.on_gpu and config.parallel.interleave == 1,
            overlap_p2p_comm=kernels.on_gpu and config.parallel.interleave > 1,
            gradient_accumulation_fusion=kernels.wgrad,
            masked_softmax_fusion=False,  # for the local attention, which serves CPUs
            bias_activation_fusion=kernels.engine,
            bias_dropout_fusion=kernels.engine,
            apply_rope_fusion=kernels.engine,
            persist_layer_norm=kernels.engine,
            cross_entropy_loss_fusion=kernels.engine and not train.deterministic,
            transformer_layer_spec=default_layer_spec if kernels.engine else local_layers,
            data_step_fn=next_batch,
            forward_step_fn=forward,
        )


def local_layers(config: Any, vp_stage: int | None = None) -> TransformerBlockSubmodules:
    """Layers of Megatron-Core's own modules, with a norm that knows sequence parallel."""
    layer = get_gpt_layer_local_spec(normalization=config.normalization)
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = RMSNorm
    stage = vp_stage if config.virtual_pipeline_model_parallel_size else None
    num_layers = get_num_layers_to_build(config, vp_stage=stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=RMSNorm)


def next_batch(batches: Iterator[Any]) -> Batch:
    """The next samples on this rank's device, cut for context parallel.

    NeMo's own asks for an attention mask, as a tensor, unless there is Transformer Engine; causal
    attention needs none.
    """
    from megatron.core.utils import get_batch_on_this_cp_rank  # noqa: PLC0415

    found = next(batches)
    batch = found[0] if isinstance(found, tuple) else found
    device = torch.cuda.current_device()
    tensors = {
        key: value.to(device, non_blocking=True)
        for key, value in batch.items()
        if isinstance(value, Tensor)
    }
    return {**batch, **get_batch_on_this_cp_rank(tensors)}


def forward(model: Any, batch: Batch) -> Tensor:
    """Output of a piece of the model: (samples, tokens) losses from the last one."""
    output: Tensor = model(
        input_ids=batch["tokens"],
        position_ids=batch["position_ids"],
        attention_mask=None,
        labels=batch["labels"],
    )
    return output


def bare(piece: Any) -> GPTModel:
    """The model without what is wrapped around it."""
    while not isinstance(piece, GPTModel):
        piece = piece.module
    return piece
