"""`muster check` on a fake node: small programs on PATH, a fake /proc and /sys, real folders."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import healthcheck.cli
from healthcheck import folders, output, registry
from healthcheck.env import Env
from healthcheck.facts import Facts
from healthcheck.finding import Finding, Result, plain, unfit
from healthcheck.policy import POLICY, judge
from healthcheck.profile import Profile, load_profile
from healthcheck.read.mounts import parse_mountinfo
from muster.site import Site
from tests.harness.fake_tools import good
from tests.harness.fake_tools.gpus import pci, rack
from tests.harness.fake_tools.install import install
from tests.harness.fake_tools.node import FakeNode

ROOT = Path(__file__).resolve().parents[2]
BOOT_ID = "0123abcd-0000-4000-8000-000000000000"
Node = Callable[..., "Fake"]


class Fake:
    """A node without GPUs: a folder with root/ for /proc and /sys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        (self.root / "tmp").mkdir(parents=True)
        boot = self.root / "proc/sys/kernel/random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text(BOOT_ID + "\n")

    def check(
        self, expect: Profile | None = None, *, when: str = "gate", limit_s: float = 10,
        site: Site | None = None, shared: list[Path] | None = None, reference: float | None = None,
    ) -> dict[str, Finding]:  # fmt: skip
        facts = Facts(
            Env(self.root, limit_s), expect or Profile(gpus=0), site or Site(), when=when,
            node="n3", shared=shared or [], reference_time=reference,
        )  # fmt: skip
        found = registry.run_checks(registry.discover(), facts)
        order = ("PASS", "SKIP", "UNKNOWN", "WARN", "FAIL")
        found.sort(key=lambda f: order.index(f.status))
        return {f.check: f for f in found}  # the worst of each check


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    fake = Fake(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    site = tmp_path / "site.yaml"
    site.write_text("scratch_min_free_bytes: 1\n")
    monkeypatch.setenv("MUSTER_SITE", str(site))
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path / "state"))
    return fake


def test_disk(node: Fake) -> None:
    full = Site(scratch_min_free_bytes=1 << 60)
    found = node.check(site=full)["scratch_space"]
    assert (found.status, found.class_) == ("FAIL", "software")
    gone = Site(scratch_path=Path("/gone"))
    assert node.check(site=gone)["scratch_space"].class_ == "configuration"
    enough = Site(scratch_path=Path("/"), scratch_min_free_bytes=1)
    assert node.check(site=enough)["scratch_space"].status == "PASS"


def test_shared_folder(node: Fake) -> None:
    good, gone = Path("/good"), Path("/gone")
    (node.root / "good").mkdir()
    assert node.check()["shared_writable"].status == "SKIP"
    assert node.check(shared=[good])["shared_writable"].status == "PASS"
    assert list((node.root / "good").iterdir()) == []
    found = node.check(shared=[good, gone])["shared_writable"]
    assert (found.status, found.class_) == ("FAIL", "storage")
    assert "is it mounted" in found.detail
    assert node.check(site=Site(shared_paths=[str(gone)]))["shared_writable"].status == "FAIL"
    assert "shared_writable" not in node.check(when="prolog", shared=[gone])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.may_skip("only root can mount")
def test_a_full_and_a_read_only_folder(node: Fake, tmp_path: Path) -> None:
    """In a mount namespace of its own: a tmpfs of one page, filled; then read-only."""
    script = f"""
import sys; sys.path[0] = {str(ROOT)!r}
import subprocess
from pathlib import Path
from healthcheck.folders import try_writing
at = Path({str(tmp_path)!r})
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", at], check=True)
(at / "full").write_bytes(bytes(4096))
print(try_writing(at / "probe"))
subprocess.run(["mount", "-o", "remount,ro", at], check=True)
print(try_writing(at / "probe"))
"""
    argv = ["unshare", "-m", sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["{'error': 28}", "{'error': 30}"], done


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.may_skip("only root can mount, and needs loop devices and ext4")
def test_an_ext4_that_the_kernel_turned_read_only(tmp_path: Path) -> None:
    """A real one: an error is triggered as a bad disk would; each kernel says it in its own way."""
    script = f"""
set -e
dd if=/dev/zero of={tmp_path}/img bs=1M count=4 status=none
mkfs.ext4 -q {tmp_path}/img
mkdir {tmp_path}/at
mount -o loop,errors=remount-ro {tmp_path}/img {tmp_path}/at
grep {tmp_path}/at /proc/self/mountinfo
echo test >/sys/fs/ext4/$(basename $(findmnt -no SOURCE {tmp_path}/at))/trigger_fs_error
grep {tmp_path}/at /proc/self/mountinfo
umount {tmp_path}/at
"""
    argv = ["unshare", "-m", "bash", "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        pytest.skip(f"no loop device or no ext4 here: {done.stderr}")
    before, after = (replace(m, source="/dev/nvme0n1") for m in parse_mountinfo(done.stdout))
    assert not before.turned_read_only
    assert after.turned_read_only, done.stdout


def test_a_mount_may_have_other_line_ends_in_its_name() -> None:
    line = "36 35 0:1 / /a\u2028b rw shared:1 - ext4 /dev/sda1 rw"
    assert [mount.point for mount in parse_mountinfo(f"{line}\n")] == ["/a\u2028b"]


def test_a_folder_that_hangs(tmp_path: Path) -> None:
    """A named pipe without a reader hangs its writer as a dead file server does."""
    os.mkfifo(tmp_path / "pipe")
    questions: dict[str, folders.Question] = {
        "hangs": lambda: {"x": (tmp_path / "pipe").read_text()},
        "answers": lambda: {"x": 1},
        "fails": lambda: {"x": 1 // 0},
    }
    found = folders.ask(questions, 1)
    assert found == {"hangs": None, "answers": {"x": 1}, "fails": {}}


@pytest.mark.parametrize(
    ("off", "status"),
    [(0, "PASS"), (3, "PASS"), (-3, "PASS"), (20, "WARN"), (-20, "WARN"), (90, "FAIL"),
     (-90, "FAIL")],
)  # fmt: skip
def test_clock(node: Fake, off: float, status: str) -> None:
    found = node.check(reference=time.time() - off)["clock"]
    assert (found.status, found.class_) == (status, "configuration")


def test_clock_against_the_shared_file_system(node: Fake) -> None:
    assert node.check()["clock"].status == "SKIP"
    found = node.check(shared=[Path("/")])["clock"]
    assert found.status == "PASS"
    assert "shared file system" in found.detail


def test_a_check_that_breaks_is_unknown(node: Fake) -> None:
    def broken(facts: Facts) -> None:
        raise ZeroDivisionError("ours")

    bad = registry.Check("broken", frozenset({"gate"}), broken)  # type: ignore[arg-type]
    facts = Facts(Env(node.root, 10), Profile(), Site(), when="gate", node="n3")
    (found,) = registry.run_checks([bad], facts)
    assert (found.status, found.action) == ("UNKNOWN", "none")
    assert "ZeroDivisionError" in found.detail


def test_every_check_has_a_policy_and_a_mode() -> None:
    for one in registry.discover():
        assert one.name in POLICY
        assert one.when <= set(registry.MODES)
        assert one.function.__doc__
    assert healthcheck.cli.MODES == registry.MODES


def test_unknown_never_counts_and_a_prolog_blames_only_the_node() -> None:
    found = [
        judge("gpu_count", Result("UNKNOWN", "x"), "n3"),
        judge("gpu_ecc", Result("WARN", "x"), "n3"),
        judge("shared_writable", Result("FAIL", "x"), "n3"),
    ]
    assert [f.check for f in unfit(found, "gate")] == ["shared_writable"]
    assert unfit(found, "prolog") == []
    found.append(judge("gpu_count", Result("FAIL", "x"), "n3"))
    assert [f.check for f in unfit(found, "prolog")] == ["gpu_count"]


def test_plain_text() -> None:
    assert plain("a\x1b[1m 'b'\r\n\tc\u00e9 \\d") == "a [1m b c d"
    assert len(plain("x" * 999)) == 240


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeNode], Run]:
    """Install a node; gives what runs `muster check` on it."""
    monkeypatch.setenv("SLURMD_NODENAME", "n3")
    monkeypatch.setenv("MUSTER_SITE", str(tmp_path / "site.yaml"))
    # The disks, and /dev/shm, are this machine's.
    (tmp_path / "site.yaml").write_text("scratch_min_free_bytes: 1\ndisk_paths: []\n")
    (tmp_path / "profile.yaml").write_text("gpus: 8\nslurm_sizes: false\n")

    def installed(node: FakeNode) -> Run:
        node.files["/proc/meminfo"] = "MemTotal: 1024 kB\n"
        at = install(node, tmp_path / "node")
        monkeypatch.setenv("PATH", f"{at.bin}:/usr/bin:/bin")
        monkeypatch.setenv("MUSTER_STATE_DIR", str(at.state))
        code = "import sys; sys.path[0] = sys.argv.pop(1)\n" + CODE

        def call(
            *words: str, program: Sequence[str] = (sys.executable, "-c", code, str(ROOT))
        ) -> subprocess.CompletedProcess[str]:
            rest = ["--node-root", str(at.root), "--profile", str(tmp_path / "profile.yaml")]
            argv = [*program, "check", *rest, *words]
            return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

        return call

    return installed


def one_gone() -> FakeNode:
    """A GPU is gone, from the bus too."""
    node = good.node()
    node.remove(pci(rack(node).cards.pop(3)))
    return node


CODE = """
import argparse, healthcheck.cli
parser = argparse.ArgumentParser()
healthcheck.cli.add_parser(parser.add_subparsers())
arguments = parser.parse_args()
sys.exit(arguments.func(arguments))
"""


def test_lines_for_people(run: Callable[[FakeNode], Run]) -> None:
    done = run(one_gone())()
    assert done.returncode == 1
    fix = "Fix: replace it ('muster watch' does)"
    assert f"muster check: node n3 shows 7 of 8 GPUs. {fix}" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "muster check: node n3 is unfit: gpu_count"
    done = run(good.node())()
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "muster check: node n3 is fit"


def test_json_lines(run: Callable[[FakeNode], Run], tmp_path: Path) -> None:
    node = one_gone()
    node.change("nvidia-smi", lambda a: replace(a, err="\u00e9\"'\\" * 3000))
    done = run(node)("--json", "--shared", str(tmp_path / ("gone" * 60)))
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) < 900
    last = json.loads(lines[-1])
    assert (last["node"], last["boot_id"], last["fit"]) == ("n3", BOOT_ID, False)
    assert "gpu_count: shows 7 of 8 GPUs" in last["unfit"]
    first = json.loads(lines[0])
    assert list(first)[:7] == ["node", "check", "status", "class", "action", "detail", "gpu"]


def test_many_reasons_stay_on_one_short_line() -> None:
    bad = [judge("gpu_count", Result("FAIL", "x" * 999), "n3")] * 50
    lines = output.as_json(output.Report("n" * 60, BOOT_ID, "gate", bad, bad))
    assert max(map(len, lines)) < 900
    assert json.loads(lines[-1])["unfit"][-1] == "and 45 more"


def test_nagios(run: Callable[[FakeNode], Run]) -> None:
    assert run(good.node())("--nagios", "--when", "prolog").returncode == 0
    slow = good.node()
    rack(slow).cards[3].row["pcie.link.gen.current"] = "3"
    assert run(slow)("--nagios", "--when", "prolog").returncode == 1
    unsure = good.node()
    unsure.say("nvidia-smi", rc=4)
    assert run(unsure)("--nagios", "--when", "prolog").returncode == 3
    done = run(one_gone())("--nagios")
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert done.stdout.startswith("MUSTER CRITICAL - node n3 shows 7 of 8 GPUs")


def test_list_and_learn(run: Callable[[FakeNode], Run], tmp_path: Path) -> None:
    call = run(good.node())
    done = call("--list")
    assert done.returncode == 0
    assert "gpu_count (all): As many GPUs as the profile says" in done.stdout
    done = call("--learn", "--profile", "auto")
    assert done.returncode == 0
    (tmp_path / "profile.yaml").write_text(done.stdout)
    assert load_profile(str(tmp_path / "profile.yaml")).nvlinks == 18
    done = run(one_gone())("--learn")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing is learnt. Fix: take a fit node" in done.stderr


def test_from_one_zip_file(run: Callable[[FakeNode], Run], tmp_path: Path) -> None:
    """As on nodes, where muster is a zipapp: checks and profiles are found inside it."""
    archive = tmp_path / "muster.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        for package in ("healthcheck", "muster"):
            for path in sorted((ROOT / package).rglob("*")):
                if path.suffix in (".py", ".yaml"):
                    file.write(path, path.relative_to(ROOT))
        file.writestr("__main__.py", "import sys\n" + CODE)
    call = run(good.node())
    done = call("--nagios", "--when", "prolog", program=(sys.executable, str(archive)))
    assert done.returncode == 0, done
    done = call("--profile", "lokal", program=(sys.executable, str(archive)))
    assert "Did you mean 'local'" in done.stderr


def test_the_verbs_parse() -> None:
    parser = argparse.ArgumentParser()
    healthcheck.cli.add_parser(parser.add_subparsers())
    assert parser.parse_args(["check"]).verb == "check"
    assert parser.parse_args(["watch", "--once"]).verb == "watch"
