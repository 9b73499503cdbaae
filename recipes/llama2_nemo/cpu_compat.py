"""What NeMo and Megatron-Core need to train on CPUs: where they say CUDA and mean "the device".

With CUDA nothing here does anything. Without, `enable` replaces the functions below, once, before a
model is built. Each says why it is there and which line of the libraries (NeMo 2.7.3, Megatron-Core
0.15.3) it answers; a test takes them away one by one and fails when the libraries train without, so
that none outlives its reason. This is for trying a layout, a resume or a repair without GPUs; no
speed is meant.
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
    file: str  # of a library, where it is needed
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
    import nemo.lightning.io.pl  # noqa: F401, PLC0415

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


@answers(
    "torch.cuda:current_device",
    "megatron/core/tensor_parallel/layers.py",
    "torch.cuda.current_device()",
)
def current_device(_: Function) -> Function:
    """Weights, buffers and messages between pipeline ranks are made on the current device."""
    return lambda: CPU


def on_cpu(original: Function) -> Function:
    """A factory of tensors for which device="cuda" means the CPU."""

    @wraps(original)
    def factory(*args: Any, **more: Any) -> Any:
        if str(more.get("device", "")).startswith("cuda"):
            more["device"] = CPU
        more.pop("pin_memory", None)  # host memory that a GPU can read
        return original(*args, **more)

    return factory


@answers(
    "torch:zeros",
    "megatron/core/optimizer/clip_grads.py",
    "torch.zeros(1, dtype=torch.int, device='cuda')",
)
def zeros(original: Function) -> Function:
    """Counters of tokens and the flag of the gradient norm; the device is written out."""
    return on_cpu(original)


@answers("torch:tensor", "megatron/core/optimizer/optimizer.py", "dtype=torch.int, device='cuda'")
def tensor(original: Function) -> Function:
    """Scales of the mixed precision optimizer, from which the distributed one is derived."""
    return on_cpu(original)


@answers("torch:ones", "megatron/core/transformer/utils.py", 'torch.ones(sq, sq, device="cuda")')
def ones(original: Function) -> Function:
    """The causal mask of the attention that needs no Transformer Engine."""
    return on_cpu(original)


@answers(
    "torch:Tensor.type", "megatron/core/optimizer/clip_grads.py", "== 'torch.cuda.FloatTensor'"
)
def tensor_type(original: Function) -> Function:
    """The optimizer tells weights by their type's name, and knows only names with cuda."""

    @wraps(original)
    def named(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        found = original(self, *args, **more)
        asked = not args and not more
        return found.replace("torch.", "torch.cuda.", 1) if asked else found

    return named


@answers(
    "torch:Tensor.cuda",
    "megatron/core/optimizer/distrib_optimizer.py",
    "send_tensor = send_tensor.cuda()",
)
def to_cuda(_: Function) -> Function:
    """AdamW's state is sent to the device to be gathered for a checkpoint that can be resharded."""
    return lambda self, *_args, **_more: self


@answers(
    "torch.cuda:synchronize",
    "megatron/core/dist_checkpointing/strategies/filesystem_async.py",
    "torch.cuda.synchronize()",
)
def synchronize(_: Function) -> Function:
    """Nothing runs behind Python's back."""
    return lambda *_args, **_more: None


@answers(
    "torch.cuda:get_rng_state",
    "megatron/core/tensor_parallel/random.py",
    "torch.cuda.get_rng_state()",
)
def get_rng_state(_: Function) -> Function:
    """The random state of dropout is kept apart for tensor parallel regions."""
    return lambda *_args, **_more: torch.get_rng_state()


@answers(
    "torch.cuda:manual_seed",
    "megatron/core/tensor_parallel/random.py",
    "torch.cuda.manual_seed(seed)",
)
def manual_seed(_: Function) -> Function:
    """Each of these states has its own seed."""
    return torch.manual_seed


@answers(
    "megatron.core.tensor_parallel.random:_get_cuda_rng_state",
    "megatron/core/tensor_parallel/random.py",
    "return torch.cuda.random.get_rng_state(device=device)",
)
def get_cuda_rng_state(_: Function) -> Function:
    """Saved on entering a tensor parallel region, and for recomputation."""
    return lambda *_args, **_more: torch.get_rng_state()


@answers(
    "megatron.core.tensor_parallel.random:_set_cuda_rng_state",
    "megatron/core/tensor_parallel/random.py",
    "default_generator = torch.cuda.default_generators[idx]",
)
def set_cuda_rng_state(_: Function) -> Function:
    """Put back on leaving it; without CUDA the original would queue itself for ever."""
    return lambda state, *_args, **_more: torch.set_rng_state(state)


@answers(
    "torch.cuda:Stream",
    "nemo/lightning/megatron_parallel.py",
    "with torch.cuda.stream(torch.cuda.Stream()):",
)
def stream(_: Function) -> Function:
    """A model is wrapped on a stream of its own; None means: none."""
    return lambda *_args, **_more: None


@answers(
    "torch:Tensor.to",
    "nemo/lightning/pytorch/strategies/megatron_strategy.py",
    'pin_memory=True).to("cuda", non_blocking=True)',
)
def tensor_to(original: Function) -> Function:
    """Numbers that NeMo logs are sent to the device first; it is written out."""

    @wraps(original)
    def moved(self: torch.Tensor, *args: Any, **more: Any) -> Any:
        if args and str(args[0]) == "cuda":
            args = (CPU, *args[1:])
        return original(self, *args, **more)

    return moved


@answers(
    "nemo.lightning.io.pl:_fix_tensors_device",
    "nemo/lightning/io/pl.py",
    "assert torch.cuda.is_initialized()",
)
def fix_tensors_device(_: Function) -> Function:
    """What was loaded is moved to the GPU of this rank."""
    return lambda checkpoint: checkpoint
