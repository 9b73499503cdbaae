"""Train Llama 2 with NVIDIA NeMo 2.7: tensor x pipeline x data parallel, on GPUs or on CPUs.

    python prepare.py                                    once: text to tokens
    sbatch run.sbatch                                    on a cluster; survives losing nodes
    python train.py train.steps=20                       one process, by hand
    python train.py model.size=7b parallel.machine=p5    any option of config.yaml
    python train.py --check nodes=16 -- model.size=70b parallel.machine=p5

Reads top to bottom: `train` puts NeMo's parts together and hands them to `llm.train`. Every
launcher that sets RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT will
do. Restarts are not decided here and not by NeMo: contract.py starts from the checkpoint it is
given, saves, leaves when asked and shows life; this file says when it is done
(docs/reference/train_contract.md).
"""

import sys

if __name__ == "__main__":
    import before
    import quiet

    CONFIG, RUN = before.begin(sys.argv[1:])  # before NeMo is imported, which takes many seconds
    quiet.before_imports()

import errno
import os
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from nemo import lightning as nl
from nemo.collections import llm

import cpu_compat
import quiet
import resume
import weights
from backend import backend_name
from batches import Batches, go_on
from checkpoint import WEIGHTS, Finalizer, Saver, compare, read_facts
from config import Config
from contract import Contract, fixed_layout
from data import Samples, open_samples
from errors import Stop
from feed import Feed, Stream
from hf_weights import Weights, open_weights
from model import Kernels, describe
from options import flat
from strategy import make_optimizer, make_trainer
from together import agreed, end_together, leave

HERE = Path(__file__).resolve().parent
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}


def train(run: resume.Run, config: Config) -> None:
    """The whole program: set up, resume, train, finish."""
    kernels = Kernels.here()
    device = connect(run, config, kernels)
    samples = agreed(lambda: open_data(run, config))
    facts = run_facts(config, samples)
    saved = agreed(lambda: read_checkpoint(run, config, facts))
    batches = agreed(lambda: next_batches(run, config, saved))
    given = agreed(lambda: open_init(run, config))
    run.note_settings(flat(config))
    described = agreed(lambda: describe(config, kernels))

    trainer = make_trainer(run, config, kernels, saved["step"], given)
    saver = Saver(run, config.checkpoint, saved["step"] or None)
    stream = Stream(run, config, samples, batches)
    contract = Contract(run, config, stream, saver, device=device, saved=saved, facts=facts)
    # Not arguments of the constructor: NeMo copies those.
    trainer.callbacks += [Finalizer(saver)] if config.checkpoint.mode == "async" else []
    trainer.callbacks += [contract, saver]
    quiet.after_imports()
    llm.train(
        model=llm.LlamaModel(described),
        data=Feed(config, stream, saved["step"]),
        trainer=trainer,
        log=nl.NeMoLogger(explicit_log_dir=str(run.dir / "nemo")),
        # Which checkpoint is the supervisor's decision, so nothing is looked for.
        resume=nl.AutoResume(resume_from_path=str(run.resume / WEIGHTS) if run.resume else None),
        optim=make_optimizer(config, kernels),
    )
    finish(run, config, trainer, contract)


def finish(run: resume.Run, config: Config, trainer: nl.Trainer, contract: Contract) -> None:
    """After the last training step of this attempt."""
    step, saver = contract.step, contract.saver
    run.beat("save", step)
    saver.finish(trainer)
    end_together(saver.problem)
    if step >= config.train.steps:
        pieces = list(trainer.strategy.megatron_parallel)
        final = weights.digest(pieces, config.model, lambda: run.beat("save", step))
        run.done(step, {"final_loss": contract.loss, "weights": final})
    contract.logger.close()
    dist.barrier()  # rank 0 keeps the rendezvous store: nobody leaves before the others are through


def connect(run: resume.Run, config: Config, kernels: Kernels) -> torch.device:
    """Join the other ranks; returns the device. NeMo's own groups follow from the layout."""
    torch.use_deterministic_algorithms(mode=config.train.deterministic)
    if kernels.on_gpu:
        # Slurm may show each task its own GPU only, as number 0.
        device = torch.device("cuda", run.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(config.train.cpu_threads)
        # Without it Lightning sets as many threads as there are CPUs.
        os.environ["OMP_NUM_THREADS"] = str(config.train.cpu_threads)
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
    return device


def open_data(run: resume.Run, config: Config) -> Samples:
    """Prepared data of the folder the user submitted, or else beside this file."""
    places = (run.recipe_dir, HERE)
    samples = open_samples(config.data, places, config.train.seq_len, config.eval.samples)
    if samples.vocab_size > config.model.vocab_size:
        what = f"the data has {samples.vocab_size} tokens, the model {config.model.vocab_size}"
        raise Stop(Stop.CONFIG, "model.vocab_size", what, f"set it to {samples.vocab_size}")
    return samples


def open_init(run: resume.Run, config: Config) -> Weights | None:
    """Weights to start from, looked through; None: a checkpoint is there, or they are drawn."""
    if run.resume is not None or config.train.init is None:
        return None
    places = [base / config.train.init for base in (run.recipe_dir, HERE)]
    return open_weights(next((p for p in places if p.is_dir()), places[0]), config.model)


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
    if saved["layout"]["checkpoint.format"] == "dp_reshardable":
        now = {**fixed_layout(config), "checkpoint.format": "dp_reshardable"}
        compare(run.resume, saved["layout"], now)
    return saved


def next_batches(run: resume.Run, config: Config, saved: dict[str, Any]) -> Batches:
    """Batches of this size from here on; those before the checkpoint keep theirs."""
    size = config.train.global_batch
    return go_on(saved["batches"], run.batch(saved["step"]), size, run.skip)


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
