"""The whole command on a fake node: exit codes, what is remembered between runs, and by whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import last_run
from healthcheck.last_run import PROLOG
from healthcheck.one_checker import one_checker
from tests.harness.fake_tools import good, install
from tests.harness.fake_tools.install import Installed

ROOT = Path(__file__).resolve().parents[2]
MUSTER = f"import sys; sys.path[0] = {str(ROOT)!r}; from muster.cli import main; sys.exit(main())"


class Machine:
    """A fake node of eight GPUs, on disk, and `muster check` on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.installed: Installed = install.install(good.node(), folder)
        (folder / "site.yaml").write_text("scratch_min_free_bytes: 1\n")
        self.profile = folder / "profile.yaml"
        self.profile.write_text("gpus: 8\n")

    def check(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        at = self.installed
        env = {
            "PATH": f"{at.bin}:{os.environ['PATH']}", "MUSTER_SITE": f"{self.folder}/site.yaml",
            "MUSTER_STATE_DIR": str(at.state), "SLURMD_NODENAME": "n3", **environment,
        }  # fmt: skip
        argv = [sys.executable, "-c", MUSTER, "check", "--node-root", str(at.root)]
        argv += ["--profile", str(self.profile), *words]
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=60, env=env
        )

    def break_gpu(self) -> None:
        """nvidia-smi ends with 15: a GPU fell off the bus."""
        self.installed.order("nvidia-smi", "rc=15")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_fit_node(machine: Machine) -> None:
    file = machine.folder / "muster.prom"
    done = machine.check("--when", "prolog", "--result", "--prometheus", str(file))
    assert done.returncode == 0, done
    assert done.stdout.splitlines()[-1] == "HEALTH_CHECK_RESULT:n3:Passed:none:"
    assert 'muster_node_fit{mode="prolog"} 1' in file.read_text()
    assert last_run.load(machine.installed.state) is None
    assert last_run.load(machine.installed.state, PROLOG) is None


def test_the_periodic_check_remembers_what_it_found(machine: Machine) -> None:
    machine.break_gpu()
    assert machine.check("--when", "periodic").returncode == 1
    last = last_run.load(machine.installed.state)
    assert last is not None
    assert "nvidia_smi" in {f.check for f in last.findings if f.status == "FAIL"}
    names = json.loads((machine.installed.state / "gpus.json").read_text())
    assert len(names) == 8


@pytest.mark.parametrize("when", ["prolog", "epilog"])
def test_a_prolog_that_fails_leaves_a_note(machine: Machine, when: str) -> None:
    machine.break_gpu()
    done = machine.check("--when", when, "--result", SLURM_JOB_ID="42")
    assert done.returncode == 1
    last = done.stdout.splitlines()[-1]
    assert last.startswith("HEALTH_CHECK_RESULT:n3:Failed:reboot:nvidia_smi: ")
    marker = last_run.load(machine.installed.state, PROLOG)
    assert marker is not None
    assert marker.job == "42"
    assert {f.status for f in marker.findings} == {"FAIL"}


def test_a_new_site_file_stops_no_job_before_the_periodic_check_has_used_it(
    machine: Machine,
) -> None:
    """Nobody has counted yet how many nodes it would drain."""
    assert machine.check("--when", "periodic").returncode == 0
    (machine.folder / "site.yaml").write_text(f"scratch_min_free_bytes: {1 << 60}\n")
    done = machine.check("--when", "prolog", "--result")
    assert done.returncode == 0
    assert "scratch_space stops no job" in done.stderr
    assert done.stdout.splitlines()[-1] == "HEALTH_CHECK_RESULT:n3:Passed:none:"
    assert last_run.load(machine.installed.state, PROLOG) is None
    assert machine.check("--when", "gate").returncode == 1
    assert machine.check("--when", "periodic").returncode == 1
    assert machine.check("--when", "prolog").returncode == 1


def test_what_only_root_can_see_counts_for_a_users_check(machine: Machine) -> None:
    """Root's last run says that a GPU is gone; here the user's nvidia-smi gives no answer."""
    state = machine.installed.state
    machine.check("--when", "periodic")
    last = last_run.load(state)
    assert last is not None
    broken = [replace(f, status="FAIL", action="replace", detail="by root")
              for f in last.findings if f.check == "gpu_count"]  # fmt: skip
    last_run.save(state, replace(last, findings=tuple(broken)))
    machine.installed.order("nvidia-smi", "rc=4,trunc=1")
    for when, code in (("gate", 1), ("suspect", 1), ("return", 0)):
        done = machine.check("--when", when, "--json")
        assert done.returncode == code, done
        assert ("by root" in done.stdout) == bool(code)
    machine.installed.order("nvidia-smi", "")
    assert machine.check("--when", "gate").returncode == 0


def test_a_lost_gpu_is_named_by_its_serial_number(machine: Machine) -> None:
    machine.check("--when", "periodic")
    names = json.loads((machine.installed.state / "gpus.json").read_text())
    node = good.node()
    address, serial = list(names.items())[3]
    cards = node.parts["gpus"].cards
    lost = f"Unable to determine the device handle for GPU {address}.0: GPU is lost."
    cards[:] = [card for card in cards if card.row["serial"] != serial]
    assert len(cards) == 7
    node.change("nvidia-smi", lambda answer: replace(answer, err=lost, rc=15))
    install.install(node, machine.folder)
    done = machine.check("--when", "periodic", "--json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    (finding,) = [f for f in found if f.get("check") == "gpu_lost"]
    assert (finding["status"], finding["gpu"]) == ("FAIL", serial)


def test_one_check_at_a_time(machine: Machine) -> None:
    """A periodic check gives way; a prolog takes what the other one found a moment ago."""
    state = machine.installed.state
    machine.check("--when", "periodic")
    last = last_run.load(state)
    assert last is not None
    broken = [replace(f, status="FAIL", action="replace", detail="by the other")
              for f in last.findings if f.check == "gpu_count"]  # fmt: skip
    with one_checker(state, 0) as mine:
        assert mine
        done = machine.check("--when", "periodic")
        assert (done.returncode, "another check" in done.stdout) == (0, True)
        last_run.save(state, replace(last, time=time.time(), findings=tuple(broken)))
        done = machine.check("--when", "prolog", "--result")
        assert done.returncode == 1
        assert "by the other" in done.stdout
        last_run.save(state, replace(last, time=time.time() - 61, findings=tuple(broken)))
        done = machine.check("--when", "prolog", "--result")
        assert done.returncode == 0
        assert "HEALTH_CHECK_RESULT:n3:Skipped:none:" in done.stdout
        assert machine.check("--when", "gate").returncode == 0
