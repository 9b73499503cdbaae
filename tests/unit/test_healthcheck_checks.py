"""`muster check` on a fake node: small programs on PATH, a fake /proc and /sys, real folders."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import healthcheck.cli
from healthcheck import folders, output, profile, registry
from healthcheck.env import Env
from healthcheck.facts import Facts, parse_gpus, parse_gres
from healthcheck.finding import Finding, Result, plain, unfit
from healthcheck.policy import POLICY, judge
from healthcheck.profile import Profile, load_profile
from muster.errors import ConfigError
from muster.site import Site
from tests.harness.fake_tools import good
from tests.harness.fake_tools.install import install

ROOT = Path(__file__).resolve().parents[2]
BOOT_ID = "0123abcd-0000-4000-8000-000000000000"
Node = Callable[..., "Fake"]


def row(index: int, ecc: str = "0") -> str:
    uuid = f"GPU-0000000{index}-1111-2222-3333-444444444444"
    return f"{index}, {uuid}, 16500000000{index}, 00000000:0{index}:00.0, {ecc}"


EIGHT = "\n".join(row(i) for i in range(8))
LOST = "Unable to determine the device handle for GPU 0000:05:00.0: GPU is lost. Reboot"


class Fake:
    """A node: a folder with bin/ for PATH and root/ for /proc and /sys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "root"
        (folder / "bin").mkdir()
        (self.root / "tmp").mkdir(parents=True)
        boot = self.root / "proc/sys/kernel/random"
        boot.mkdir(parents=True)
        (boot / "boot_id").write_text(BOOT_ID + "\n")

    def program(self, name: str, out: str = "", err: str = "", rc: int = 0, more: str = "") -> None:
        (self.folder / f"{name}.out").write_text(out)
        (self.folder / f"{name}.err").write_text(err)
        path = self.folder / "bin" / name
        path.write_text(
            f'#!/bin/sh\necho "$@" >>{self.folder}/{name}.calls\n{more}\n'
            f"cat {self.folder}/{name}.out; cat {self.folder}/{name}.err >&2; exit {rc}\n"
        )  # fmt: skip
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def pci(self, count: int, vendor: str = "0x10de", kind: str = "0x030200") -> None:
        for i in range(count):
            device = self.root / f"sys/bus/pci/devices/0000:0{i}:00.0-{vendor}-{kind}"
            device.mkdir(parents=True)
            (device / "vendor").write_text(vendor + "\n")
            (device / "class").write_text(kind + "\n")

    def check(
        self, expect: Profile | None = None, *, when: str = "gate", limit_s: float = 10,
        site: Site | None = None, shared: list[Path] | None = None, reference: float | None = None,
    ) -> dict[str, Finding]:  # fmt: skip
        facts = Facts(
            Env(self.root, limit_s), expect or Profile(gpus=8), site or Site(), when=when,
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
    fake.program("nvidia-smi", EIGHT)
    return fake


GPU_ROWS = {
    # name: (stdout, stderr, exit code, {check: (status, action)})
    "fit": (EIGHT, "", 0, {
        "nvidia_smi": ("PASS", "none"), "gpu_lost": ("PASS", "none"),
        "gpu_count": ("PASS", "none"), "gpu_ecc": ("PASS", "none")}),
    "one is gone": (EIGHT[: EIGHT.rindex("\n")], "", 0, {
        "nvidia_smi": ("PASS", "none"), "gpu_count": ("FAIL", "replace")}),
    "one more": (EIGHT + "\n" + row(9), "", 0, {"gpu_count": ("WARN", "none")}),
    "an error line is no GPU": (EIGHT[: EIGHT.rindex("\n")] + "\n" + LOST, "", 15, {
        "nvidia_smi": ("FAIL", "reboot"), "gpu_lost": ("FAIL", "reboot"),
        "gpu_count": ("FAIL", "replace")}),
    "lost, on stderr": (EIGHT, LOST, 0, {"gpu_lost": ("FAIL", "reboot")}),
    "lost, in a field": (EIGHT.replace(row(3), row(3, "[GPU is lost]")), "", 0, {
        "gpu_lost": ("FAIL", "reboot"), "gpu_ecc": ("UNKNOWN", "none")}),
    "ERR!": (EIGHT.replace(row(3), row(3, "ERR!")), "", 0, {"gpu_lost": ("FAIL", "reboot")}),
    "none at all": ("No devices were found", "", 6, {
        "nvidia_smi": ("UNKNOWN", "none"), "gpu_lost": ("FAIL", "reboot"),
        "gpu_count": ("FAIL", "replace"), "gpu_ecc": ("UNKNOWN", "none")}),
    "memory errors": (EIGHT.replace(row(3), row(3, "2")), "", 0, {"gpu_ecc": ("FAIL", "reset")}),
    "no ECC": (EIGHT.replace(", 0\n", ", [N/A]\n")[:-1] + "[N/A]", "", 0, {
        "gpu_ecc": ("SKIP", "none"), "gpu_count": ("PASS", "none")}),
    "strange ECC": (EIGHT.replace(row(3), row(3, "many")), "", 0, {"gpu_ecc": ("UNKNOWN", "none")}),
    "our own mistake": ('Field "ecc" is not a valid field to query.', "", 2, {
        "nvidia_smi": ("UNKNOWN", "none"), "gpu_lost": ("UNKNOWN", "none"),
        "gpu_count": ("UNKNOWN", "none"), "gpu_ecc": ("UNKNOWN", "none")}),
    "not permitted": ("", "permission", 4, {"nvidia_smi": ("UNKNOWN", "none")}),
    "driver and library differ": (
        "Failed to initialize NVML: Driver/library version mismatch", "", 18, {
            "nvidia_smi": ("FAIL", "reboot"), "gpu_count": ("UNKNOWN", "none")}),
    "power cable": ("", "", 8, {"nvidia_smi": ("FAIL", "replace")}),
    "says nothing": ("", "", 0, {
        "gpu_count": ("FAIL", "replace"), "gpu_lost": ("UNKNOWN", "none")}),
    "noise": ("\x1b[31m\r\n\udcff,,,,\n" * 50, "", 255, {
        "nvidia_smi": ("UNKNOWN", "none"), "gpu_count": ("UNKNOWN", "none"),
        "gpu_lost": ("UNKNOWN", "none"), "gpu_ecc": ("UNKNOWN", "none")}),
}  # fmt: skip


@pytest.mark.parametrize("name", GPU_ROWS)
def test_gpus(node: Fake, name: str) -> None:
    out, err, rc, expected = GPU_ROWS[name]
    node.program("nvidia-smi", out.encode(errors="replace").decode(), err, rc)
    found = node.check()
    assert {name: (found[name].status, found[name].action) for name in expected} == expected
    assert len(node.calls("nvidia-smi")) == 1


@pytest.mark.parametrize("cut", range(0, len(EIGHT), 17))
def test_cut_output_never_passes(node: Fake, cut: int) -> None:
    node.program("nvidia-smi", EIGHT[:cut])
    found = node.check()
    if "GPU-00000007-1111-2222-3333-444444444444, 165000000007, 00000000:07" in EIGHT[:cut]:
        assert found["gpu_ecc"].status == "UNKNOWN"  # only the last number is missing
    else:
        assert found["gpu_count"].status == "FAIL"


def test_hung_twice_is_a_fault_and_ends_in_time(node: Fake) -> None:
    node.program("nvidia-smi", EIGHT, more="trap '' TERM; sleep 60 & sleep 60")
    found = node.check(limit_s=1)
    assert (found["nvidia_smi"].status, found["nvidia_smi"].action) == ("FAIL", "reboot")
    assert found["gpu_count"].status == "UNKNOWN"
    assert found["scratch_space"].status == "UNKNOWN"  # the run's time was over


def test_hung_once_is_forgiven(node: Fake) -> None:
    first = f"[ -e {node.folder}/second ] || {{ touch {node.folder}/second; sleep 60; }}"
    node.program("nvidia-smi", EIGHT, more=first)
    assert node.check(when="gate")["nvidia_smi"].status == "PASS"


def test_a_cpu_node_is_not_asked_for_gpus(node: Fake) -> None:
    found = node.check(load_profile("cpu"))
    assert {found[n].status for n in ("nvidia_smi", "gpu_lost", "gpu_count", "gpu_ecc")} == {"SKIP"}
    assert node.calls("nvidia-smi") == []


def test_missing_driver(node: Fake) -> None:
    (node.folder / "bin/nvidia-smi").unlink()
    assert node.check()["nvidia_smi"].class_ == "software"
    assert node.check()["nvidia_smi"].status == "FAIL"


AUTO = {
    # name: (GPUs shown, on PCI, GRES, status, action)
    "as Slurm says": (8, 0, "gpu:h100:8(S:0-1)", "PASS", "none"),
    "less than Slurm says": (7, 0, "gpu:h100:8(S:0-1)", "FAIL", "replace"),
    "the driver lost one": (7, 8, "gpu:h100:8", "FAIL", "reboot"),
    "gone from PCI": (7, 7, "gpu:h100:8", "FAIL", "replace"),
    "only PCI knows": (7, 8, "(null)", "FAIL", "reboot"),
    "nobody knows": (8, 0, "(null)", "PASS", "none"),
    "Slurm does not answer": (8, 0, None, "PASS", "none"),
}


@pytest.mark.parametrize("name", AUTO)
def test_unknown_type_is_compared_with_slurm_and_pci(node: Fake, name: str) -> None:
    shown, on_pci, gres, status, action = AUTO[name]
    node.program("nvidia-smi", "\n".join(row(i) for i in range(shown)))
    node.program("scontrol", f"NodeName=n3 Arch=x86_64\n   Gres={gres}\n", rc=0 if gres else 1)
    node.pci(on_pci)
    node.pci(2, vendor="0x8086")
    node.pci(1, kind="0x068000")  # an NVSwitch
    found = node.check(load_profile("auto"))["gpu_count"]
    assert (found.status, found.action) == (status, action)


def test_no_driver_and_nobody_expects_one(node: Fake) -> None:
    (node.folder / "bin/nvidia-smi").unlink()
    node.program("scontrol", "NodeName=n3\n Gres=(null)\n")
    assert node.check(load_profile("auto"))["gpu_count"].status == "SKIP"


@pytest.mark.parametrize("when", ["prolog", "epilog"])
def test_a_prolog_never_asks_slurm(node: Fake, when: str) -> None:
    node.program("scontrol", "NodeName=n3\n Gres=gpu:8\n")
    node.check(load_profile("auto"), when=when)
    assert node.calls("scontrol") == []


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("gpu:a:2,gpu:b:3", 5), ("gpu:h100:4,shard:16", 4),
     ("(null)", 0), ("", 0), ("mygpu:4", 0)],
)  # fmt: skip
def test_parse_gres(gres: str, count: int) -> None:
    assert parse_gres(gres) == count


def test_gpu_name_is_the_serial_else_the_uuid() -> None:
    assert parse_gpus(row(1))[0].name == "165000000001"
    assert parse_gpus(row(1).replace("165000000001", "[N/A]"))[0].name.startswith("GPU-0")


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


def test_profiles() -> None:
    assert profile.names() == ["auto", "cpu", "local"]
    assert load_profile("local") == Profile(gpus=8, gpus_on_pci=False, slurm_sizes=False)
    with pytest.raises(ConfigError, match="Did you mean 'local'"):
        load_profile("locl")


def test_a_profile_of_the_site(tmp_path: Path) -> None:
    path = tmp_path / "ours.yaml"
    path.write_text("gpus: 4\n")
    assert load_profile(str(path)).gpus == 4


def test_plain_text() -> None:
    assert plain("a\x1b[1m 'b'\r\n\tc\u00e9 \\d") == "a [1m b c d"
    assert len(plain("x" * 999)) == 240


def run(node: Fake, *words: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path[0] = sys.argv.pop(1)\n" + CODE
    argv = [sys.executable, "-c", code, str(ROOT), "check", "--node-root", str(node.root), *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)


CODE = """
import argparse, healthcheck.cli
parser = argparse.ArgumentParser()
healthcheck.cli.add_parser(parser.add_subparsers())
arguments = parser.parse_args()
sys.exit(arguments.func(arguments))
"""


def test_lines_for_people(node: Fake) -> None:
    node.program("nvidia-smi", EIGHT[: EIGHT.rindex("\n")])
    done = run(node, "--profile", "local")
    assert done.returncode == 1
    fix = "Fix: replace it ('muster watch' does)"
    assert f"muster check: node n3 shows 7 of 8 GPUs. {fix}" in done.stdout.splitlines()
    assert done.stdout.splitlines()[-1] == "muster check: node n3 is unfit: gpu_count"
    node.program("nvidia-smi", EIGHT)
    done = run(node, "--profile", "local")
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "muster check: node n3 is fit"


def test_json_lines(node: Fake) -> None:
    node.program("nvidia-smi", EIGHT[: EIGHT.rindex("\n")], "\u00e9\"'\\" * 3000)
    done = run(node, "--profile", "local", "--json", "--shared", "/gone" * 60)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) < 900
    last = json.loads(lines[-1])
    assert (last["node"], last["boot_id"], last["fit"]) == ("n3", BOOT_ID, False)
    assert last["unfit"][0] == "gpu_count: shows 7 of 8 GPUs"
    first = json.loads(lines[0])
    assert list(first)[:7] == ["node", "check", "status", "class", "action", "detail", "gpu"]


def test_many_reasons_stay_on_one_short_line() -> None:
    bad = [judge("gpu_count", Result("FAIL", "x" * 999), "n3")] * 50
    lines = output.as_json(bad, "n" * 60, BOOT_ID, bad)
    assert max(map(len, lines)) < 900
    assert json.loads(lines[-1])["unfit"][-1] == "and 45 more"


@pytest.fixture
def whole(node: Fake, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """With all that a fit node has besides its GPUs: nothing warns, nothing is unknown."""
    fit = good.node()
    del fit.tools["nvidia-smi"]
    at = install(fit, node.folder / "fit")
    shutil.copytree(at.root, node.root, dirs_exist_ok=True)
    monkeypatch.setenv("PATH", f"{node.folder}/bin:{at.bin}:/usr/bin:/bin")
    (node.root / "proc/meminfo").write_text("MemTotal: 1024 kB\n")
    (node.root / "dev/shm").rmdir()
    (node.root / "dev/shm").symlink_to("/dev/shm")  # a tmpfs, where the disk may be half full
    with (node.folder / "site.yaml").open("a") as site:
        site.write("disk_paths: []\n")
    return node


def test_nagios(whole: Fake) -> None:
    node = whole
    assert run(node, "--profile", "local", "--nagios").returncode == 0
    node.program("nvidia-smi", EIGHT + "\n" + row(9))
    assert run(node, "--profile", "local", "--nagios").returncode == 1
    node.program("nvidia-smi", EIGHT, rc=4)
    assert run(node, "--profile", "local", "--nagios").returncode == 3
    node.program("nvidia-smi", EIGHT[:-40])
    done = run(node, "--profile", "local", "--nagios")
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    assert done.stdout.startswith("MUSTER CRITICAL - node n3 shows 7 of 8 GPUs")


def test_from_one_zip_file(whole: Fake, tmp_path: Path) -> None:
    """As on nodes, where muster is a zipapp: checks and profiles are found inside it."""
    archive = tmp_path / "muster.pyz"
    with zipfile.ZipFile(archive, "w") as file:
        for package in ("healthcheck", "muster"):
            for path in sorted((ROOT / package).rglob("*")):
                if path.suffix in (".py", ".yaml"):
                    file.write(path, path.relative_to(ROOT))
        file.writestr("__main__.py", "import sys\n" + CODE)
    root = ["--node-root", str(whole.root)]
    argv = [sys.executable, str(archive), "check", "--profile", "local", "--nagios", *root]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done
    unknown = [sys.executable, str(archive), "check", "--profile", "lokal"]
    done = subprocess.run(unknown, capture_output=True, text=True, check=False, timeout=60)
    assert "Did you mean 'local'" in done.stderr


def test_the_verbs_parse() -> None:
    parser = argparse.ArgumentParser()
    healthcheck.cli.add_parser(parser.add_subparsers())
    assert parser.parse_args(["check"]).verb == "check"
    assert parser.parse_args(["watch", "--once"]).verb == "watch"
