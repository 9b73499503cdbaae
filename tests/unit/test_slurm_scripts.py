"""Slurm's prolog, epilog and HealthCheckProgram: whatever happens to the checker, no node is lost.

Slurm drains a node whose prolog fails. Every row is a way in which the checker can be broken.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {
    "prolog": "prolog.d/muster_health.sh",
    "epilog": "epilog.d/muster_health.sh",
    "periodic": "health_check.sh",
}
FAILED = "HEALTH_CHECK_RESULT:n3:Failed:replace:gpu_count: shows 7 of 8 GPUs"
PASSED = "HEALTH_CHECK_RESULT:n3:Passed:none:"
MUSTER = f"import sys; sys.path[0] = {str(ROOT)!r}; from muster.cli import main; sys.exit(main())"


class Site:
    """The scripts as a site installs them, with a checker of the test's choice."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.muster = folder, folder / "muster"
        for name in ("muster_health.sh", *NAMES.values()):
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy2(ROOT / "slurm" / name, folder / name)
        self.env(f"MUSTER={self.muster}\nHEALTH_LIMIT_S=1\nHEALTH_LOG={folder}/log")

    def env(self, text: str) -> int:
        return (self.folder / "muster.env").write_text(text + "\n")

    def checker(self, text: str) -> int:
        count = self.muster.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        self.muster.chmod(0o755)
        return count

    def run(self, mode: str = "prolog") -> subprocess.CompletedProcess[str]:
        """As slurmd runs it: with next to no environment, and reading its output to the end."""
        return subprocess.run(
            [str(self.folder / NAMES[mode])], cwd="/", env={"SLURM_JOB_ID": "42"},
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip


def until(condition: Callable[[], object], limit_s: float = 60) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize(("mode", "code"), [("prolog", 1), ("epilog", 1), ("periodic", 0)])
def test_an_unfit_node(site: Site, mode: str, code: int) -> None:
    site.checker(
        f'echo "$@ $SLURM_JOB_ID" >{site.folder}/words; echo noise; echo "{FAILED}"; exit 1'
    )
    done = site.run(mode)
    assert done.returncode == code
    assert (FAILED in done.stdout) == (mode != "periodic")
    act = " --act" if mode == "periodic" else ""
    assert (site.folder / "words").read_text() == f"check --when {mode} --result{act} 42\n"
    assert (site.folder / "log").read_text() == f"noise\n{FAILED}\n"


def test_rounds_do_not_pile_up(site: Site) -> None:
    site.env(f"MUSTER={site.muster}\nHEALTH_LOG={site.folder}/log\nMUSTER_STATE_DIR={site.folder}")
    started, go_on = site.folder / "started", site.folder / "go_on"
    wait = f"touch {started}; until [[ -e {go_on} ]]; do sleep 0.05; done"
    site.checker(f'[[ $3 != periodic ]] || {{ {wait}; }}; echo "{PASSED}"')
    with subprocess.Popen([str(site.folder / NAMES["periodic"])], env={}) as slow:
        until(started.exists)
        assert site.run("periodic").returncode == 0  # ends, though the check cannot
        assert "has not ended" in (site.folder / "log").read_text()
        assert PASSED in site.run("prolog").stdout  # Slurm waits for its answer
        go_on.touch()
        assert slow.wait(60) == 0
    site.checker(f'echo "{FAILED}"')
    assert site.run("periodic").returncode == 0
    assert (site.folder / "log").read_text().endswith(f"{PASSED}\n{FAILED}\n")


BROKEN: dict[str, Callable[[Site], object]] = {
    "fit": lambda site: site.checker(f'echo "{PASSED}"'),
    "fit, with a bad exit code": lambda site: site.checker(f'echo "{PASSED}"; exit 1'),
    "nothing looked at": lambda site: site.checker(f'echo "{PASSED.replace("Passed", "Skipped")}"'),
    "no muster": lambda site: site.muster.unlink(missing_ok=True),
    "not executable": lambda site: site.muster.write_text("#!/bin/bash\n"),
    "no Python": lambda site: site.checker("#!/nowhere/python3\n"),
    "a traceback": lambda site: site.checker("#!/usr/bin/env python3\nraise SystemError\n"),
    "an empty file": lambda site: site.checker("#!/usr/bin/env python3\n"),
    "half an archive": lambda site: (
        site.checker("#!/usr/bin/env python3\n"), site.muster.write_bytes(b"#!/usr/bin/env "
        b"python3\nPK\x03\x04" + bytes(range(256)))),
    "says nothing": lambda site: site.checker("exit 1"),
    "more was said after it": lambda site: site.checker(f'echo "{FAILED}"; echo Traceback; exit 1'),
    "said in the middle of a line": lambda site: site.checker(f'echo "x {FAILED}"; exit 1'),
    "said by half": lambda site: site.checker('echo "HEALTH_CHECK_RESULT:n3:Failed"; exit 1'),
    "said without an end": lambda site: site.checker(f'printf "%s" "{FAILED}"; exit 1'),
    "hangs": lambda site: site.checker("sleep 600"),
    "hangs and cannot be asked to leave": lambda site: site.checker(
        "trap '' TERM HUP INT; sleep 600 & while :; do sleep 600; done"),
    "leaves somebody who holds the pipe": lambda site: site.checker("setsid sleep 20 & exit 1"),
    "killed": lambda site: site.checker("kill -9 $$"),
    "bytes": lambda site: site.checker("head -c 100000 /dev/urandom; exit 1"),
    "the log is full": lambda site: (
        site.env(f"MUSTER={site.muster}\nHEALTH_LOG=/dev/full"), site.checker(f'echo "{PASSED}"')),
    "the log cannot be made": lambda site: (
        site.env(f"MUSTER={site.muster}\nHEALTH_LOG=/proc/x/y"), site.checker(f'echo "{PASSED}"')),
    "a setting that is no bash": lambda site: site.env("MUSTER=(\nif then"),
    "a setting that leaves": lambda site: site.env("exit 7"),
    "a setting that is strict": lambda site: site.env("set -eu\nfalse\necho $NOBODY"),
    "a limit that is no number": lambda site: (
        site.checker(f'echo "{FAILED}"'), site.env(f"MUSTER={site.muster}\nHEALTH_LIMIT_S=abc")),
    "the check is gone": lambda site: (site.folder / "muster_health.sh").unlink(),
    "a wrong site file": lambda site: (
        (site.folder / "site.yaml").write_text("lease_s: 'x"),
        site.env(f"MUSTER={site.muster}\nMUSTER_SITE={site.folder}/site.yaml"),
        site.checker(f'exec {sys.executable} -c "{MUSTER}" "$@"')),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["prolog", "periodic"])
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checker_fails_no_prolog(site: Site, name: str, mode: str) -> None:
    BROKEN[name](site)
    done = site.run(mode)
    assert done.returncode == 0, done


def test_a_full_log_does_not_hide_an_unfit_node(site: Site) -> None:
    site.env(f"MUSTER={site.muster}\nHEALTH_LOG=/dev/full")
    site.checker(f'echo "{FAILED}"')
    assert site.run().returncode == 1


def test_the_log_does_not_grow_for_ever(site: Site) -> None:
    site.checker(f'echo "{PASSED}"')
    (site.folder / "log").write_text("x" * 1_000_000)
    site.run("periodic")
    assert (site.folder / "log").read_text() == f"{PASSED}\n"
    assert (site.folder / "log.1").stat().st_size == 1_000_000


def test_without_settings_it_finds_muster_where_sites_put_it(site: Site) -> None:
    (site.folder / "muster.env").unlink()
    done = site.run()
    assert done.returncode == 0


def test_options_of_the_site_are_passed_on(site: Site) -> None:
    site.checker(f'echo "$@" >{site.folder}/words; echo "{PASSED}"')
    site.env(f"MUSTER={site.muster}\nHEALTH_OPTIONS='--profile p5 --prometheus /x/y.prom'")
    site.run()
    words = "check --when prolog --result --profile p5 --prometheus /x/y.prom\n"
    assert (site.folder / "words").read_text() == words


def test_an_unknown_mode_is_refused_without_harm(site: Site) -> None:
    argv = ["bash", str(site.folder / "muster_health.sh"), "always"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0
    assert "is none of prolog, epilog, periodic" in done.stderr
