"""Train Llama 2 with FSDP2 on any number of GPUs, or on CPUs.

    python prepare.py                                    once: text to tokens
    sbatch run.sbatch                                    on a cluster; survives losing nodes
    python train.py train.steps=20                       one process, by hand
    python train.py model.size=7b checkpoint.every=200   any option of config.yaml

Reads top to bottom: `train` is the program, what it calls follows in the order of the calls. Every
launcher that sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT will do. Restarts are
not decided here: this file starts from the checkpoint it is given, saves, leaves when asked, shows
life and says when it is done (docs/reference/train_contract.md).
"""

import os
import sys
import time

import resume

if __name__ == "__main__":
    # Before torch is imported, which takes seconds: from here on SIGUSR2 is a request, not a death.
    RUN = resume.Run.from_env()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import errno
import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F  # noqa: N812  (everybody calls it F)

from backend import backend_name
from batches import Batches, go_on
from checkpoint import Saver, compare, live_state, load, read_facts
from config import Config, Optim, accumulation
from config import load as load_config
from data import Samples, as_int64, digest, open_samples, own_positions
from errors import Stop
from hf_weights import Weights, open_weights
from log import Logger
from model import Llama, copy_weights, flops_per_token, init_weights
from optimizers import began_at, make_optimizer
from options import flat

HERE = Path(__file__).resolve().parent
MASK = (1 << 64) - 1
T = TypeVar("T")
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def train(run: resume.Run, config: Config) -> None:
    """The whole program: set up, resume, step, save, leave or finish."""
    num_passes = accumulation(config, run.world_size)
    device, group = connect(run, config)
    samples = agreed(lambda: open_data(run, config))
    facts = run_facts(config, samples)
    saved = agreed(lambda: read_checkpoint(run, facts))
    batches = agreed(lambda: next_batches(run, config, saved))
    given = agreed(lambda: open_init(run, config))
    began = began_at(saved, config.optim.kind)
    run.note_settings({**flat(config), "optim.began_at": began})

    model, optimizer = build(config, device)
    if run.resume is not None:
        load(run.resume, model, optimizer, saved["step"] - began, group)
    elif given is not None:
        copy_weights(model, given.rows)
    else:
        init_weights(model, config.train.seed)
    # The NaNs have shown what was not initialised; in training they would cost memory bandwidth.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    saver = Saver(
        run, config.checkpoint, live_state(model, optimizer), group, saved["step"] or None
    )
    flops = flops_per_token(config.model, config.train.seq_len)
    logger = Logger(run, config, device, saved["step"], flops)

    step, consumed, loss = saved["step"], saved["consumed"], saved["loss"]
    while step < config.train.steps:
        started = time.perf_counter()
        step += 1
        run.beat("step", step)
        set_learning_rate(optimizer, learning_rate(config.optim, step, config.train.steps))
        # Batch and training step have the same number, unless data is left out on purpose.
        first = batches.first(run.batch(step))
        share = (config.train.micro_batch, num_passes, run.rank, run.world_size)
        passes = own_positions(first, *share)
        upcoming = own_positions(batches.first(run.batch(step + 1)), *share)
        samples.prefetch(upcoming, config.train.seed)
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        seen = 0
        for positions in passes:
            ids = samples.order(positions, config.train.seed)
            tokens = torch.from_numpy(samples.fetch(ids)).to(device)
            seen += digest(positions, ids, first)
            pass_loss = cross_entropy(model, tokens).mean() / num_passes
            # Reduced after every pass: adding up whole gradients would need memory for all of them.
            pass_loss.backward()  # type: ignore[no-untyped-call]
            loss_sum += pass_loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optim.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

        # The edge: numbers are added over ranks, and all ranks learn of a request or a failure.
        dist.all_reduce(loss_sum)
        words = [as_int64(seen & MASK), int(run.leave_requested), int(saver.problem is not None)]
        edge = torch.tensor(words, device=device)
        dist.all_reduce(edge)
        seen, num_leave, num_problems = edge.tolist()
        loss, grad_norm = loss_sum.item() / run.world_size, whole(norm).item()
        consumed += config.train.global_batch
        if num_problems:
            end_together(saver.problem)
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            what = f"loss {loss}, gradient norm {grad_norm}"
            fix = "lower optim.lr or look at the data of this step"
            end_together(Stop(Stop.DIVERGED, f"training step {step}", what, fix))
        metrics = {
            "step": step,
            "loss": loss,
            "grad_norm": grad_norm,
            "lr": optimizer.param_groups[0]["lr"],
            "tokens": consumed * config.train.seq_len,
            "step_s": time.perf_counter() - started,
            "first_sample": first,
            "num_samples": config.train.global_batch,
            "samples": f"{seen & MASK:016x}",  # who saw what, over all ranks
        }
        if config.eval.every and step % config.eval.every == 0:
            run.beat("eval", step)
            metrics["eval_loss"] = evaluate(run, config, model, samples, device)
        logger.log(metrics)

        leaving, last = num_leave > 0, step == config.train.steps
        if leaving or last or step % config.checkpoint.every == 0:
            run.beat("save", step)
            state = {"step": step, "consumed": consumed, "loss": loss, "batches": batches.sizes}
            state["optimizer"] = {"kind": config.optim.kind, "began_at": began}
            saver.save(step, {"run": facts, **state})
        if leaving and not last:
            break

    run.beat("save", step)
    saver.finish()
    end_together(saver.problem)
    if step >= config.train.steps:
        run.done(step, {"final_loss": loss, "weights": digest_weights(run, model, step)})
    logger.close()
    dist.barrier()  # rank 0 keeps the rendezvous store: nobody leaves before the others are through


def connect(run: resume.Run, config: Config) -> tuple[torch.device, dist.ProcessGroup]:
    """Join the other ranks; returns this rank's device and a group of its own for checkpoints."""
    torch.use_deterministic_algorithms(mode=True)
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        # Slurm may show each task its own GPU only, as number 0.
        device = torch.device("cuda", run.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(config.train.cpu_threads)
    timeout = timedelta(seconds=config.dist.timeout_s)
    backend = backend_name(config.dist.backend, config.dist.plugin, on_gpu=on_gpu)
    store = None
    if run.world_size == 1:  # by hand: no address needed
        store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(
        f"cuda:{backend},cpu:gloo" if on_gpu else backend,
        store=store,
        rank=run.rank,
        world_size=run.world_size,
        timeout=timeout,
        device_id=device if on_gpu else None,
    )
    return device, dist.new_group(backend="gloo", timeout=timeout)


def agreed(work: Callable[[], T]) -> T:
    """Do work that may fail on some ranks only; if it does, all ranks end together."""
    try:
        result = work()
    except Stop as stop:
        end_together(stop)
        raise
    end_together(None)
    return result


def end_together(problem: Stop | None) -> None:
    """If any rank has a problem, the first such rank says it and all end with its code."""
    found: list[tuple[int, str] | None] = [None] * dist.get_world_size()
    mine = None if problem is None else (problem.code, str(problem))
    dist.all_gather_object(found, mine)
    for rank, problem_there in enumerate(found):
        if problem_there is not None:
            code, line = problem_there
            if rank == dist.get_rank():
                print(line, file=sys.stderr)
            dist.barrier()  # the line is out before anybody's exit ends the others
            leave(code)


def leave(code: int) -> NoReturn:
    """End at once: a thread that still writes a checkpoint must not hold up the exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def open_data(run: resume.Run, config: Config) -> Samples:
    """Prepared data of the folder the user submitted, or else beside this file."""
    places = (run.recipe_dir, HERE)
    samples = open_samples(config.data, places, config.train.seq_len, config.eval.samples)
    if samples.vocab_size > config.model.vocab_size:
        what = f"the data has {samples.vocab_size} tokens, the model {config.model.vocab_size}"
        raise Stop(Stop.CONFIG, "model.vocab_size", what, f"set it to {samples.vocab_size}")
    return samples


def run_facts(config: Config, samples: Samples) -> dict[str, Any]:
    """What must stay the same from the first training step to the last."""
    names = ("seq_len", "seed")
    return {
        **{f"model.{key}": value for key, value in asdict(config.model).items()},
        **{f"train.{name}": getattr(config.train, name) for name in names},
        "eval.samples": config.eval.samples,
        **samples.facts,
    }


def read_checkpoint(run: resume.Run, facts: dict[str, Any]) -> dict[str, Any]:
    """Step, consumed samples and loss to go on from; refuses a checkpoint of another run."""
    if run.resume is None:
        return {"step": 0, "consumed": 0, "loss": None, "batches": None}
    saved = read_facts(run.resume)
    compare(run.resume, saved["run"], facts)
    return saved


def next_batches(run: resume.Run, config: Config, saved: dict[str, Any]) -> Batches:
    """Batches of this size from here on; those before the checkpoint keep theirs."""
    size = config.train.global_batch
    return go_on(saved["batches"], run.batch(saved["step"]), size, run.skip)


def open_init(run: resume.Run, config: Config) -> Weights | None:
    """Weights to start from, looked through; None: a checkpoint is there, or they are drawn."""
    if run.resume is not None or config.train.init is None:
        return None
    places = [base / config.train.init for base in (run.recipe_dir, HERE)]
    return open_weights(next((p for p in places if p.is_dir()), places[0]), config.model)


def build(config: Config, device: torch.device) -> tuple[Llama, torch.optim.Optimizer]:
    """A sharded model whose weights are not yet set, and its optimizer.

    Built on the meta device: no rank ever holds the whole model. Deterministic mode fills fresh
    memory with NaN, so a weight that nobody sets shows in the first loss.
    """
    with torch.device("meta"):
        model = Llama(config.model, config.train.seq_len, config.train.recompute)
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
    return model, make_optimizer(config.optim, model.parameters())


def learning_rate(options: Optim, step: int, num_steps: int) -> float:
    """Linear from 0 to the peak in warmup_steps, then half a cosine down to min_lr_ratio of it."""
    if step <= options.warmup_steps:
        return options.lr * step / options.warmup_steps
    done = min(1.0, (step - options.warmup_steps) / max(1, num_steps - options.warmup_steps))
    low = options.lr * options.min_lr_ratio
    return low + (options.lr - low) * (1 + math.cos(math.pi * done)) / 2


def set_learning_rate(optimizer: torch.optim.Optimizer, value: float) -> None:
    """The rate follows from the training step alone, so there is no scheduler to save."""
    for group in optimizer.param_groups:
        group["lr"] = value


def cross_entropy(model: Llama, tokens: Tensor) -> Tensor:
    """Mean loss of each sample: (samples, seq_len + 1) tokens to (samples,), fp32."""
    logits = model(tokens[:, :-1]).float()
    each = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return each.view(tokens.shape[0], -1).mean(1)


def whole(tensor: Tensor) -> Tensor:
    """The full value of what may be spread over ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def evaluate(
    run: resume.Run, config: Config, model: Llama, samples: Samples, device: torch.device
) -> float:
    """Mean loss on the held-out samples, the same ones every time.

    All ranks make the same number of passes, as FSDP needs; what is short is filled up and not
    counted.
    """
    size, stride = config.train.micro_batch, config.train.micro_batch * run.world_size
    total = torch.zeros((), dtype=torch.float64, device=device)
    for first in range(run.rank * size, -(-config.eval.samples // stride) * stride, stride):
        numbers = range(first, first + size)
        counts = torch.tensor([n < config.eval.samples for n in numbers], device=device)
        tokens = torch.from_numpy(samples.fetch(samples.eval_ids(numbers))).to(device)
        total += (cross_entropy(model, tokens) * counts).sum()
    dist.all_reduce(total)
    return total.item() / config.eval.samples


@torch.no_grad()
def digest_weights(run: resume.Run, model: Llama, step: int) -> str:
    """SHA-256 over the full final weights, whatever the world size.

    Parameters are gathered one at a time and hashed by the ranks in turn.
    """
    mine = {}
    for number, (name, parameter) in enumerate(model.named_parameters()):
        run.beat("save", step)
        full = whole(parameter)
        if number % run.world_size == run.rank:
            mine[name] = hashlib.sha256(full.cpu().numpy().tobytes()).hexdigest()
    found: list[dict[str, str]] = [{}] * run.world_size
    dist.all_gather_object(found, mine)
    lines = sorted(f"{name} {value}" for part in found for name, value in part.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def main(run: resume.Run, words: list[str]) -> int:
    """Exit code: 0 done or left when asked; otherwise errors.py."""
    try:
        train(run, load_config(HERE, words))
    except Stop as stop:
        # Found before the ranks are connected, so by each alike. All say it: the first to exit ends
        # the others, maybe before they have said a word.
        print(stop, file=sys.stderr)
        return stop.code
    except resume.Fenced as error:
        print(f"train.py: {error}. Fix: nothing: the newer attempt goes on", file=sys.stderr)
        return Stop.TEMPORARY
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        print(f"train.py: {error}. Fix: free or repair the disk of RUN_DIR", file=sys.stderr)
        return Stop.STORAGE
    return 0


if __name__ == "__main__":
    try:
        CODE = main(RUN, sys.argv[1:])
    except BaseException:  # noqa: BLE001  (whatever it is, the other ranks must notice soon)
        import traceback

        traceback.print_exc()
        CODE = Stop.CRASH
    leave(CODE)
