"""What NeMo AutoModel needs to train on CPUs: where it says CUDA and means "the device".

With CUDA nothing here does anything. Without, `enable` replaces what stands below, once, before a
model is built. Each says why it is there and which line of the library (0.7.0) it answers; a test
takes them away one by one and fails when the library trains without, so that none outlives its
reason. This is for trying a resume or a repair without GPUs; no speed is meant.
"""

import sys
import types
from collections.abc import Callable, Collection
from dataclasses import dataclass
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
    import nemo_automodel._transformers.auto_model  # noqa: F401, PLC0415  (takes seconds)

    for shim in SHIMS:
        if shim.target not in without:
            module, _, path = shim.target.partition(":")
            *owners, name = path.split(".")
            owner: Any = sys.modules[module]
            for step in owners:
                owner = getattr(owner, step)
            setattr(owner, name, shim.make(getattr(owner, name)))
    return True


@answers(
    "torch.cuda:current_device",
    "nemo_automodel/_transformers/auto_model.py",
    "device = torch.cuda.current_device()",
)
def current_device(_: Function) -> Function:
    """Weights are made on the current device."""
    return lambda: CPU


@answers(
    "nemo_automodel._transformers.auto_model:torch",
    "nemo_automodel/_transformers/auto_model.py",
    'device=torch.device("cuda", torch.cuda.current_device()),',
)
def torch_of_auto_model(original: Any) -> Any:
    """The device is written out; in that module alone `torch.device("cuda", ...)` is the CPU."""

    class Torch(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            return getattr(original, name)

    replaced = Torch("torch")
    replaced.device = lambda *_args, **_more: CPU  # type: ignore[attr-defined]
    return replaced
