"""Llama in two languages: published names and shapes, and what Hugging Face calls the same.

Published names (tok_embeddings, layers.0.attention.wq, ...) are those of all recipes. More
than names differs: RoPE turns pairs of numbers, and where published weights have the two side by
side, Hugging Face's have all first ones of a head, then all second ones. So the rows of wq and wk
change places.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from config import Model

Rows = npt.NDArray[np.int64]
INSIDE = {  # of a layer
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
}
OUTSIDE = {
    "tok_embeddings": "model.embed_tokens",
    "norm": "model.norm",
    "output": "lm_head",
}


def hf_name(name: str) -> str:
    """Hugging Face's name of a published weight.

    Raises:
        KeyError: Llama has no such weight.
    """
    module = name.removesuffix(".weight")
    if module in OUTSIDE:
        return f"{OUTSIDE[module]}.weight"
    _, layer, inside = module.split(".", 2)
    return f"model.layers.{layer}.{INSIDE[inside]}.weight"


def weights_of(shape: Model) -> dict[str, tuple[int, ...]]:
    """Published names to shapes, in the order of the network."""
    dim, kv_dim, ffn = shape.dim, shape.num_kv_heads * shape.head_dim, shape.ffn_dim
    sizes: dict[str, tuple[int, ...]] = {
        "attention_norm": (dim,),
        "attention.wq": (dim, dim),
        "attention.wk": (kv_dim, dim),
        "attention.wv": (kv_dim, dim),
        "attention.wo": (dim, dim),
        "ffn_norm": (dim,),
        "feed_forward.w1": (ffn, dim),
        "feed_forward.w3": (ffn, dim),
        "feed_forward.w2": (dim, ffn),
    }
    return {
        "tok_embeddings.weight": (shape.vocab_size, dim),
        **{
            f"layers.{layer}.{module}.weight": size
            for layer in range(shape.num_layers)
            for module, size in sizes.items()
        },
        "norm.weight": (dim,),
        "output.weight": (shape.vocab_size, dim),
    }


def hf_rows(name: str, rows: Rows, head_dim: int) -> Rows:
    """Where Hugging Face has the rows that a published weight has at `rows`."""
    if not name.endswith((".wq.weight", ".wk.weight")):
        return rows
    head, place = rows // head_dim, rows % head_dim
    return head * head_dim + place // 2 + place % 2 * (head_dim // 2)


def hf_config(shape: Model, dtype: str) -> dict[str, Any]:
    """config.json of LlamaForCausalLM; dtype as torch calls it, such as bfloat16."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.dim,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.ffn_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_seq_len,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": dtype,
    }
