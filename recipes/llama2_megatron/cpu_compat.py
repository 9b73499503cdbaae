"""What Megatron-Core needs to train on CPUs: the places where it says CUDA and means "the device".

With CUDA nothing here does anything. Without, `enable` replaces the functions below, once, before a
model is built. Each says why it is there and which line of the library (0.16.1) it answers; a test
takes them away one by one and fails when the library trains without, so that none outlives its
reason. This is for trying a layout, a resume or a repair without GPUs; no speed is meant.
"""

import logging
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

CPU = torch.device("cpu")
Function = Callable[..., Any]


@dataclass(frozen=True)
class Shim:
    """A replacement for one function of torch or of the library."""

    target: str  # "module:path of the attribute"
    file: str  # of megatron/core, where it is needed
    line: str  # text that stands in that file
    make: Callable[[Function], Function]  # from the original


SHIMS: list[Shim] = []


def answers(
    target: str, file: str, line: str
) -> Callable[[Callable[[Function], Function]], Callable[[Function], Function]]:
    """Register the decorated maker of a replacement."""

    def register(make: Callable[[Function], Function]) -> Callable[[Function], Function]:
        SHIMS.append(Shim(target, file, line, make))
        return make

    return register


def enable(without: Collection[str] = ()) -> bool:
    """Replace what is needed when there is no CUDA; returns whether anything was replaced.

    Args:
        without: targets to leave alone, for the test that asks whether they are still needed.
    """
    if torch.cuda.is_available():
        return False
    import megatron.core.tensor_parallel.random as random_states  # noqa: PLC0415  (takes seconds)

    for shim in SHIMS:
        if shim.target not in without:
            module, _, path = shim.target.partition(":")
            *owners, name = path.split(".")
            owner: Any = sys.modules[module]
            for step in owners:
                owner = getattr(owner, step)
            setattr(owner, name, shim.make(getattr(owner, name)))
    # Its warning that the CPU's random state was used: here that is the only one there is.
    logging.getLogger(random_states.__name__).setLevel(logging.ERROR)
    return True


@answers("torch.cuda:current_device", "tensor_parallel/layers.py", "torch.cuda.current_device()")
def current_device(_: Function) -> Function:
    """Weights, buffers and messages between pipeline ranks are made on the current device."""
    return lambda: CPU


def on_cpu(original: Function) -> Function:
    """A factory of tensors for which device="cuda" means the CPU."""

    @wraps(original)
    def factory(*args: Any, **more: Any) -> Any:
        if str(more.get("device", "")).startswith("cuda"):
            more["device"] = CPU
        return original(*args, **more)

    return factory


@answers("torch:zeros", "optimizer/clip_grads.py", "torch.zeros(1, dtype=torch.int, device='cuda')")
def zeros(original: Function) -> Function:
    """Counters of tokens and the flag of the gradient norm; the device is written out."""
    return on_cpu(original)


@answers("torch:tensor", "optimizer/optimizer.py", "dtype=torch.int, device='cuda'")
def tensor(original: Function) -> Function:
    """Scales of the mixed precision optimizer, from which the distributed one is derived."""
    return on_cpu(original)


@answers("torch:ones", "transformer/utils.py", 'torch.ones(sq, sq, device="cuda")')
def ones(original: Function) -> Function:
    """The causal mask of the attention that needs no Transformer Engine."""
    return on_cpu(original)


@answers("torch:Tensor.type", "optimizer/clip_grads.py", "== 'torch.cuda.FloatTensor'")
def tensor_type(original: Function) -> Function:
    """The optimizer tells weights by their type's name, and knows only names with cuda."""

    @wraps(original)
    def named(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        found = original(self, *args, **more)
        asked = not args and not more
        return found.replace("torch.", "torch.cuda.", 1) if asked else found

    return named


@answers("torch:Tensor.cuda", "optimizer/distrib_optimizer.py", "send_tensor = send_tensor.cuda()")
def to_cuda(_: Function) -> Function:
    """AdamW's state is sent to the device to be gathered for a checkpoint that can be resharded."""
    return lambda self, *_args, **_more: self


@answers(
    "torch.cuda:synchronize",
    "dist_checkpointing/strategies/filesystem_async.py",
    "torch.cuda.synchronize()",
)
def synchronize(_: Function) -> Function:
    """Nothing runs behind Python's back."""
    return lambda *_args, **_more: None


@answers("torch.cuda:get_rng_state", "tensor_parallel/random.py", "torch.cuda.get_rng_state()")
def get_rng_state(_: Function) -> Function:
    """The random state of dropout is kept apart for tensor parallel regions."""
    return lambda *_args, **_more: torch.get_rng_state()


@answers("torch.cuda:manual_seed", "tensor_parallel/random.py", "torch.cuda.manual_seed(seed)")
def manual_seed(_: Function) -> Function:
    """Each of these states has its own seed."""
    return torch.manual_seed


@answers(
    "megatron.core.tensor_parallel.random:_get_cuda_rng_state",
    "tensor_parallel/random.py",
    "return torch.cuda.random.get_rng_state(device=device)",
)
def get_cuda_rng_state(_: Function) -> Function:
    """Saved on entering a tensor parallel region, and for recomputation."""
    return lambda *_args, **_more: torch.get_rng_state()


@answers(
    "megatron.core.tensor_parallel.random:_set_cuda_rng_state",
    "tensor_parallel/random.py",
    "default_generator = torch.cuda.default_generators[idx]",
)
def set_cuda_rng_state(_: Function) -> Function:
    """Put back on leaving it; without CUDA the original would queue itself for ever."""
    return lambda state, *_args, **_more: torch.set_rng_state(state)
