"""Does the layout fit the ranks? Decided before anything is loaded, with the nearest that does.

    python train.py --check nodes=16 ranks_per_node=8 -- model.size=70b parallel.machine=p5

Pure: options and two numbers in, problems out. Standard library only.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from config import Config
from errors import Stop
from memory import GIB, USABLE, estimate

SHOWN = 3  # suggestions in an error
MOST_NODES = 513  # as far as a suggestion looks


@dataclass(frozen=True)
class Ranks:
    """Where the run will be."""

    total: int
    per_node: int


def data_parallel(config: Config, ranks: Ranks) -> int:
    """Copies of the model: world size / (tensor x pipeline x context)."""
    parallel = config.parallel
    return ranks.total // (parallel.tensor * parallel.pipeline * parallel.context)


def accumulation(config: Config, ranks: Ranks) -> int:
    """Forward passes of each copy of the model in one training step."""
    return config.train.global_batch // (config.train.micro_batch * data_parallel(config, ranks))


def check(config: Config, ranks: Ranks) -> None:
    """Refuse a layout that cannot work.

    Raises:
        Stop: the first problem, and the nearest valid layouts (exit code 78).
    """
    for where, what in problems(config, ranks):
        raise Stop(Stop.CONFIG, where, what, advice(config, ranks))


def advice(config: Config, ranks: Ranks) -> str:
    """The nearest valid layouts as words for the command line."""
    found = nearest(config, ranks)
    if found:
        return f"nearest valid: {'; '.join(found)}"
    for nodes in range(1 + ranks.total // ranks.per_node, MOST_NODES):
        more = Ranks(nodes * ranks.per_node, ranks.per_node)
        if fits(config, more):
            found.append(f"{more.total} ranks as it is")
            break
        if not found and (changed := nearest(config, more)):
            found.append(f"{more.total} ranks with {changed[0]}")
    if not found:
        return "no number of ranks fits either: change the model or the batch"
    return f"no layout of {ranks.total} ranks fits; nearest valid: {'; '.join(found)}"


def fits(config: Config, ranks: Ranks) -> bool:
    """Whether the layout has no problem."""
    return next(problems(config, ranks), None) is None


def problems(config: Config, ranks: Ranks) -> Iterator[tuple[str, str]]:
    """(option, what is wrong with it), in the order in which one would repair them."""
    parallel, model, train = config.parallel, config.model, config.train
    if ranks.per_node % parallel.tensor:
        what = f"{parallel.tensor} does not divide the {ranks.per_node} ranks of a node, and"
        yield "parallel.tensor", f"{what} tensor parallel ranks must share one"
    yield from _divides(parallel.tensor, model)
    unit = parallel.tensor * parallel.pipeline * parallel.context
    split = f"tensor {parallel.tensor} x pipeline {parallel.pipeline} x context {parallel.context}"
    if ranks.total % unit:
        yield "parallel", f"{ranks.total} ranks are not a multiple of {split} = {unit}"
        return  # what follows is about the number of copies
    pieces = parallel.pipeline * parallel.interleave
    if model.num_layers % pieces:
        what = f"{model.num_layers} layers do not divide into pipeline {parallel.pipeline}"
        yield "parallel.pipeline", f"{what} x interleave {parallel.interleave} = {pieces} pieces"
    if parallel.interleave > 1 and parallel.pipeline == 1:
        yield "parallel.interleave", f"{parallel.interleave} needs parallel.pipeline above 1"
    if parallel.sequence and train.seq_len % (parallel.tensor * parallel.context):
        what = f"train.seq_len {train.seq_len} does not divide by tensor x context"
        yield "parallel.sequence", f"{what} = {parallel.tensor * parallel.context}"
    if parallel.context > 1 and train.seq_len % (2 * parallel.context):
        what = f"train.seq_len {train.seq_len} does not divide by 2 x {parallel.context}"
        yield "parallel.context", what
    yield from _experts(config, ranks)
    yield from _batch(config, ranks)
    yield from _memory(config, ranks)


def _divides(tensor: int, model: Any) -> Iterator[tuple[str, str]]:
    for name in ("num_heads", "num_kv_heads", "ffn_dim", "vocab_size"):
        if getattr(model, name) % tensor:
            what = f"{tensor} does not divide model.{name} {getattr(model, name)}"
            yield "parallel.tensor", what


def _experts(config: Config, ranks: Ranks) -> Iterator[tuple[str, str]]:
    parallel, num_experts = config.parallel, config.model.num_experts
    if parallel.expert > 1:
        copies = ranks.total // (parallel.tensor * parallel.pipeline)
        if not num_experts or num_experts % parallel.expert:
            what = f"{parallel.expert} does not divide model.num_experts {num_experts}"
            yield "parallel.expert", what
        elif copies % parallel.expert:
            what = f"{parallel.expert} does not divide data x context parallel {copies}"
            yield "parallel.expert", what
    if num_experts and parallel.tensor > 1 and not parallel.sequence:
        yield "parallel.sequence", "experts with parallel.tensor above 1 need it"


def _batch(config: Config, ranks: Ranks) -> Iterator[tuple[str, str]]:
    train, data = config.train, data_parallel(config, ranks)
    unit = train.micro_batch * data
    if train.global_batch % unit:
        what = f"{train.global_batch} is not a multiple of micro_batch {train.micro_batch}"
        yield "train.global_batch", f"{what} x {data} data parallel = {unit}"
        return
    passes, pipeline = accumulation(config, ranks), config.parallel.pipeline
    if config.parallel.interleave > 1 and passes % pipeline:
        what = f"{passes} forward passes a training step do not divide by pipeline {pipeline}"
        yield "parallel.interleave", what


def _memory(config: Config, ranks: Ranks) -> Iterator[tuple[str, str]]:
    if config.machine.memory_gb is None or config.train.global_batch < data_parallel(config, ranks):
        return
    need = estimate(config, ranks.total).total
    have = config.machine.memory_gb * GIB * USABLE
    if need > have:
        what = f"about {need / GIB:.0f} GiB for each GPU, {have / GIB:.0f} GiB are usable"
        yield "parallel", f"{what} of {config.machine.memory_gb}"


def nearest(config: Config, ranks: Ranks) -> list[str]:
    """Valid layouts that change least, best first, each as words for the command line."""
    valid = [changed for changed in _variants(config, ranks) if fits(changed, ranks)]
    best: list[list[str]] = []
    for _, words in sorted((_distance(config, c), _words(config, c)) for c in valid):
        if words and not any(set(better) <= set(words) for better in best):
            best.append(words)
    return [" ".join(words) for words in best[:SHOWN]]


def _variants(config: Config, ranks: Ranks) -> Iterator[Config]:
    parallel, train = config.parallel, config.train
    for tensor in _divisors(ranks.per_node):
        for pipeline in _divisors(max(1, ranks.total // tensor)):
            if config.model.num_layers % pipeline:
                continue
            for interleave, context, expert, recompute in itertools.product(
                {parallel.interleave, 1},
                {parallel.context, 1},
                {parallel.expert, 1},
                {train.recompute, "full"},
            ):
                # A recipe without experts has a constant there, which cannot be replaced.
                more: dict[str, Any] = {"expert": expert} if expert != parallel.expert else {}
                split = replace(
                    parallel,
                    **more,
                    tensor=tensor,
                    pipeline=pipeline,
                    interleave=interleave,
                    context=context,
                    sequence=parallel.sequence or (tensor > 1 and config.model.num_experts > 0),
                )
                with_split = replace(config, parallel=split)
                data = data_parallel(with_split, ranks)
                for micro, batch in _batches(train.micro_batch, train.global_batch, data):
                    changed = replace(
                        train, micro_batch=micro, global_batch=batch, recompute=recompute
                    )
                    yield replace(with_split, train=changed)


def _batches(micro: int, batch: int, data: int) -> Iterator[tuple[int, int]]:
    """Micro batches up to the wanted one, each with the global batches next to the wanted one."""
    for size in _divisors(micro):
        unit = size * max(1, data)
        for multiple in {batch // unit, -(-batch // unit)} - {0}:
            yield size, multiple * unit


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _distance(old: Config, new: Config) -> float:
    """How much changes. Another batch is another experiment: it counts most."""
    a, b = old.parallel, new.parallel
    pairs = [(a.tensor, b.tensor), (a.pipeline, b.pipeline), (a.context, b.context)]
    pairs += [(a.interleave, b.interleave), (a.expert, b.expert)]
    pairs += [(old.train.micro_batch, new.train.micro_batch)]
    steps = sum(abs(math.log2(x / y)) for x, y in pairs)
    batch = abs(math.log2(old.train.global_batch / new.train.global_batch))
    recompute = 0.5 * (old.train.recompute != new.train.recompute)
    return steps + 4 * batch + (batch > 0) + recompute + 0.1 * (a.sequence != b.sequence)


def _words(old: Config, new: Config) -> list[str]:
    """The changed options."""
    words = []
    before, after = old.to_dict(), new.to_dict()
    for section in ("parallel", "train"):
        for key, value in after[section].items():
            if value != before[section][key]:
                text = str(value).lower() if isinstance(value, bool) else value
                words.append(f"{section}.{key}={text}")
    return words
