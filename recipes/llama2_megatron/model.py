"""Megatron-Core's GPT with Llama 2's parts, split over tensor and pipeline parallel ranks.

The library's own modules throughout. With Transformer Engine on GPUs its fused layers are used, and
otherwise the library's local ones; which of them, and what follows from it, is decided in `Kernels`
and nowhere else.
"""

import importlib.util
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_block import (
    TransformerBlockSubmodules,
    get_num_layers_to_build,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (everybody calls it F)

from config import Config
from options import bad

AUX_LOSS = 0.01  # weight of the loss that spreads tokens over experts (Switch Transformer, 2021)


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

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark(self, config)


class LayerNorm(torch.nn.LayerNorm):
    """As torch has it, for the same reason."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark(self, config)


def _mark(norm: torch.nn.Module, config: TransformerConfig) -> None:
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def activation(mlp: str, kernels: Kernels) -> Any:
    """GELU is the tanh approximation: that is what the fused kernel computes for F.gelu."""
    if mlp == "swiglu":
        return F.silu
    return F.gelu if kernels.engine else partial(F.gelu, approximate="tanh")


def leave(weight: Tensor) -> Tensor:
    """Initialise nothing."""
    return weight


def uses_bf16(config: Config, kernels: Kernels) -> bool:
    """Whether weights and activations are bf16, with fp32 master weights."""
    auto = config.train.precision == "auto" and kernels.on_gpu
    return auto or config.train.precision == "bf16"


def build(config: Config, kernels: Kernels) -> list[DistributedDataParallel]:
    """The pieces of the model that this rank holds, on its device, weights not yet set.

    The random states must be seeded: the library switches to them even to do nothing. Deterministic
    mode fills fresh memory with NaN, so a weight that nobody sets shows at once.
    """
    parallel = config.parallel
    if parallel.context > 1 and not kernels.engine:
        what = f"{parallel.context} needs Transformer Engine on GPUs, which is not here"
        raise bad("parallel.context", what, "set it to 1, or use the container image")
    transformer = transformer_config(config, kernels)
    buckets = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=parallel.overlap,
        overlap_param_gather=parallel.overlap,
    )
    pieces = []
    for number in range(parallel.interleave):
        stage = number if parallel.interleave > 1 else None
        if stage is not None:
            parallel_state.set_virtual_pipeline_model_parallel_rank(stage)
        piece: torch.nn.Module = GPTModel(
            transformer,
            layer_spec(config, transformer, kernels, stage),
            vocab_size=config.model.vocab_size,
            max_sequence_length=config.model.max_seq_len,
            pre_process=parallel_state.is_pipeline_first_stage(False, stage),
            post_process=parallel_state.is_pipeline_last_stage(False, stage),
            position_embedding_type="rope",
            rotary_base=config.model.rope_theta,
            vp_stage=stage,
        )
        if transformer.bf16:
            piece = Float16Module(transformer, piece)
        pieces.append(
            DistributedDataParallel(transformer, buckets, piece, disable_bucketing=number > 0)
        )
    return pieces


def transformer_config(config: Config, kernels: Kernels) -> TransformerConfig:
    """The library's options. Fusions are on where the machine has them."""
    model, train, parallel = config.model, config.train, config.parallel
    bf16 = uses_bf16(config, kernels)
    dtype = torch.bfloat16 if bf16 else torch.float32
    full = train.recompute == "full"
    granularity = {"none": None, "attention": "selective", "full": "full"}[train.recompute]
    experts: dict[str, Any] = {}
    if model.num_experts:
        experts = {
            "num_moe_experts": model.num_experts,
            "moe_ffn_hidden_size": model.ffn_dim,
            "moe_router_topk": model.experts_per_token,
            "moe_router_pre_softmax": model.experts_per_token == 1,
            "moe_aux_loss_coeff": AUX_LOSS,
            # The faster one copies sizes to the host on a CUDA stream.
            "moe_token_dispatcher_type": "alltoall" if kernels.on_gpu else "allgather",
        }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="If you are using transformer_engine")
        return TransformerConfig(
            num_layers=model.num_layers,
            hidden_size=model.dim,
            num_attention_heads=model.num_heads,
            num_query_groups=model.num_kv_heads,
            ffn_hidden_size=model.ffn_dim,
            normalization={"rms": "RMSNorm", "layer": "LayerNorm"}[model.norm],
            layernorm_epsilon=model.norm_eps,
            gated_linear_unit=model.mlp == "swiglu",
            activation_func=activation(model.mlp, kernels),
            add_bias_linear=model.bias,
            hidden_dropout=train.dropout,
            attention_dropout=train.dropout,
            # weights.py sets every weight, the same for every layout. Not perform_initialization:
            # without it split weights are not marked as such, and the gradient norm is wrong.
            init_method=leave,
            output_layer_init_method=leave,
            bf16=bf16,
            params_dtype=dtype,
            pipeline_dtype=dtype,
            attention_softmax_in_fp32=True,
            deterministic_mode=train.deterministic,
            tensor_model_parallel_size=parallel.tensor,
            pipeline_model_parallel_size=parallel.pipeline,
            virtual_pipeline_model_parallel_size=parallel.interleave
            if parallel.interleave > 1
            else None,
            context_parallel_size=parallel.context,
            expert_model_parallel_size=parallel.expert,
            sequence_parallel=parallel.sequence and parallel.tensor > 1,
            recompute_granularity=granularity,
            recompute_method="uniform" if full else None,
            recompute_num_layers=1 if full else None,
            batch_p2p_comm=kernels.on_gpu and parallel.interleave == 1,
            overlap_p2p_comm=kernels.on_gpu and parallel.interleave > 1,
            gradient_accumulation_fusion=kernels.wgrad,
            masked_softmax_fusion=False,  # for the local attention, which serves CPUs
            bias_activation_fusion=kernels.engine and (model.mlp == "swiglu" or model.bias),
            bias_dropout_fusion=kernels.engine,
            apply_rope_fusion=kernels.engine,
            persist_layer_norm=kernels.engine,
            cross_entropy_loss_fusion=kernels.engine and not train.deterministic,
            **experts,
        )


def layer_spec(
    config: Config, transformer: TransformerConfig, kernels: Kernels, stage: int | None
) -> Any:
    """Which modules a layer is made of."""
    num_experts = config.model.num_experts or None
    if kernels.engine:
        return get_gpt_layer_with_transformer_engine_spec(num_experts=num_experts)
    if not hasattr(moe_utils, "te_general_gemm"):
        # moe_utils.py imports this name with Transformer Engine and asks for it without.
        moe_utils.te_general_gemm = None
    layer = get_gpt_layer_local_spec(
        num_experts=num_experts, normalization=transformer.normalization
    )
    norm = {"rms": RMSNorm, "layer": LayerNorm}[config.model.norm]
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = norm
    num_layers = get_num_layers_to_build(transformer, vp_stage=stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * num_layers, layer_norm=norm)


def bare(piece: Any) -> GPTModel:
    """The model without what is wrapped around it."""
    while not isinstance(piece, GPTModel):
        piece = piece.module
    return piece
