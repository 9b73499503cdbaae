"""The fake node is the same in memory and as folders, and breaks to order."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from healthcheck import registry
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding
from tests.harness.fake_tools import good
from tests.harness.fake_tools.install import Installed, install
from tests.harness.fake_tools.node import FakeNode

# What looks at real folders sees this machine's.
REAL = {"scratch_space", "disk_space", "disk_inodes", "mounts_alive", "shm_size"}
ASK = ["nvidia-smi", "--query-gpu=uuid"]


def look(node: FakeNode, at: Installed, when: str, limit_s: float = 60) -> list[Finding]:
    env = Env(at.root, limit_s, at.state)
    facts = Facts(env, node.profile, node.site, when=when, node="n3")
    return registry.run_checks(registry.discover(), facts)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNode], Installed]:
    def put(node: FakeNode) -> Installed:
        at = install(node, tmp_path)
        monkeypatch.setenv("PATH", f"{at.bin}:/usr/bin:/bin")
        return at

    return put


@pytest.mark.parametrize("when", ["prolog", "periodic"])
def test_memory_and_folders_say_the_same(
    installed: Callable[[FakeNode], Installed], when: str
) -> None:
    node = good.node()
    there, here = look(node, installed(node), when), node.check(when=when)
    assert [f.check for f in there] == [f.check for f in here]
    assert [f for f in there if f.check not in REAL] == [f for f in here if f.check not in REAL]


def test_a_fit_node_is_fit_in_every_mode() -> None:
    node = good.node()
    for when in registry.MODES:
        bad = [f for f in node.check(when=when) if f.status in ("FAIL", "WARN", "UNKNOWN")]
        assert bad == [], when


def test_faults_to_order(
    installed: Callable[[FakeNode], Installed], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = good.node()
    node.say("nvidia-smi", "GPU-1234\n", rc=3, words="uuid")
    at = installed(node)
    (at.folder / "answers/nvidia-smi/000.words").write_text("uuid\n")
    (at.folder / "answers/nvidia-smi/000.out").write_text("GPU-1234\n")
    (at.folder / "answers/nvidia-smi/000.rc").write_text("3")
    door = Env(at.root, 60, at.state)
    assert (door.run(ASK, 30).rc, door.run(ASK, 30).out) == (3, "GPU-1234\n")
    assert at.calls("nvidia-smi") == ["--query-gpu=uuid"] * 2
    at.order("nvidia-smi", "rc=15,trunc=3")
    assert (door.run(ASK, 30).rc, door.run(ASK, 30).out) == (15, "GPU")
    monkeypatch.setenv("FAKE_NVIDIA_SMI", "garbage=64")
    assert len(subprocess.run(ASK, capture_output=True, check=False).stdout) == 64
    monkeypatch.setenv("FAKE_NVIDIA_SMI", "trap,sleep=60")
    assert door.run(ASK, 0.2).timed_out


def test_an_unknown_question_is_an_error(installed: Callable[[FakeNode], Installed]) -> None:
    at = installed(good.node())
    done = Env(at.root, 60).run(["nvidia-smi", "--reset"], 30)
    assert (done.rc, done.out) == (2, "")
    assert "no recorded answer for: --reset" in done.err
