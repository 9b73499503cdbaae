"""What happens before torch is imported, which takes seconds: options, layout, signals.

A wrong option or a layout that does not fit ends here, on every rank alike, with one line. The same
check without training, on any machine:

    python train.py --check nodes=16 ranks_per_node=8 -- model.size=70b parallel.machine=p5
"""

import importlib.util
import os
import sys
import warnings
from pathlib import Path

import resume
from config import Config, load
from errors import Stop
from layout import Ranks, accumulation, check, data_parallel
from memory import GIB, USABLE, count_parameters, estimate

HERE = Path(__file__).resolve().parent
USAGE = "python train.py --check nodes=N ranks_per_node=N -- section.key=value ..."
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is deterministic with it
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",  # tensor parallel: messages start before what hides them
}


def begin(words: list[str]) -> tuple[Config, resume.Run]:
    """Options and run, or the end of the process."""
    try:
        if words[:1] == ["--check"]:
            print(report(words[1:]))
            sys.exit(0)
        run = resume.Run.from_env()  # from here on SIGUSR2 is a request, not a death
        config = load(HERE, words)
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE") or run.world_size)
        check(config, Ranks(run.world_size, per_node))
        need_psutil()
    except Stop as stop:
        # All say it: the first to exit ends the others, maybe before they have said a word.
        print(stop, file=sys.stderr)
        sys.exit(stop.code)
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # The library says on every rank what is not installed; model.py decides about that.
    warnings.filterwarnings("ignore", category=UserWarning, module="megatron")
    # It calls torch by names that are about to change.
    warnings.filterwarnings("ignore", category=FutureWarning, module="megatron|torch")
    if config.train.deterministic:
        os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # Transformer Engine
    return config, run


def need_psutil() -> None:
    """Megatron-Core's writers use it, do not declare it, and hang for ever without.

    Raises:
        Stop: it is not installed (69).
    """
    if importlib.util.find_spec("psutil") is None:
        what = "is not installed, and without it Megatron-Core never ends a checkpoint"
        raise Stop(Stop.UNAVAILABLE, "Python package psutil", what, "pip install psutil")


def report(words: list[str]) -> str:
    """What the layout comes to.

    Raises:
        Stop: it does not fit (78), or the words cannot be understood (64).
    """
    places, _, options = " ".join(words).partition("-- ")
    asked = dict(word.partition("=")[::2] for word in places.split())
    config = load(HERE, options.split())
    numbers = {"nodes": 1, "ranks_per_node": config.machine.gpus or 1}
    for key, text in asked.items():
        if key not in numbers or not text.isdigit() or int(text) < 1:
            raise Stop(Stop.USAGE, f"--check {key}={text}", "not understood", USAGE)
        numbers[key] = int(text)
    ranks = Ranks(numbers["nodes"] * numbers["ranks_per_node"], numbers["ranks_per_node"])
    check(config, ranks)
    need = estimate(config, ranks.total)
    parallel = config.parallel
    parts = {
        "weights": need.weights,
        "gradients": need.gradients,
        "optimizer": need.optimizer,
        "activations": need.activations + need.logits,
    }
    copies = f"data {data_parallel(config, ranks)}"
    whole = f"{config.model.size}: {count_parameters(config.model):,} parameters"
    split = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context}"
    passes = f"{accumulation(config, ranks)} forward passes"
    micro = f"micro batch {config.train.micro_batch}"
    sizes = " + ".join(f"{name} {value / GIB:.1f}" for name, value in parts.items())
    lines = [
        f"{whole} on {ranks.total} ranks = {split} x {copies}",
        f"batch {config.train.global_batch} = {micro} x {passes} x {copies}",
        f"memory for each GPU, estimated: {need.total / GIB:.1f} GiB = {sizes}",
    ]
    if config.machine.memory_gb is not None:
        usable = config.machine.memory_gb * USABLE
        lines.append(f"usable: {usable:.0f} GiB of {config.machine.memory_gb}")
    return "\n".join(lines)
