"""Known defects of the libraries and of other recipes, put in on purpose: each turns a check red.

A check that has never been red proves nothing. Here every defect is put into the recipe's own
program, in a child process, and the same checks that hold for the recipe as it is must then fail.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import resume
from resume import audit
from tests.harness import child

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
STEPS, SAVED = 4, 2
WORDS = [
    "model.num_layers=1",
    "optim.warmup_steps=3",
    "train.global_batch=4",
    "train.micro_batch=2",
    f"train.steps={STEPS}",
    f"checkpoint.every={SAVED}",
    "checkpoint.mode=sync",
    "log.tensorboard=false",
]
Lines = dict[str, dict[str, Any]]  # training step: line of metrics.jsonl
Inject = Callable[[Any], None]


@dataclass(frozen=True)
class Recipe:
    """Modules of a recipe, its data, and a place for its runs."""

    modules: Any
    folder: Path
    data: Path
    runs: Path

    def start(self, name: str, *words: str, defect: Inject | None = None, **more: Any) -> Any:
        """Train in a child; `more`: rank, world_size, checkpoint."""
        run_dir = self.runs / name
        (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
        facts = {"rank": 0, "world_size": 1, "checkpoint": None, **more}
        run = resume.Run(
            dir=run_dir, recipe_dir=self.folder, resume=facts["checkpoint"], attempt=1, token=0,
            rank=facts["rank"], local_rank=facts["rank"], world_size=facts["world_size"],
            beat_dir=None,
        )  # fmt: skip

        def work() -> Lines:
            if defect is not None:
                defect(self.modules)
            all_words = [*WORDS, f"data.dir={self.data}", *words]
            config = self.modules.config.load(self.folder, all_words)
            with Path(os.devnull).open("w") as null, contextlib.redirect_stdout(null):
                self.modules.train.train(run, config)
            lines = (run_dir / "metrics.jsonl").read_text().splitlines()
            return {str(line["step"]): line for line in map(json.loads, lines)}

        return child.start(work)

    def train(self, name: str, *words: str, defect: Inject | None = None, **more: Any) -> Any:
        """Train to the end; the lines, or a text that begins with ! and says how it ended."""
        return self.start(name, *words, defect=defect, **more).result()

    def go_on(self, name: str, after: str, *words: str, defect: Inject | None = None) -> Any:
        """The same from the checkpoint of another run on."""
        path = self.runs / after / "checkpoints" / f"step_{SAVED:08d}"
        return self.train(name, *words, defect=defect, checkpoint=path)


@pytest.fixture(scope="module", params=["llama2_fsdp", "llama2_megatron"])
def recipe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    modules = request.getfixturevalue(request.param.removeprefix("llama2_"))
    folder, place = ROOT / "recipes" / request.param, tmp_path_factory.mktemp(request.param)
    command = [sys.executable, str(folder / "prepare.py"), "--out", str(place / "data")]
    subprocess.run(command, check=True, timeout=child.LIMIT_S, capture_output=True)
    return Recipe(modules, folder, place / "data", place)


@pytest.fixture(scope="module")
def whole(recipe: Recipe) -> Lines:
    """The unbroken run of the recipe as it is."""
    lines: Lines = recipe.train("whole")
    assert sorted(lines) == ["1", "2", "3", "4"], lines
    return lines


def column(lines: Any, name: str) -> dict[str, Any]:
    assert isinstance(lines, dict), lines
    return {step: line[name] for step, line in lines.items()}


# -- the checks ------------------------------------------------------------------------------


def goes_on_as_if_nothing_had_happened(resumed: Any, whole: Lines) -> bool:
    """Bit for bit, two training steps long: the first loss says nothing about the optimizer."""
    assert sorted(resumed) == ["3", "4"], resumed
    return all(
        column(resumed, name) == {s: x for s, x in column(whole, name).items() if s in resumed}
        for name in ("loss", "grad_norm", "lr", "samples")
    )


def rates_are_those_of_the_schedule(lines: Lines, peak: float) -> bool:
    """A third of the peak in the first training step of three, a tenth in the last of all."""
    rates = column(lines, "lr")
    want = {"1": peak / 3, "2": peak * 2 / 3, "3": peak, "4": peak / 10}
    return all(rates[step] == pytest.approx(want[step], rel=1e-9) for step in want)


def ranks_share_the_batch(lines: Lines, whole: Lines) -> bool:
    """The digest over all ranks is that of one process."""
    return bool(column(lines, "samples")["1"] == column(whole, "samples")["1"])


# -- the recipe as it is ---------------------------------------------------------------------


def test_without_a_defect_every_check_is_green(recipe: Recipe, whole: Lines) -> None:
    resumed = recipe.go_on("resumed", "whole")
    assert goes_on_as_if_nothing_had_happened(resumed, whole)
    config = recipe.modules.config.load(recipe.folder, WORDS)
    assert rates_are_those_of_the_schedule(whole, config.optim.lr)
    assert whole["1"]["loss"] == pytest.approx(6.93, abs=0.06)
    assert ranks_share_the_batch(two_ranks(recipe, "two"), whole)


def two_ranks(recipe: Recipe, name: str, defect: Inject | None = None) -> Any:
    from tests.recipes.conftest import free_port

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    words = ("train.steps=1", "train.global_batch=4")
    ranks = [
        recipe.start(name, *words, defect=defect, rank=rank, world_size=2) for rank in range(2)
    ]
    first, _ = (rank.result() for rank in ranks)
    return first


# -- what may be changed, and what not --------------------------------------------------------


def test_rate_batch_and_adamw_change_at_a_restart_and_no_sample_is_lost(
    recipe: Recipe, whole: Lines
) -> None:
    words = ("optim.lr=1e-3", "train.global_batch=8", "optim.beta2=0.9", "train.steps=5")
    lines = recipe.go_on("changed", "whole", *words)
    assert column(lines, "first_sample") == {"3": 8, "4": 16, "5": 24}
    assert set(column(lines, "num_samples").values()) == {8}
    assert column(lines, "lr")["3"] == pytest.approx(1e-3)
    assert lines["5"]["tokens"] == (2 * 4 + 3 * 8) * 128
    same_rate = recipe.go_on("other beta", "whole", "optim.beta2=0.9")
    for line in (lines, same_rate):  # the first loss is of the old weights, the second is not
        assert line["4"]["loss"] != whole["4"]["loss"]
    assert same_rate["3"]["loss"] == whole["3"]["loss"]
    entries = [
        {"event": "attempt_started", "time": 0, "attempt": n, "resume_step": s, "resume_attempt": p}
        for n, s, p in ((1, 0, None), (2, SAVED, 1))
    ]
    metrics = [*whole.values(), *({**line, "attempt": 2} for line in lines.values())]
    found = audit.audit(entries, metrics, done=True)
    assert found.problems == ()
    assert found.sizes == ((1, 2, 4), (3, 5, 8))
    settings = json.loads((recipe.runs / "changed" / "settings" / "attempt_001.json").read_text())
    assert (settings["optim.lr"], settings["train.global_batch"]) == (1e-3, 8)


@pytest.mark.parametrize(
    ("word", "part"),
    [
        ("model.dim=256", "made with model.dim=128, this run has 256"),
        ("train.seed=1", "made with train.seed=0, this run has 1"),
        ("train.seq_len=64", "made with train.seq_len=128, this run has 64"),
        ("other tokenizer", "made with data.tokenizer=tokenizer.json"),
    ],
)
def test_what_makes_another_run_is_refused(
    recipe: Recipe, whole: Lines, word: str, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if word == "other tokenizer":
        other = shutil.copytree(recipe.data, recipe.runs / "other", dirs_exist_ok=True)
        meta = json.loads((other / "meta.json").read_text())
        (other / "meta.json").write_text(json.dumps({**meta, "tokenizer_sha256": "0" * 64}))
        word = f"data.dir={other}"
    assert recipe.go_on("refused", "whole", word) == "!ended with 78"
    err = capfd.readouterr().err
    assert part in err
    assert "start a new run in another RUN_DIR" in err
    assert err.count("\n") == 1


# -- the defects -----------------------------------------------------------------------------


def one_step_for_all_weights(modules: Any) -> None:
    """After a load all weights share one `step` tensor, so AdamW counts as many as there are."""

    def share(optimizer: Any) -> None:
        slots = list(optimizer.state.values())
        for slot in slots:
            slot["step"] = slots[0]["step"]

    load = modules.train.load

    def defect(path: Path, model: Any, optimizer: Any, *rest: Any) -> None:
        load(path, model, optimizer, *rest)
        for part in getattr(optimizer, "chained_optimizers", [optimizer]):
            share(getattr(part, "optimizer", part))

    modules.train.load = defect


def a_step_too_early_after_a_resume(modules: Any) -> None:
    """Schedulers that are stepped once more, or once less, by whoever restores them."""
    rate = modules.train.learning_rate
    modules.train.learning_rate = lambda options, step, num: rate(options, step - 1, num)


def other_adamw_moments(modules: Any) -> None:
    """Optimizer state that is not restored: the loss looks right for one training step."""
    load = modules.train.load

    def defect(path: Path, model: Any, optimizer: Any, *rest: Any) -> None:
        load(path, model, optimizer, *rest)
        for part in getattr(optimizer, "chained_optimizers", [optimizer]):
            for slot in getattr(part, "optimizer", part).state.values():
                slot["exp_avg"].zero_()

    modules.train.load = defect


def samples_from_the_start_again(modules: Any) -> None:
    """A data loader whose place is not restored."""
    first = modules.batches.Batches.first
    modules.train.Batches.first = lambda self, batch: first(self, batch - SAVED)


@pytest.mark.parametrize(
    "defect",
    [
        one_step_for_all_weights,
        a_step_too_early_after_a_resume,
        other_adamw_moments,
        samples_from_the_start_again,
    ],
)
def test_a_resume_with_this_defect_is_not_the_unbroken_run(
    recipe: Recipe, whole: Lines, defect: Inject
) -> None:
    resumed = recipe.go_on(defect.__name__, "whole", defect=defect)
    assert not goes_on_as_if_nothing_had_happened(resumed, whole)


def test_a_rate_that_is_off_by_one_from_the_start(recipe: Recipe) -> None:
    lines = recipe.train("rates", defect=a_step_too_early_after_a_resume)
    config = recipe.modules.config.load(recipe.folder, WORDS)
    assert not rates_are_those_of_the_schedule(lines, config.optim.lr)


def random_numbers_that_are_not_restored(modules: Any) -> None:
    """Dropout from the generator as it is: after a resume it begins anew."""
    if hasattr(modules.train, "seed_dropout"):
        seed = modules.train.seed_dropout
        seen: list[int] = []

        def once(number: int, step: int) -> None:
            if not seen:
                seen.append(step)
                seed(number, 0)

        modules.train.seed_dropout = once
    else:
        loss = modules.train.cross_entropy
        modules.train.cross_entropy = lambda model, tokens: loss(model, tokens) * torch.rand(())


def test_random_numbers_after_a_resume(recipe: Recipe) -> None:
    defect = random_numbers_that_are_not_restored
    words = ("train.dropout=0.1",) if hasattr(recipe.modules.train, "seed_dropout") else ()
    whole = recipe.train("random", *words, defect=defect)
    resumed = recipe.go_on("random again", "random", *words, defect=defect)
    assert column(resumed, "samples").items() <= column(whole, "samples").items()
    assert not goes_on_as_if_nothing_had_happened(resumed, whole)


def the_same_data_on_all_ranks(modules: Any) -> None:
    """A loader that is never told its rank."""
    own = modules.data.own_positions
    modules.train.own_positions = lambda first, micro, turns, _rank, world: own(
        first, micro, turns, 0, world
    )


def test_the_same_data_on_all_ranks(recipe: Recipe, whole: Lines) -> None:
    lines = two_ranks(recipe, "same data", defect=the_same_data_on_all_ranks)
    assert not ranks_share_the_batch(lines, whole)


def a_weight_that_nobody_sets(modules: Any) -> None:
    """Memory as it was found, which may hold anything: here what deterministic mode fills in."""
    if hasattr(modules, "weights"):
        parameters = modules.weights.parameters

        def all_but_one(models: Any, shape: Any) -> Iterator[Any]:
            return (row for row in parameters(models, shape) if "linear_proj" not in row[0])

        modules.weights.parameters = all_but_one
    else:
        init = modules.train.init_weights

        def forgetful(model: Any, seed: int) -> None:
            real = model.named_parameters
            model.named_parameters = lambda: ((n, p) for n, p in real() if "wo" not in n)
            init(model, seed)
            del model.named_parameters

        modules.train.init_weights = forgetful


def test_a_weight_that_nobody_sets_ends_the_run_in_its_first_training_step(
    recipe: Recipe, capfd: pytest.CaptureFixture[str]
) -> None:
    assert recipe.train("unset", defect=a_weight_that_nobody_sets) == "!ended with 76"
    assert "training step 1: loss nan" in capfd.readouterr().err
    assert not (recipe.runs / "unset" / "metrics.jsonl").exists()


def test_without_psutil_the_run_ends_before_the_library_can_hang(
    megatron: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not declared by Megatron-Core; a save without it never ends."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "psutil" else found(name)
    )
    for name in ("RANK", "WORLD_SIZE", "MUSTER_RESUME"):
        monkeypatch.delenv(name, raising=False)

    def begin() -> Any:
        try:
            return str(megatron.before.begin(["train.steps=1"]))
        except SystemExit as end:
            return end.code

    assert begin() == 69
    assert "Fix: pip install psutil" in capsys.readouterr().err
    monkeypatch.setattr(megatron.before, "need_psutil", lambda: None)
    assert begin() != 69, "nothing looks for psutil, and this check does not see it"
