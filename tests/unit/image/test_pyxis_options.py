"""Every option of Pyxis that stands anywhere is one that each release from 0.20 to 0.24 accepts."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from resume.container import Container, srun_options
from slurm.lint.options import SBATCH, SRUN
from tests.sessions.scripts import tracked_files

ROOT = Path(__file__).resolve().parents[3]
TABLE: dict[str, dict[str, bool]] = yaml.safe_load(
    (ROOT / "tests/data/containers/pyxis_options.yaml").read_text("utf-8")
)
ALL = set.intersection(*(set(options) for options in TABLE.values()))
WORD = re.compile(r"--((?:no-)?container-[a-z-]*[a-z])")
STAND_IN = ROOT / "tests/containers/srun"
ABOUT_WRONG_ONES = {"tests/containers/test_stand_in.py", "tests/unit/image/test_pyxis_options.py"}
"""They give options that Pyxis does not have, to see them refused."""


def mentions() -> dict[str, set[str]]:
    """{file: the options of Pyxis in it}; templates, docs, code, data of tests."""
    found = {}
    for name in tracked_files():
        try:
            text = (ROOT / name).read_text("utf-8")
        except UnicodeDecodeError:
            continue
        options = set(WORD.findall(text)) - {"container-id"}  # which is Slurm's own
        if options and name not in ABOUT_WRONG_ONES:
            found[name] = options
    return found


def test_the_table_has_every_release() -> None:
    assert list(TABLE) == ["0.20", "0.21", "0.22", "0.23", "0.24"]


def test_every_option_anywhere_is_one_of_every_release() -> None:
    found = mentions()
    assert {"resume/container.py", "docs/reference/run.md"} < set(found)  # it looks where they are
    wrong = {name: options - ALL for name, options in found.items() if options - ALL}
    assert wrong == {}


@pytest.mark.parametrize("gpus", [True, False])
def test_what_muster_run_writes(gpus: bool) -> None:
    container = Container("/a.sqsh", ("/data:/data",), ("HF_HOME",), gpus=gpus)
    words = srun_options(container, Path("/run"), Path("/recipe"), "/muster", ["RANK"])
    given = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    assert set(given) <= ALL
    for options in TABLE.values():
        assert {name: bool(value) for name, value in given.items()} == {
            name: options[name] for name in given
        }


def test_lint_knows_the_same_options() -> None:
    for table in (SRUN, SBATCH):
        known = {n: t for n, t in table.takes.items() if re.match(r"(no-)?container-", n)}
        known.pop("container-id")
        assert known == {n: "yes" if takes else "no" for n, takes in TABLE["0.24"].items()}


def stand_in_refuses(word: str) -> bool:
    env = {"STANDIN_SRUN": "/bin/echo", "STANDIN_CACHE": "/nowhere", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [str(STAND_IN), word, "true"],
        env=env, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return "unrecognized option" in done.stderr


def test_the_stand_in_takes_the_same_options_and_no_other() -> None:
    known = {f"--{name}=/a" if takes else f"--{name}" for name, takes in TABLE["0.24"].items()}
    assert {word for word in known if stand_in_refuses(word)} == set()
    others = {"--container-unshare=net", "--container-cache", "--container-mount=/a"}
    assert {word for word in others if stand_in_refuses(word)} == others


def test_nothing_of_ours_knows_of_the_stand_in() -> None:
    ours = ("muster/", "resume/", "slurm/", "healthcheck/", "lifecycle/", "recipes/", "containers/")
    names = [name for name in tracked_files() if name.startswith(ours)]
    word = re.compile(rb"STANDIN|tests/containers")
    found = [name for name in names if word.search((ROOT / name).read_bytes())]
    assert len(names) > 100
    assert found == []
