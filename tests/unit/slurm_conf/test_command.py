"""`muster slurm-conf`: files, exit codes, and what the real daemons say of the result."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from lifecycle.description.load import load_description
from muster import cli
from slurm.conf import dry_start
from slurm.conf.render import render

ROOT = Path(__file__).resolve().parents[3]
ON_PREMISES = ROOT / "lifecycle" / "examples" / "on_premises" / "cluster.yaml"
SMALL = """\
name: c
groups:
  - {{name: head, role: head, nodes: [h]}}
  - name: gpu
    role: compute
    nodes: ["n[0001-{nodes:04}]"]
    instance_type: p5.48xlarge
partitions:
  - {{name: production, groups: [gpu], default: true, priority_tier: 100, exclusive: true}}
  - {{name: preprocess, groups: [gpu], priority_tier: 10, preempt: requeue, grace_s: 60}}
"""


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    folder.mkdir()
    return folder


def small(tmp_path: Path, nodes: int) -> str:
    path = tmp_path / "cluster.yaml"
    path.write_text(SMALL.format(nodes=nodes))
    return str(path)


def conf(verb: str, source: str, etc: Path, *more: str) -> int:
    words = ["slurm-conf", verb, source, "--dir", str(etc), "--slurm-version", "22.05", *more]
    return cli.main(words)


def test_render_twice(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (etc / "gres.conf").write_text("# mine\n")
    assert conf("diff", str(ON_PREMISES), etc) == 1
    assert conf("render", str(ON_PREMISES), etc) == 0
    out = capsys.readouterr().out
    assert f"{etc}/gres.conf: changed\n" in out
    assert f"{etc}/slurm.conf: new\nthen: scontrol reconfigure" in out
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in etc.iterdir()}
    assert before["gres.conf"][0].startswith(b"# mine\n# >>> muster")
    assert conf("render", str(ON_PREMISES), etc) == 0
    assert set(capsys.readouterr().out.split()[1::2]) == {"unchanged"}
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in etc.iterdir()}
    assert after == before
    assert conf("diff", str(ON_PREMISES), etc) == 0


def test_diff_shows_what_would_change(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conf("render", str(ON_PREMISES), etc) == 0
    capsys.readouterr()
    assert conf("diff", str(ON_PREMISES), etc, "slurm.lost_after_s=60") == 1
    out = capsys.readouterr().out
    assert "-SlurmdTimeout=30\n+SlurmdTimeout=60\n" in out
    assert out.count("\n+++ ") == 1


def test_print_writes_nothing(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert conf("render", str(ON_PREMISES), etc, "--print") == 0
    assert f"##### {etc}/muster.conf\n" in capsys.readouterr().out
    assert list(etc.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_a_device_stays_one(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    null = etc.parent / "null"
    os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    (etc / "cgroup.conf").symlink_to(null)
    assert conf("render", str(ON_PREMISES), etc) == 73
    assert f"{etc}/cgroup.conf: is no ordinary file. Fix: " in capsys.readouterr().err
    assert conf("render", str(ON_PREMISES), etc, "slurm.cgroup=false") == 0
    assert f"{etc}/cgroup.conf: unchanged\n" in capsys.readouterr().out
    assert null.is_char_device()


def test_an_operators_line_ends_stay(etc: Path, capsys: pytest.CaptureFixture[str]) -> None:
    theirs = {"slurm.conf": b"# a\r\nKillWait=9\r\n", "gres.conf": b"# a\rb\n\r\n# c"}
    for name, data in theirs.items():
        (etc / name).write_bytes(data)
    for word in ("changed", "unchanged"):
        assert conf("render", str(ON_PREMISES), etc) == 0
        assert f"{etc}/slurm.conf: {word}\n" in capsys.readouterr().out
    assert (etc / "slurm.conf").read_bytes() == b"Include muster.conf\n" + theirs["slurm.conf"]
    assert (etc / "gres.conf").read_bytes().startswith(theirs["gres.conf"] + b"\n# >>> muster")
    assert "# KillWait: slurm.conf has its own" in (etc / "muster.conf").read_text()


def test_a_block_with_other_line_ends_is_replaced(
    etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conf("render", str(ON_PREMISES), etc) == 0
    before = (etc / "gres.conf").read_bytes()
    (etc / "gres.conf").write_bytes(before.replace(b"\n", b"\r\n"))
    assert conf("render", str(ON_PREMISES), etc) == 0
    assert (etc / "gres.conf").read_bytes() == before


@pytest.mark.parametrize(
    ("break_it", "code", "told"),
    [
        (lambda etc: etc.rmdir(), 65, "no such folder. Fix: mkdir -p"),
        (lambda etc: (etc / "slurm.conf").write_bytes(b"\xff"), 65, "slurm.conf: not UTF-8 text"),
        (lambda etc: (etc / "gres.conf").mkdir(), 65, "gres.conf: Is a directory"),
        (lambda etc: os.mkfifo(etc / "gres.conf"), 65, "gres.conf: is a FIFO. Fix: make it a text"),
        (lambda etc: (etc / "gres.conf").write_text("# <<< muster"), 78, "gres.conf: the two"),
        (lambda etc: (etc / "slurm.conf").write_text("Include x\\\nNodeName=[["), 0, ""),
    ],
)
def test_bad_input_is_one_line(
    etc: Path, capsys: pytest.CaptureFixture[str], break_it: object, code: int, told: str
) -> None:
    assert callable(break_it)
    break_it(etc)
    assert conf("render", str(ON_PREMISES), etc) == code
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == bool(code)


def test_no_slurm_to_ask_for_its_release(
    etc: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dry_start, "installed_version", lambda: None)
    assert cli.main(["slurm-conf", "render", str(ON_PREMISES), "--dir", str(etc)]) == 78
    assert "Fix: --slurm-version 23.11" in capsys.readouterr().err


# What follows asks the real daemons.


@pytest.fixture
def slurm() -> None:
    if not shutil.which("slurmctld", path=f"{os.environ['PATH']}:/usr/sbin"):
        pytest.skip("no slurmctld. Fix: apt-get install slurmctld slurmd")


@pytest.mark.parametrize("nodes", [16, 2048])
def test_slurmctld_accepts_it(
    slurm: None, tmp_path: Path, etc: Path, capsys: pytest.CaptureFixture[str], nodes: int
) -> None:
    code = conf("check", small(tmp_path, nodes), etc)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert "accepts it: 2 partitions" in out


def test_slurmctld_accepts_the_example_with_an_operators_lines(
    slurm: None, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (etc / "slurm.conf").write_text("SlurmdTimeout=60\nInclude own.conf\n")
    (etc / "own.conf").write_text("NodeName=old[1-2] CPUs=1\nPartitionName=old Nodes=old[1-2]\n")
    flat = ("slurm.topology=none", "slurm.switches=[]")
    assert conf("check", str(ON_PREMISES), etc, *flat) == 0
    assert "accepts it: 4 partitions" in capsys.readouterr().out
    assert conf("check", str(ON_PREMISES), etc) == 1
    assert "switches lack access to 2 nodes: old[1-2]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("slurm.conf", "SlurmdTimeOuts=60"),
        ("slurm.conf", "PartitionName=more Nodes=SlurmdTimeOuts"),
        ("topology.conf", "SwitchName=x Nodes=gpu001,SlurmdTimeOuts"),
        ("cgroup.conf", "SlurmdTimeOuts=yes"),
    ],
)
def test_what_slurm_refuses_is_told(
    slurm: None, etc: Path, capsys: pytest.CaptureFixture[str], file: str, line: str
) -> None:
    (etc / file).write_text(f"{line}\n")
    assert conf("check", str(ON_PREMISES), etc) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "SlurmdTimeOuts" in err
    assert all(one.startswith("muster slurm-conf: ") for one in err.splitlines())


def test_a_busy_machine_is_no_reason_to_refuse(
    slurm: None, etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{os.environ['PATH']}:/usr/sbin"
    busy = tmp_path / "bin" / "slurmctld"
    busy.parent.mkdir()
    said = "slurmctld: error: High latency for 1000 calls to gettimeofday(): 538 microseconds"
    real = shutil.which("slurmctld", path=path)
    busy.write_text(f"#!/bin/sh\necho '{said}'\nexec {real} \"$@\"\n")
    busy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{busy.parent}:{path}")
    assert conf("check", small(tmp_path, 16), etc) == 0


def test_a_site_may_have_no_default_partition(slurm: None, etc: Path, tmp_path: Path) -> None:
    source = Path(small(tmp_path, 16))
    source.write_text(source.read_text().replace("default: true, ", ""))
    assert conf("check", str(source), etc) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device files")
def test_gpus_that_slurmd_counts_otherwise(
    slurm: None, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (etc / "gres.conf").write_text("NodeName=gpu001 Name=gpu Type=h100 File=/dev/nvidia0\n")
    assert conf("check", str(ON_PREMISES), etc) == 1
    assert "slurmd for gpu001: " in (err := capsys.readouterr().err)
    assert "dev/nvidia0" in err


def test_a_dry_start_touches_nothing_else(tmp_path: Path) -> None:
    files = render(load_description(ON_PREMISES), "22.05", {})
    text = dry_start.private_copy(files, tmp_path, "me", (1, 2))["slurm.conf"]
    for name in ("head1", "/lustre", "munge", "10.20", "slurmdbd", "/var/", "/run/", "Include"):
        assert name not in text
    assert text.count("NodeAddr=127.0.0.1") == 2
