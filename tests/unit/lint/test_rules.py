"""Every rule finds the fault that was planted for it, at its line, and nothing else anywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.lint.linter import lint, rules
from slurm.lint.script import MAX_BYTES
from tests.sessions.scripts import batch_scripts

ROOT = Path(__file__).resolve().parents[3]
PLANTED = ROOT / "tests" / "data" / "sbatch"
FAULTS = sorted((PLANTED / "faults").iterdir())
CLEAN = [*sorted((PLANTED / "clean").iterdir()), *(ROOT / name for name in batch_scripts())]


def said(data: bytes, path: Path | None = None) -> list[tuple[str, int]]:
    """(rule, line) of every finding."""
    found = lint(data, str(path or "job.sbatch"), path.parent if path else Path("/"))
    return [(one.rule.name, one.spot.line) for one in found]


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_planted_fault_is_found(path: Path) -> None:
    """A file is called RULE or RULE.CASE; the line is marked, unless it is one that is missing."""
    data = path.read_bytes()
    found = said(data, path)
    marked = [n for n, line in enumerate(data.split(b"\n"), start=1) if b"FAULT" in line]
    assert [rule for rule, _ in found] == [path.name.split(".")[0]]
    assert [line for _, line in found] == marked or not marked


def test_every_rule_has_a_planted_fault() -> None:
    planted = {path.name.split(".")[0] for path in FAULTS}
    assert {rule.name for rule in rules()} == planted | {"size"}  # 4 MiB, made below


def test_too_large_a_script() -> None:
    comment = b"#!/bin/sh\n#" + b"x" * MAX_BYTES
    assert said(comment) == [("size", 1)]
    assert said(comment[:1000]) != [("size", 1)]


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_is_found_in_a_good_script(path: Path) -> None:
    assert said(path.read_bytes(), path) == []


def test_our_own_scripts_are_among_them() -> None:
    names = batch_scripts()
    assert {"slurm/template.sbatch", "slurm/auto_resume.sbatch"} < set(names)
    assert "recipes/llama2_fsdp/run.sbatch" in names


def test_every_rule_says_what_holds_and_why() -> None:
    assert [one.name for one in rules() if min(map(len, (one.holds, one.why, one.fix))) < 8] == []


def test_a_finding_is_allowed_for_the_whole_file() -> None:
    text = (PLANTED / "faults" / "time-limit.sbatch").read_bytes()
    assert said(text) == [("time-limit", 8)]
    assert said(text + b"# muster lint: allow time-limit, the partition has one\n") == []
    assert said(text + b"# muster lint: allow signal, no\n") == [("time-limit", 8)]


HEAD = b"#!/bin/bash\n#SBATCH -t 5:00:00 --no-requeue --signal=USR1@90\n"
ROWS = [
    (b"set -euo pipefail\nsrun -K1 -W9 python t.py &\npid=$!\nwait $pid\n", []),
    (b"srun --ntasks=1 hostname | tee -a log\n", ["pipefail"]),
    (b"python train.py | tee log\n", ["pipefail", "pipe-hides-failure"]),
    (b"mpirun a | tee b\n", ["pipefail", "pipe-hides-failure"]),
    (b"set -o errexit -o nounset -o pipefail\ncd x\nmpirun a | tee b\n", []),
    (b"mpirun a\nrc=$?\necho $rc\nexit $rc\n", ["pipefail"]),
    (b"x=$(torchrun a | tail -1)\necho $x\n", []),  # it is asked, and not the work
    (b"mpirun a && echo good\n", ["pipefail"]),
    (b"export SLURM_KILL_BAD_EXIT=1 SLURM_WAIT=60\nexec srun a\n", ["pipefail"]),
    (b"exec srun -KW60 a\n", ["srun-wait"]),  # -K takes what follows it as its value
    (b"timeout -k 5 600 srun -K a\n", []),
    (b"srun -K -W60 --container-image=a#b:1 c\n", []),
    (b"srun -K -W60 --container-image=a@sha256:12 c\n", []),
    (b"srun -K -W60 --container-image=${IMAGE} c\n", []),
    (b"srun -K -W60 sh -c 'for i in 1; do python x; done | tee y'\n", []),
    (b"exec muster run --run-dir ${DIR:-/fsx/x}\n", []),
    (b"exec muster run --run-dir=/fsx/x\n", ["hard-coded-path"]),
    (b"curl https://x.org/a s3://b/c\n", []),
    (b"export HF_TOKEN=$(cat token) API_KEY=${API_KEY} TOKEN_FILE=/run/token\n", []),
    (b"export HF_TOKEN=abcdefgh1234\n", ["secret"]),
    (b"until curl -f http://head; do sleep 1; done\n", ["pipefail"]),
    (b"for i in 1 2 3; do mpirun a && break; done\n", ["pipefail"]),
    (b"torchrun --nnodes 1 --max-restarts 0 --rdzv_endpoint localhost:0 a.py\n", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), ROWS, ids=lambda row: str(row)[:60])
def test_row(text: bytes, expected: list[str]) -> None:
    assert [rule for rule, _ in said(HEAD + text)] == expected
