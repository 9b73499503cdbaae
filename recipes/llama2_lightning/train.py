"""Train Llama 2 with the Lightning Trainer on any number of GPUs, or on CPUs.

    python prepare.py                                    once: text to tokens
    sbatch run.sbatch                                    on a cluster; survives losing nodes
    python train.py train.steps=20                       one process, by hand
    python train.py model.size=7b checkpoint.every=200   any option of config.yaml

Reads top to bottom: `train` is the program, what it calls follows in the order of the calls. Every
launcher that sets RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT will do. Restarts are
not decided here and not by Lightning: contract.py starts from the checkpoint it is given, saves,
leaves when asked and shows life; the end of this file says when it is done
(docs/reference/train_contract.md).
"""

import os
import sys

import resume

if __name__ == "__main__":
    # Before torch is imported, which takes seconds: from here on SIGUSR2 is a request, not a death.
    RUN = resume.Run.from_env()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import errno
import hashlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor
from torch.distributed.tensor import DTensor

from backend import backend_name
from batches import Batches, go_on
from checkpoint import compare, read_facts
from config import Config, accumulation
from config import load as load_config
from contract import Contract
from data import Samples, digest, open_samples, own_positions
from environment import Started
from errors import Stop
from hf_weights import Weights, open_weights
from model import Llama
from module import Pass, Pretraining
from options import flat
from together import agreed, end_together, leave

HERE = Path(__file__).resolve().parent
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

    module = Pretraining(config)
    contract = Contract(
        run, config, (samples, batches), facts=facts, saved=saved, given=given, group=group
    )
    run.note_settings({**flat(config), "optim.began_at": contract.began})
    quieten()
    trainer = pl.Trainer(
        accelerator=device.type,
        devices=[device.index] if device.type == "cuda" else 1,
        num_nodes=run.world_size,  # see environment.py
        strategy=ModelParallelStrategy(data_parallel_size=run.world_size, tensor_parallel_size=1),
        plugins=[Started(run)],
        callbacks=[contract],
        max_steps=config.train.steps,
        max_epochs=-1,  # an epoch never ends: samples are permuted anew within the stream
        accumulate_grad_batches=num_passes,
        default_root_dir=run.dir,
        logger=False,  # log.py; loggers of yours get the same numbers
        # Not Lightning's: checkpoints, requeue, and whatever writes to the screen.
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    stream = Stream(run, config, samples, batches, saved["step"], num_passes)
    trainer.fit(module, train_dataloaders=stream)

    run.beat("save", contract.step)
    contract.saver.finish()
    end_together(contract.saver.problem)
    if contract.step >= config.train.steps:
        weights = digest_weights(run, module.model, contract.step)
        run.done(contract.step, {"final_loss": contract.loss, "weights": weights})
    contract.logger.close()
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


def quieten() -> None:
    """Lightning greets, advises and warns on every rank; what matters is in metrics.jsonl."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


@dataclass(frozen=True)
class Stream:
    """The passes of this rank, in order, from the training step after `step` on."""

    run: resume.Run
    config: Config
    samples: Samples
    batches: Batches
    step: int
    num_passes: int

    def __iter__(self) -> Iterator[Pass]:
        run, train, samples = self.run, self.config.train, self.samples
        for step in range(self.step + 1, train.steps + 1):
            # Batch and training step have the same number, unless data is left out on purpose.
            first = self.batches.first(run.batch(step))
            share = (train.micro_batch, self.num_passes, run.rank, run.world_size)
            upcoming = own_positions(self.batches.first(run.batch(step + 1)), *share)
            samples.prefetch(upcoming, train.seed)
            for positions in own_positions(first, *share):
                ids = samples.order(positions, train.seed)
                tokens = torch.from_numpy(samples.fetch(ids))
                yield Pass(tokens, digest(positions, ids, first))


def whole(tensor: Tensor) -> Tensor:
    """The full value of what may be spread over ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


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
