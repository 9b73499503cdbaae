"""Burn-in for real, on processors: the worker computes, sums, finds what is broken, and ends."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from healthcheck import registry
from healthcheck.deep.disk import BLOCK_BYTES, measure
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding
from healthcheck.profile import Profile
from healthcheck.read.burn import parse
from muster.site import Site
from tests.harness import sick_torch

LIMIT_S = 500.0


def check(name: str, python: Path, when: str = "deep", pair_s: float = 300) -> Finding:
    site = Site(deep_python=[str(python)], deep_s=0.1, deep_pair_s=pair_s)
    facts = Facts(Env(Path("/"), LIMIT_S), Profile(gpus=0), site, when=when, node="n3")
    (one,) = [one for one in registry.discover() if one.name == name]
    return registry.run_checks([one], facts)[0]


@pytest.mark.torch
def test_a_fit_processor(tmp_path: Path) -> None:
    python = sick_torch.make(tmp_path, hosts="nobody")
    found = check("deep_matmul", python)
    assert (found.status, found.detail) == ("PASS", "multiplies right on 2 devices")
    assert (found.checksum or "").startswith("cpu/")
    found = check("deep_allreduce", python)
    assert found.status == "PASS", found
    assert found.value is not None
    assert 0 < found.value < math.inf


@pytest.mark.torch
def test_one_bit_in_one_product_and_wrong_sums_are_found(tmp_path: Path) -> None:
    python = sick_torch.make(tmp_path, corrupt=True)
    found = check("deep_matmul", python)
    assert (found.status, found.action) == ("FAIL", "replace"), found
    assert "computes wrong on cpu: 1 products" in found.detail
    found = check("deep_allreduce", python)
    assert (found.status, found.action) == ("FAIL", "drain"), found
    assert "sums wrong among its devices, seen by cpu, cpu" in found.detail


@pytest.mark.torch
def test_a_partner_that_hangs_fails_the_pair_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partner never comes, as when its network is dead."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    for name in ("NUM_NODES", "NUM_TASKS"):
        monkeypatch.setenv(f"SLURM_STEP_{name}", "2")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1; echo 127.0.0.2\n")
    (bin_folder / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    python = sick_torch.make(tmp_path / "sick", hosts="nobody")
    found = check("pair_allreduce", python, "pair", pair_s=6)
    assert (found.status, found.class_, found.action) == ("FAIL", "network", "none"), found


def test_no_torch_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    (tmp_path / "python").chmod(0o755)
    for name in ("deep_matmul", "deep_allreduce"):
        found = check(name, tmp_path / "python")
        assert found.status == "SKIP", found
        assert "deep_python" in found.detail
    assert check("deep_matmul", tmp_path / "nothing").status == "SKIP"


GOOD = '{"ranks": [{"device": "cpu", "wrong": 0}]}'


@pytest.mark.parametrize("cut", range(len(GOOD)))
def test_half_an_answer_is_none(cut: int) -> None:
    assert parse(GOOD[:cut]).why is not None
    assert parse(f"NCCL version 2.21\n{GOOD}\nbye").why is None


def test_a_disk_gives_back_what_was_written(tmp_path: Path) -> None:
    found = measure(tmp_path / "file", 3 * BLOCK_BYTES)
    assert found["same"] is True
    assert min(found["write_mb_s"], found["read_mb_s"]) > 0
    assert list(tmp_path.iterdir()) == []
    assert measure(tmp_path / "no/file", BLOCK_BYTES) == {"error": "No such file or directory"}


def test_a_disk_that_gives_back_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    real = os.readv

    def readv(fd: int, buffers: list[memoryview]) -> int:
        got = real(fd, buffers)
        buffers[0][4097] = (buffers[0][4097] + 1) % 256
        return got

    monkeypatch.setattr(os, "readv", readv)
    assert measure(tmp_path / "file", 2 * BLOCK_BYTES)["same"] is False


def test_a_full_disk_is_not_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    real = os.statvfs(tmp_path)
    full = os.statvfs_result((*real[:4], 100, *real[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert measure(tmp_path / "file", BLOCK_BYTES) == {"error": "No space left on device"}
