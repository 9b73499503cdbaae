"""`muster lint` on the command line: what it prints, its exit codes, and what --fix writes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from muster import cli
from slurm.lint import fix
from slurm.lint.finding import Edit, Finding, Spot
from slurm.lint.fix import fixed
from slurm.lint.linter import lint, rules

ROOT = Path(__file__).resolve().parents[3]
FAULTS = sorted((ROOT / "tests" / "data" / "sbatch" / "faults").iterdir())
BASE = (ROOT / "tests" / "data" / "sbatch" / "clean" / "plain.sbatch").read_text()
FIX = "Fix: name batch scripts that you can read"
FIXED = {
    *("shebang", "shebang.blank_line", "line-ends", "line-ends.one_line", "open-mode"),
    *("kill-on-bad-exit", "kill-on-bad-exit.array", "srun-wait", "cpus-not-inherited"),
}


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text(BASE.replace("#SBATCH --open-mode=append\n", ""))
    return path


@pytest.mark.parametrize("path", FAULTS, ids=lambda path: path.stem)
def test_what_is_fixed_is_clean_and_still_a_script(path: Path) -> None:
    data = path.read_bytes()
    better = fixed(data, str(path), path.parent)
    if path.stem not in FIXED:
        assert better == data
        return
    assert lint(better, str(path), path.parent) == []
    done = subprocess.run(["bash", "-n"], input=better, check=False, timeout=60)
    assert done.returncode == 0
    kept = [word for word in data.replace(b"\r", b"").split() if word in better.split()]
    assert kept == data.replace(b"\r", b"").split()


SHEBANG = "#!/usr/bin/env bash\n"
ADDED = "#SBATCH --open-mode=append\n"
REWRITTEN = [
    ("\ufeff#!/bin/bash\n#SBATCH -N2\n", f"#!/bin/bash\n#SBATCH -N2\n{ADDED}"),
    ("\ufeff#SBATCH -N2\n", f"{SHEBANG}#SBATCH -N2\n{ADDED}"),
    ("\r\n #!/bin/sh\r\na\r\n", f"#!/bin/sh\n{ADDED}a\n"),
    ("cat > conf <<EOF\nkey=1\nEOF\n", f"{SHEBANG}{ADDED}cat > conf <<EOF\nkey=1\nEOF\n"),
    ("msg='hello\nworld'", f"{SHEBANG}{ADDED}msg='hello\nworld'"),
    ("mpirun \\\n torchrun x.py\n", f"{SHEBANG}{ADDED}mpirun \\\n torchrun x.py\n"),
    ("torchrun x.py\n", f"{SHEBANG}{ADDED}torchrun x.py\n"),
    ("#!/usr/bin/perl -w\nprint;\n", f"#!/usr/bin/perl -w\n{ADDED}print;\n"),
    ("#!/opt/python3.11\n# coding=latin-1\n", f"#!/opt/python3.11\n# coding=latin-1\n{ADDED}"),
    ("#!/usr/bin/env node\nlet a\n", "#!/usr/bin/env node\nlet a\n"),
    ("#!/usr/bin/env -S deno run\n", "#!/usr/bin/env -S deno run\n"),
    ("#!/usr/bin/guile\n!#\n(a)\n", "#!/usr/bin/guile\n!#\n(a)\n"),
    ("import os\nprint(os.name)\n", "import os\nprint(os.name)\n"),  # bash must not run it
]


@pytest.mark.parametrize(("text", "better"), REWRITTEN)
def test_an_option_is_added_where_it_is_one_and_nowhere_else(text: str, better: str) -> None:
    assert fixed(text.encode(), "job", Path("/")).decode() == better


STEP = "#!/bin/bash\n#SBATCH --cpus-per-task=8 --no-requeue\nMASTER_ADDR=x\n"
OPTIONS = '--cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 --wait=60'
NO_LAUNCH = [
    *("command -v srun a", "command -pv srun a", "type srun", "if command -V srun; then :; fi"),
    *("srun --version", "srun -V", "srun --help", "srun -h a", "srun --usage", "srun --mpi=list"),
    *("srun() { :; }", "function srun { :; }", "function srun() (:)", "srun ( ) { :; }"),
    "case $x in srun) a ;; esac",
    "case $x in (b|srun) a ;& srun|c) d ;; srun)\nesac",
    "case srun\nin srun) a; esac",
    "a=$(case $x in srun) srun b ;; esac)",
    "select srun in a b; do :; done",
    "[[ $x =~ (srun) || srun -ef b ]]",
    "echo $'it\\'s'\ncat <<E\nsrun a\nE",
    "A=( '(' )\ncat <<E\nsrun a\nE",
    "x=$[1<<2]\ncat <<E\nsrun a\nE",
]


@pytest.mark.parametrize("text", NO_LAUNCH)
def test_what_starts_nothing_is_left_alone(text: str) -> None:
    script = f"{STEP}{text}\nsrun a\n"
    better = fixed(script.encode(), "job", Path("/")).decode()
    assert better == f"{STEP}{text}\nsrun {OPTIONS} a\n"


def test_without_bash_the_edits_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fixed(b"a\n", "job", tmp_path) == f"{SHEBANG}{ADDED}a\n".encode()


def test_of_edits_that_overlap_one_is_made() -> None:
    assert fix.edited("abcdef", {Edit(0, 4, ""), Edit(1, 2, "x"), Edit(5, 5, "y")}) == "eyf"


def test_what_bash_could_read_it_still_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a rule does: here one that breaks a script."""
    spot = Spot(1, "broken", (Edit(12, 12, "("),))
    monkeypatch.setattr(fix, "lint", lambda *_: [Finding("job", rules()[0], spot)])
    for text, better in (
        (b"#!/bin/bash\na\n", b"#!/bin/bash\na\n"),
        (b"#!/bin/bash\n)\n", b"#!/bin/bash\n((((()\n"),  # it could not
        (b"#!/bin/perl\na\n", b"#!/bin/perl\n(((((a\n"),
    ):
        assert fixed(text, "job", Path("/")) == better


def test_what_only_a_job_that_is_kept_going_gets() -> None:
    script = '#!/bin/bash\n#SBATCH --time=5:00:00 --open-mode=append\nexec muster run "$@"\n'
    better = fixed(script.encode(), "job", Path("/")).decode().splitlines()
    assert sorted(better[2:4]) == ["#SBATCH --requeue", "#SBATCH --signal=B:USR1@180"]
    plain = script.replace("muster run", "python train.py").encode()
    assert fixed(plain, "job", Path("/")) == plain


def test_a_finding_is_one_line_with_place_rule_and_fix(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["lint", str(job)]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        f"{job}:8: warning: a requeue empties the log: --open-mode is not given [open-mode]. "
        "Fix: add '#SBATCH --open-mode=append'\n"
    )


def test_fix_writes_the_file_once(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.chmod(0o750)
    assert cli.main(["lint", "--fix", str(job)]) == 0
    first = job.read_bytes()
    assert sorted(first.decode().splitlines()) == sorted(BASE.splitlines())
    assert job.stat().st_mode & 0o777 == 0o750
    before = job.stat().st_mtime_ns
    assert cli.main(["lint", "--fix", str(job)]) == 0
    assert (job.read_bytes(), job.stat().st_mtime_ns) == (first, before)


def test_a_link_stays_a_link_and_a_full_disk_loses_nothing(
    job: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    link, before = job.parent / "link", job.read_bytes()
    link.symlink_to(job.name)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "disk full")))
        assert cli.main(["lint", "--fix", str(link)]) == 73
    assert capsys.readouterr().err.startswith(f"muster lint: {link}: cannot be written (disk full)")
    assert job.read_bytes() == before
    assert cli.main(["lint", "--fix", str(link)]) == 0
    assert link.is_symlink()
    assert job.read_bytes() != before
    assert sorted(path.name for path in job.parent.iterdir()) == ["job.sbatch", "link"]


def test_json(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--json", str(job)]) == 1
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["path"], one["line"], one["rule"]) == (str(job), 8, "open-mode")
    assert (one["severity"], one["fixable"]) == ("warning", True)
    assert sorted(one) == sorted(
        ["path", "line", "rule", "severity", "says", "why", "fix", "fixable"]
    )


def test_only_errors(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--level", "error", str(job)]) == 0
    assert capsys.readouterr().out == ""
    job.write_text(f"{BASE}\n#SBATCH --mem=0\n")
    assert cli.main(["lint", "--level", "error", str(job)]) == 1


def test_one_bad_file_hides_no_other(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = job.parent / "absent"
    assert cli.main(["lint", str(absent), str(job), str(job.parent)]) == 65
    out, err = capsys.readouterr()
    assert "[open-mode]" in out
    assert err.splitlines() == [
        f"muster lint: {absent}: No such file or directory. {FIX}",
        f"muster lint: {job.parent}: Is a directory. {FIX}",
    ]


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_fix_neither_reads_nor_replaces_what_is_no_regular_file(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / kind
    if kind == "pipe":
        os.mkfifo(path)  # nobody writes to it: reading would never end
    else:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(os.path.relpath(path))  # the whole path may be too long for a socket
    assert cli.main(["lint", "--fix", str(path)]) == 73
    assert capsys.readouterr().err == (
        f"muster lint: {path}: is not a regular file, so --fix cannot write it. "
        "Fix: leave --fix out, or name a batch script\n"
    )
    assert not path.is_file()
    assert path.exists()


def test_no_more_is_read_than_slurm_takes(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No memory holds this file; and what was not read is not cut off."""
    os.truncate(job, 1 << 40)
    assert cli.main(["lint", "--fix", str(job)]) == 1
    assert "[size]" in capsys.readouterr().out
    assert job.stat().st_size == 1 << 40


def test_no_file_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint"]) == 64
    assert capsys.readouterr().err.startswith(
        "muster lint: no file: there is nothing to look at. Fix: "
    )


def test_the_list_has_every_rule(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lint", "--list"]) == 0
    out = capsys.readouterr().out
    assert [one.name for one in rules() if f"\n{one.name} (" not in f"\n{out}"] == []


def test_a_name_that_is_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/\xff\n.sbatch"))
    path.write_bytes(b"\xff")
    assert cli.main(["lint", str(path)]) == 1
    assert capsys.readouterr().out.isascii()
