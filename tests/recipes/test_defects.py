"""Known defects of the libraries and of other recipes, put in on purpose: each turns a check red.

A check that has never been red proves nothing. Here every defect is put into the recipe's own
program, in a child process, and the same checks that hold for the recipe as it is must then fail.
docs/reference/library_defects.md says in which recipe a defect cannot be, and why.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.in_process import (
    SAVED,
    Inject,
    Lines,
    Program,
    column,
    goes_on_as_if_nothing_had_happened,
)
from tests.recipes.conftest import FOLDERS, one_in_ci

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


# Megatron-Core is where most of them come from.
in_ci = one_in_ci("program", also=("llama2_megatron",))


# -- the checks ------------------------------------------------------------------------------


def rates_are_those_of_the_schedule(lines: Lines, peak: float) -> bool:
    """A third of the peak in the first training step of three, a tenth in the last of all."""
    rates = column(lines, "lr")
    want = {"1": peak / 3, "2": peak * 2 / 3, "3": peak, "4": peak / 10}
    return all(rates[step] == pytest.approx(want[step], rel=1e-9) for step in want)


def ranks_share_the_batch(lines: Lines, whole: Lines) -> bool:
    """The digest over all ranks is that of one process."""
    return bool(column(lines, "samples")["1"] == column(whole, "samples")["1"])


# -- the recipe as it is ---------------------------------------------------------------------


@in_ci
def test_without_a_defect_every_check_is_green(program: Program, whole: Lines) -> None:
    resumed = program.go_on("resumed", "whole")
    assert goes_on_as_if_nothing_had_happened(resumed, whole)
    assert rates_are_those_of_the_schedule(whole, program.config().optim.lr)
    assert whole["1"]["loss"] == pytest.approx(6.93, abs=0.06)
    assert ranks_share_the_batch(program.two_ranks("two", "train.steps=1"), whole)


# -- the defects -----------------------------------------------------------------------------


def loop(modules: Any) -> Any:
    """The module that goes from training step to training step: a callback, or the program."""
    return modules.contract if hasattr(modules, "contract") else modules.train


def after_a_load(modules: Any, change: Callable[[Any], None]) -> None:
    """Change torch's optimizer when a checkpoint has been loaded."""
    if hasattr(modules, "strategy"):  # NeMo calls it
        strategy = modules.strategy.Strategy
        theirs = strategy.load_optimizer_state_dict

        def loaded(self: Any, *arguments: Any, **more: Any) -> None:
            theirs(self, *arguments, **more)
            for part in self.parts():
                change(part.optimizer)

        strategy.load_optimizer_state_dict = loaded
        return
    load = loop(modules).load

    def defect(path: Path, model: Any, optimizer: Any, *rest: Any) -> None:
        load(path, model, optimizer, *rest)
        for part in getattr(optimizer, "chained_optimizers", [optimizer]):
            change(getattr(part, "optimizer", part))

    loop(modules).load = defect


def one_step_for_all_weights(modules: Any) -> None:
    """After a load all weights share one `step` tensor, so AdamW counts as many as there are."""

    def share(optimizer: Any) -> None:
        slots = list(optimizer.state.values())
        for slot in slots:
            slot["step"] = slots[0]["step"]

    after_a_load(modules, share)


def a_step_too_early_after_a_resume(modules: Any) -> None:
    """Schedulers that are stepped once more, or once less, by whoever restores them."""
    rate = loop(modules).learning_rate
    loop(modules).learning_rate = lambda options, step, num: rate(options, step - 1, num)


def other_adamw_moments(modules: Any) -> None:
    """Optimizer state that is not restored: the loss looks right for one training step."""

    def forget(optimizer: Any) -> None:
        for slot in optimizer.state.values():
            slot["exp_avg"].zero_()

    after_a_load(modules, forget)


def samples_from_the_start_again(modules: Any) -> None:
    """A data loader whose place is not restored."""
    first = modules.batches.Batches.first
    modules.batches.Batches.first = lambda self, batch: first(self, batch - SAVED)


@pytest.mark.parametrize(
    "defect",
    [
        one_step_for_all_weights,
        a_step_too_early_after_a_resume,
        other_adamw_moments,
        samples_from_the_start_again,
    ],
)
@in_ci
def test_a_resume_with_this_defect_is_not_the_unbroken_run(
    program: Program, whole: Lines, defect: Inject
) -> None:
    resumed = program.go_on(defect.__name__, "whole", change=defect)
    assert not goes_on_as_if_nothing_had_happened(resumed, whole)


@in_ci
def test_a_rate_that_is_off_by_one_from_the_start(program: Program) -> None:
    lines = program.train("rates", change=a_step_too_early_after_a_resume)
    assert not rates_are_those_of_the_schedule(lines, program.config().optim.lr)


def random_numbers_that_are_not_restored(modules: Any) -> None:
    """Dropout from the generator as it is: after a resume it begins anew.

    In a recipe without dropout: somebody adds noise to the loss.
    """
    if hasattr(loop(modules), "seed_dropout"):
        seed = loop(modules).seed_dropout
        seen: list[int] = []

        def once(number: int, step: int) -> None:
            if not seen:
                seen.append(step)
                seed(number, 0)

        loop(modules).seed_dropout = once
        return
    owner, name = modules.train, "cross_entropy"
    if hasattr(modules, "module"):
        owner, name = modules.module.Pretraining, "sample_losses"
    loss = getattr(owner, name)
    setattr(owner, name, lambda model, tokens: loss(model, tokens) * torch.rand(()))


@in_ci
def test_random_numbers_after_a_resume(program: Program) -> None:
    defect = random_numbers_that_are_not_restored
    has_dropout = hasattr(loop(program.modules), "seed_dropout")
    words = ("train.dropout=0.1",) if has_dropout else ()
    whole = program.train("random", *words, change=defect)
    resumed = program.go_on("random again", "random", *words, change=defect)
    assert column(resumed, "samples").items() <= column(whole, "samples").items()
    assert not goes_on_as_if_nothing_had_happened(resumed, whole)


def the_same_data_on_all_ranks(modules: Any) -> None:
    """A loader that is never told its rank."""
    if hasattr(modules, "feed"):
        import nemo.lightning.data as nemos

        sampler = nemos.add_megatron_sampler
        nemos.add_megatron_sampler = lambda loader, **more: sampler(loader, **{**more, "rank": 0})
        return
    own = modules.data.own_positions
    modules.train.own_positions = lambda first, micro, turns, _rank, world: own(
        first, micro, turns, 0, world
    )


@in_ci
def test_the_same_data_on_all_ranks(program: Program, whole: Lines) -> None:
    lines = program.two_ranks("same data", "train.steps=1", change=the_same_data_on_all_ranks)
    assert not ranks_share_the_batch(lines, whole)


@in_ci
def test_no_library_takes_more_threads_than_the_option_says(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning sets as many as there are CPUs, in every rank, where no variable says otherwise."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    said = program.runs / "threads.txt"

    def note(modules: Any) -> None:
        train = modules.train.train

        def noted(*arguments: Any) -> None:
            train(*arguments)
            said.write_text(str(torch.get_num_threads()))

        modules.train.train = noted

    assert isinstance(program.train("threads", "train.steps=1", change=note), dict)
    assert said.read_text() == "1"


def a_weight_that_nobody_sets(modules: Any) -> None:
    """Memory as it was found, which may hold anything: here what deterministic mode fills in."""
    if hasattr(modules, "weights"):
        parameters = modules.weights.parameters

        def all_but_one(models: Any, shape: Any) -> Iterator[Any]:
            return (row for row in parameters(models, shape) if "linear_proj" not in row[0])

        modules.weights.parameters = all_but_one
        return
    owner, name = (
        loop(modules),
        "init_weights" if hasattr(loop(modules), "init_weights") else "fill",
    )
    init = getattr(owner, name)

    def forgetful(model: Any, *rest: Any) -> None:
        real = model.named_parameters
        model.named_parameters = lambda: (
            (n, p) for n, p in real() if "wo" not in n and "o_proj" not in n
        )
        init(model, *rest)
        del model.named_parameters

    setattr(owner, name, forgetful)


@in_ci
def test_a_weight_that_nobody_sets_ends_the_run_in_its_first_training_step(
    program: Program, capfd: pytest.CaptureFixture[str]
) -> None:
    assert program.train("unset", change=a_weight_that_nobody_sets) == "!ended with 76"
    assert "training step 1: loss nan" in capfd.readouterr().err
    assert not (program.runs / "unset" / "metrics.jsonl").exists()


@in_ci
def test_without_psutil_the_run_ends_before_the_library_can_hang(
    program: Program, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not declared by Megatron-Core; a save without it never ends."""
    if not hasattr(program.modules, "before"):
        return  # saves without Megatron-Core
    before = program.modules.before
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "psutil" else found(name)
    )
    for name in ("RANK", "WORLD_SIZE", "MUSTER_RESUME"):
        monkeypatch.delenv(name, raising=False)

    def begin() -> Any:
        try:
            return str(before.begin(["train.steps=1"]))
        except SystemExit as end:
            return end.code

    assert begin() == 69
    assert "Fix: pip install psutil" in capsys.readouterr().err
    monkeypatch.setattr(before, "need_psutil", lambda: None)
    assert begin() != 69, "nothing looks for psutil, and this check does not see it"


def test_the_page_says_of_every_recipe_what_is_caught() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/reference/library_defects.md").read_text()
    table = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in table]
    assert sorted(head[2:]) == [f"`{folder.name}`" for folder in FOLDERS]
    for row in rows:
        for name, cell in zip(head[2:], row[2:], strict=True):
            assert cell.startswith("caught") or (cell, row[0]) == ("cannot be", "psutil missing")
            before = FOLDERS[0].with_name(name.strip("`")) / "before.py"
            assert row[0] != "psutil missing" or (cell == "caught") is before.exists()
