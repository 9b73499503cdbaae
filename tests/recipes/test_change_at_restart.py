"""What a person may change at a restart, in every recipe: rate, batch, optimizer; and what not."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest

from resume import audit
from tests.harness.in_process import (
    SAVED,
    Lines,
    Program,
    column,
    goes_on_as_if_nothing_had_happened,
)
from tests.recipes.conftest import one_in_ci

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@one_in_ci("program")
def test_rate_batch_and_adamw_change_at_a_restart_and_no_sample_is_lost(
    program: Program, whole: Lines
) -> None:
    words = ("optim.lr=1e-3", "train.global_batch=8", "optim.beta2=0.9", "train.steps=5")
    lines = program.go_on("changed", "whole", *words)
    assert column(lines, "first_sample") == {"3": 8, "4": 16, "5": 24}
    assert set(column(lines, "num_samples").values()) == {8}
    assert column(lines, "lr")["3"] == pytest.approx(1e-3)
    assert lines["5"]["tokens"] == (2 * 4 + 3 * 8) * 128
    same_rate = program.go_on("other beta", "whole", "optim.beta2=0.9")
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
    settings = json.loads((program.runs / "changed" / "settings" / "attempt_001.json").read_text())
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
@one_in_ci("program")
def test_what_makes_another_run_is_refused(
    program: Program, whole: Lines, word: str, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    if word == "other tokenizer":
        other = shutil.copytree(program.data, program.runs / "other", dirs_exist_ok=True)
        meta = json.loads((other / "meta.json").read_text())
        (other / "meta.json").write_text(json.dumps({**meta, "tokenizer_sha256": "0" * 64}))
        word = f"data.dir={other}"
    assert program.go_on("refused", "whole", word) == "!ended with 78"
    err = capfd.readouterr().err
    assert part in err
    assert "start a new run in another RUN_DIR" in err
    assert err.count("\n") == 1


# -- another optimizer --------------------------------------------------------------------------

ONE_KIND = "llama2_megatron", "llama2_nemo"  # their library keeps the state of AdamW alone
LONGER = ("train.steps=6", "optim.warmup_steps=1")
OTHER = {"sgd": ("optim.kind=sgd", "optim.lr=0.1"), "radam": ("optim.kind=radam",)}


def facts_of(program: Program, name: str, step: int) -> Any:
    path = program.runs / name / "checkpoints" / f"step_{step:08d}"
    return program.modules.checkpoint.read_facts(path)


@pytest.mark.parametrize("kind", sorted(OTHER))
@one_in_ci("program")
def test_another_optimizer_goes_on_with_the_weights_or_is_refused(
    program: Program, whole: Lines, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its state begins anew, said in the settings; resumed, it goes on bit for bit; and back."""
    if program.folder.name in ONE_KIND:
        with pytest.raises(program.modules.errors.Stop) as caught:
            program.config(*OTHER[kind])
        assert caught.value.code == 78
        assert f"knows no '{kind}', only AdamW. Fix: " in str(caught.value)
        return
    words = (*LONGER, *OTHER[kind])
    lines = program.go_on(kind, "whole", *words)
    assert sorted(lines) == ["3", "4", "5", "6"], lines
    assert lines["3"]["loss"] == whole["3"]["loss"]  # of the weights that were there
    assert lines["4"]["loss"] != whole["4"]["loss"]
    settings = json.loads((program.runs / kind / "settings" / "attempt_001.json").read_text())
    assert (settings["optim.kind"], settings["optim.began_at"]) == (kind, SAVED)
    assert facts_of(program, kind, 4)["optimizer"] == {"kind": kind, "began_at": SAVED}

    again = program.go_on(f"{kind} again", kind, *words, step=4)
    assert sorted(again) == ["5", "6"]
    assert goes_on_as_if_nothing_had_happened(again, lines)
    assert facts_of(program, f"{kind} again", 6)["optimizer"]["began_at"] == SAVED

    back = program.go_on(f"{kind} back", kind, *LONGER, step=4)
    fresh = program.runs / f"{kind} back" / "settings" / "attempt_001.json"
    assert json.loads(fresh.read_text())["optim.began_at"] == 4  # AdamW's moments of 2 are gone
    assert back["5"]["loss"] == lines["5"]["loss"]
    assert back["6"]["loss"] != lines["6"]["loss"]


@one_in_ci("program")
def test_another_optimizer_is_the_same_on_two_ranks(program: Program, whole: Lines) -> None:
    """Its state is sharded, saved and loaded as AdamW's is."""
    if program.folder.name in ONE_KIND:
        return  # refused: see above
    one = program.go_on("one", "whole", *LONGER, *OTHER["sgd"])
    path = program.runs / "one" / "checkpoints" / "step_00000004"
    two = program.two_ranks("two", *LONGER, *OTHER["sgd"], checkpoint=path)
    assert sorted(two) == ["5", "6"], two
    assert column(two, "samples") == {s: line["samples"] for s, line in one.items() if s in two}
    for step in two:
        assert two[step]["loss"] == pytest.approx(one[step]["loss"], rel=1e-5)


@one_in_ci("program")
def test_a_checkpoint_that_says_nothing_of_its_optimizer_has_adamws(program: Program) -> None:
    if program.folder.name in ONE_KIND:
        return  # there is no other
    began_at = program.modules.optimizers.began_at
    assert began_at({"step": 7}, "adamw") == 0
    assert began_at({"step": 7}, "sgd") == 7
    assert began_at({"step": 9, "optimizer": {"kind": "sgd", "began_at": 7}}, "sgd") == 7
    assert began_at({"step": 9, "optimizer": {"kind": "sgd", "began_at": 7}}, "adamw") == 9


@one_in_ci("program")
def test_every_kind_of_optimizer_is_an_option_and_every_other_is_one_line(
    program: Program,
) -> None:
    kinds = program.modules.optimizers.STATE if hasattr(program.modules, "optimizers") else ()
    for kind in kinds:
        assert program.config(f"optim.kind={kind}").optim.kind == kind
    with pytest.raises(program.modules.errors.Stop) as caught:
        program.config("optim.kind=adafactor")
    assert caught.value.code == 78
    assert "\n" not in str(caught.value)
