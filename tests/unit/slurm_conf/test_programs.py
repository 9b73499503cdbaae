"""`muster slurm-conf programs`: what slurm.conf names is there, and what others put there stays."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from lifecycle.description.load import load_description
from muster import cli
from slurm.conf.programs import NAMES
from slurm.conf.render import render

ROOT = Path(__file__).resolve().parents[3]
ON_PREMISES = ROOT / "lifecycle" / "examples" / "on_premises" / "cluster.yaml"


def programs(folder: Path, *more: str) -> int:
    return cli.main(["slurm-conf", "programs", str(ON_PREMISES), "--dir", str(folder), *more])


def test_every_program_that_slurm_conf_names_is_written() -> None:
    text = render(load_description(ON_PREMISES), "22.05", {})["muster.conf"]
    assert text is not None
    named = re.findall(r"^\w+=/etc/slurm/muster/(\S+)$", text, re.MULTILINE)
    assert len(named) == 4
    for name in named:
        assert any(Path(one).match(name) for one in NAMES), name


def test_programs_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "muster" / "prolog.d" / "own.sh"
    own.parent.mkdir(parents=True)
    own.write_text("mine")
    assert programs(tmp_path, "--check") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [own]
    assert programs(tmp_path) == 0
    assert set(capsys.readouterr().out.split()[1::2]) == {"new"}
    for name in NAMES:
        path = tmp_path / "muster" / name
        assert path.read_bytes() == (ROOT / "slurm" / name).read_bytes()
        assert path.stat().st_mode & 0o777 == 0o755
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sh")}
    assert programs(tmp_path, "--check") == programs(tmp_path) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.sh")} == times
    assert own.read_text() == "mine"


@pytest.mark.parametrize("damage", ["text", "mode"])
def test_programs_that_were_changed_are_put_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    assert programs(tmp_path) == 0
    path = tmp_path / "muster" / "health_check.sh"
    if damage == "text":
        path.write_text("#!/bin/sh\n")
    path.chmod(0o644)
    capsys.readouterr()
    assert programs(tmp_path, "--check") == 1
    assert f"{path}: changed\n" in capsys.readouterr().out
    assert programs(tmp_path) == 0
    assert path.read_bytes() == (ROOT / "slurm" / "health_check.sh").read_bytes()
    assert path.stat().st_mode & 0o777 == 0o755


def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "muster").write_text("a file")
    for folder in (tmp_path, tmp_path / ("x" * 256), tmp_path / ("x" * 5000)):
        assert programs(folder) == 73
        assert capsys.readouterr().err.count("\n") == 1


def test_a_fifo_stays_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fifo = tmp_path / "muster" / "muster_health.sh"
    fifo.parent.mkdir()
    os.mkfifo(fifo)
    assert programs(tmp_path, "--check") == 1
    assert programs(tmp_path) == 73
    assert f"{fifo}: is no ordinary file" in capsys.readouterr().err
    assert fifo.is_fifo()
