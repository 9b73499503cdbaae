"""Train Llama 2 with Megatron-Core: tensor x pipeline x data parallel, on GPUs or on CPUs.

    python prepare.py                                    once: text to tokens
    sbatch run.sbatch                                    on a cluster; survives losing nodes
    python train.py train.steps=20                       one process, by hand
    python train.py model.size=7b parallel.machine=p5    any option of config.yaml
    python train.py --check nodes=16 -- model.size=70b parallel.machine=p5

Reads top to bottom: `train` is the program, what it calls follows in the order of the calls. Every
launcher that sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT will
do. Restarts are not decided here: this file starts from the checkpoint it is given, saves, leaves
when asked, shows life and says when it is done (docs/reference/train_contract.md).
"""

import os
import sys
import time

if __name__ == "__main__":
    import before

    CONFIG, RUN = before.begin(sys.argv[1:])  # before torch is imported, which takes seconds

import errno
import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func

import cpu_compat
import resume
import weights
from backend import backend_name
from batches import Batches, go_on
from checkpoint import Saver, compare, load, prepare_adamw, read_facts
from config import Config, Optim
from data import Samples, as_int64, digest, open_samples, own_positions
from errors import Stop
from hf_weights import Weights, open_weights
from log import Logger
from memory import flops_per_token
from model import Kernels, bare, build, uses_bf16
from options import flat
from steps import (
    added,
    evaluate,
    forward_step,
    reads_tokens,
    seed_dropout,
    speaks_for_data,
)
from whole_weights import need_llama

HERE = Path(__file__).resolve().parent
MASK = (1 << 64) - 1
T = TypeVar("T")
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def train(run: resume.Run, config: Config) -> None:
    """The whole program: set up, resume, step, save, leave or finish."""
    kernels = Kernels.here()
    device = connect(run, config, kernels)
    samples = agreed(lambda: open_data(run, config))
    facts = run_facts(config, samples)
    saved = agreed(lambda: read_checkpoint(run, config, facts))
    batches = agreed(lambda: next_batches(run, config, saved))
    given = agreed(lambda: open_init(run, config))
    run.note_settings(flat(config))

    seed_dropout(config.train.seed, saved["step"])
    models = agreed(lambda: build(config, kernels))
    if run.resume is None:
        drawn = weights.initial(config.model, config.train.seed)
        weights.fill(models, config.model, drawn if given is None else given.rows)
    optimizer = make_optimizer(config, kernels, models)
    if run.resume is not None:
        load(run.resume, models, optimizer, saved["step"], saved["format"])
    # The NaNs have shown what was not initialised; in training they would cost memory bandwidth.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    saver = Saver(run, config.checkpoint, models, optimizer, saved["step"] or None)
    flops = flops_per_token(config.model, config.train.seq_len)
    logger = Logger(run, config, device, saved["step"], flops)
    data_rank = parallel_state.get_data_parallel_rank()
    copies = parallel_state.get_data_parallel_world_size()
    num_passes = config.train.global_batch // (config.train.micro_batch * copies)
    forward_backward = get_forward_backward_func()

    step, consumed, loss = saved["step"], saved["consumed"], saved["loss"]
    while step < config.train.steps:
        started = time.perf_counter()
        step += 1
        run.beat("step", step)
        set_learning_rate(optimizer, config.optim, step, config.train.steps)
        seed_dropout(config.train.seed, step)
        # Batch and training step have the same number, unless data is left out on purpose.
        first = batches.first(run.batch(step))
        share = (config.train.micro_batch, num_passes, data_rank, copies)
        passes = own_positions(first, *share)
        if reads_tokens(models):
            upcoming = own_positions(batches.first(run.batch(step + 1)), *share)
            samples.prefetch(upcoming, config.train.seed)
        order = [samples.order(positions, config.train.seed) for positions in passes]
        for model in models:
            model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step(samples, device),
            data_iterator=[iter(order) for _ in models],
            model=models,
            num_microbatches=num_passes,
            seq_length=config.train.seq_len,
            micro_batch_size=config.train.micro_batch,
            forward_only=False,
        )
        _, grad_norm, _ = optimizer.step()

        # The edge: numbers are added over ranks, and all ranks learn of a request or a failure.
        seen = sum(digest(p, ids, first) for p, ids in zip(passes, order, strict=True))
        loss_sum = added(losses, device) / num_passes
        dist.all_reduce(loss_sum)
        words = [as_int64(seen * speaks_for_data() & MASK), int(run.leave_requested)]
        edge = torch.tensor([*words, int(saver.problem is not None)], device=device)
        dist.all_reduce(edge)
        seen, num_leave, num_problems = edge.tolist()
        loss = loss_sum.item() / (copies * config.parallel.context)
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
        saver.poll()
        if config.eval.every and step % config.eval.every == 0:
            run.beat("eval", step)
            metrics["eval_loss"] = evaluate(config, models, samples, device)
        logger.log(metrics)

        leaving, last = num_leave > 0, step == config.train.steps
        if leaving or last or step % config.checkpoint.every == 0:
            run.beat("save", step)
            state = {"step": step, "consumed": consumed, "loss": loss, "batches": batches.sizes}
            saver.save(step, {"run": facts, "layout": fixed_layout(config), **state})
        if leaving and not last:
            break

    run.beat("save", step)
    saver.finish()
    end_together(saver.problem)
    if step >= config.train.steps:
        final = weights.digest(models, config.model, lambda: run.beat("save", step))
        run.done(step, {"final_loss": loss, "weights": final})
    logger.close()
    dist.barrier()  # rank 0 keeps the rendezvous store: nobody leaves before the others are through


def connect(run: resume.Run, config: Config, kernels: Kernels) -> torch.device:
    """Join the other ranks in all the groups that the layout asks for; returns the device."""
    torch.use_deterministic_algorithms(mode=config.train.deterministic)
    if kernels.on_gpu:
        # Slurm may show each task its own GPU only, as number 0.
        device = torch.device("cuda", run.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(config.train.cpu_threads)
        cpu_compat.enable()
    store = None
    if run.world_size == 1:  # by hand: no address needed
        store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(
        backend_name(config.dist.backend, config.dist.plugin, on_gpu=kernels.on_gpu),
        store=store,
        rank=run.rank,
        world_size=run.world_size,
        timeout=timedelta(seconds=config.dist.timeout_s),
        device_id=device if kernels.on_gpu else None,
    )
    parallel = config.parallel
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.interleave
        if parallel.interleave > 1
        else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        distributed_timeout_minutes=math.ceil(config.dist.timeout_s / 60),
        create_gloo_process_groups=False,
    )
    return device


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


def read_checkpoint(run: resume.Run, config: Config, facts: dict[str, Any]) -> dict[str, Any]:
    """Step, consumed samples and loss to go on from; refuses a checkpoint of another run."""
    if run.resume is None:
        return {"step": 0, "consumed": 0, "loss": None, "batches": None}
    saved = read_facts(run.resume)
    compare(run.resume, saved["run"], facts)
    if saved["format"] == "dp_reshardable":
        compare(run.resume, saved["layout"], fixed_layout(config))
    return saved


def next_batches(run: resume.Run, config: Config, saved: dict[str, Any]) -> Batches:
    """Batches of this size from here on; those before the checkpoint keep theirs."""
    size = config.train.global_batch
    return go_on(saved["batches"], run.batch(saved["step"]), size, run.skip)


def open_init(run: resume.Run, config: Config) -> Weights | None:
    """Weights to start from, looked through; None: a checkpoint is there, or they are drawn."""
    if run.resume is not None or config.train.init is None:
        return None
    need_llama("train.init", config.model)
    places = [base / config.train.init for base in (run.recipe_dir, HERE)]
    return open_weights(next((p for p in places if p.is_dir()), places[0]), config.model)


def fixed_layout(config: Config) -> dict[str, Any]:
    """What a checkpoint that is not fully reshardable must find again."""
    names = ("tensor", "pipeline", "interleave", "expert")
    return {f"parallel.{name}": getattr(config.parallel, name) for name in names}


def make_optimizer(config: Config, kernels: Kernels, models: list[Any]) -> Any:
    """AdamW with its state spread over the data parallel ranks, tied to the model's schedules."""
    options, bf16 = config.optim, uses_bf16(config, kernels)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam",
            lr=options.lr,
            adam_beta1=options.beta1,
            adam_beta2=options.beta2,
            adam_eps=options.eps,
            weight_decay=options.weight_decay,
            clip_grad=options.clip_norm,
            bf16=bf16,
            params_dtype=torch.bfloat16 if bf16 else torch.float32,
            use_distributed_optimizer=True,
            overlap_param_gather=config.parallel.overlap,
        ),
        models,
        use_gloo_process_groups=False,
    )
    prepare_adamw(optimizer)
    schedules = bare(models[0]).config
    schedules.finalize_model_grads_func = finalize_model_grads
    schedules.grad_scale_func = optimizer.scale_loss
    if config.parallel.overlap:
        waits = [model.no_sync for model in models]
        schedules.no_sync_func = waits if len(waits) > 1 else waits[0]
    return optimizer


def set_learning_rate(optimizer: Any, options: Optim, step: int, num_steps: int) -> None:
    """The rate follows from the training step alone, so there is no scheduler to save.

    The library's scheduler would also be what keeps weight decay away from norms and biases: it
    multiplies it by the group's "wd_mult".
    """
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(options, step, num_steps)
        group["weight_decay"] = options.weight_decay * group["wd_mult"]


def learning_rate(options: Optim, step: int, num_steps: int) -> float:
    """Linear from 0 to the peak in warmup_steps, then half a cosine down to min_lr_ratio of it."""
    if step <= options.warmup_steps:
        return options.lr * step / options.warmup_steps
    done = min(1.0, (step - options.warmup_steps) / max(1, num_steps - options.warmup_steps))
    low = options.lr * options.min_lr_ratio
    return low + (options.lr - low) * (1 + math.cos(math.pi * done)) / 2


def main(run: resume.Run, config: Config) -> int:
    """Exit code: 0 done or left when asked; otherwise errors.py."""
    try:
        train(run, config)
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
        CODE = main(RUN, CONFIG)
    except BaseException:  # noqa: BLE001  (whatever it is, the other ranks must notice soon)
        import traceback

        traceback.print_exc()
        CODE = Stop.CRASH
    leave(CODE)
