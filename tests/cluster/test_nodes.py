"""Nodes look like machines, and what is done to one looks to Slurm as if done to a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.errors import TemporaryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from muster.cluster import LocalCluster

    Until = Callable[..., None]
    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.cluster

BOOT_ID = "/proc/sys/kernel/random/boot_id"


def test_eight_nodes_run_a_job_on_all_gpus(cluster: LocalCluster) -> None:
    script = f"echo $(hostname) $(nvidia-smi -L | wc -l) $(cat {BOOT_ID}) $CUDA_VISIBLE_DEVICES"
    done = cluster.exec(["srun", "-N8", "--gpus-per-node=8", "bash", "-c", script])
    rows = [line.split() for line in sorted(done.out.splitlines())]
    assert [row[0] for row in rows] == [f"n{i}" for i in range(1, 9)]
    assert {(row[1], row[3]) for row in rows} == {("8", "0,1,2,3,4,5,6,7")}
    host = Path(BOOT_ID).read_text().strip()
    assert len({row[2] for row in rows} | {host}) == 9


def test_a_node_is_a_machine_of_its_own(cluster: LocalCluster) -> None:
    where = cluster.folder.path / "local/mine"
    assert cluster.exec(["touch", "/dev/shm/mine", str(where)], node="n1").ok
    look = ["ls", "/dev/shm/mine", str(where)]
    assert cluster.exec(look, node="n1").ok
    assert cluster.exec(look, node="n2").out == ""
    assert not where.exists()
    assert not Path("/dev/shm/mine").exists()
    addresses = cluster.exec(["hostname", "-I"], node="n3").out.split()
    assert addresses == ["10.77.0.13"]
    assert cluster.exec(["getent", "hosts", "10.77.0.18"], node="n3").out.split()[1] == "n8"
    processes = cluster.exec(["ls", "/proc"], node="n1").out.split()
    assert len([word for word in processes if word.isdigit()]) < 10


def test_gpus_as_nvidia_smi_shows_them(cluster: LocalCluster) -> None:
    query = ["nvidia-smi", "--format=csv,noheader,nounits"]
    fields = "--query-gpu=index,name,uuid,serial,pci.bus_id,driver_version,memory.total,"
    fields += "ecc.errors.uncorrected.volatile.total,temperature.gpu"
    rows = cluster.exec([*query, fields], node="n1").out.splitlines()
    first = rows[0].split(", ")
    assert len(rows) == 8
    assert first[:2] == ["0", "NVIDIA H100 80GB HBM3"]
    assert first[6:8] == ["81559", "0"]
    ids = "--query-gpu=uuid,serial"
    seen = [cluster.exec([*query, ids], node=n).out.splitlines() for n in ("n1", "n2")]
    assert len({word for rows in seen for row in rows for word in row.split(", ")}) == 32
    none = cluster.exec(["nvidia-smi", "-L"])
    assert (none.rc, none.out) == (6, "No devices were found\n")
    assert cluster.exec(["nvidia-smi", "--query-gpu=nope", "--format=csv"], node="n1").rc == 2


def test_silent_loss_is_noticed_and_start_brings_the_same_machine(
    fresh_cluster: LocalCluster, until: Until
) -> None:
    disk = fresh_cluster.folder.path / "local/kept"
    fresh_cluster.exec(["touch", str(disk)], node="n2")
    before = fresh_cluster.status().nodes[1]
    gpus = fresh_cluster.exec(["nvidia-smi", "-L"], node="n2").out
    fresh_cluster.node("kill", "n2", silent=True)
    assert fresh_cluster.status().nodes[1].powered is False
    with pytest.raises(TemporaryError, match="switched off"):
        fresh_cluster.enter(["true"], "n2", None)
    until(lambda: fresh_cluster.states()["n2"].startswith("down"))
    fresh_cluster.node("start", "n2")
    until(lambda: "rebooted" in fresh_cluster.status().nodes[1].reason)
    after = fresh_cluster.status().nodes[1]
    assert after.boot_id != before.boot_id
    assert fresh_cluster.exec(["cat", BOOT_ID], node="n2").out.strip() == after.boot_id
    assert fresh_cluster.exec(["ls", str(disk)], node="n2").ok
    assert fresh_cluster.exec(["nvidia-smi", "-L"], node="n2").out == gpus
    assert fresh_cluster.exec(["scontrol", "update", "nodename=n2", "state=resume"]).ok
    until(lambda: fresh_cluster.states()["n2"] == "idle")


def test_power_loss_ends_a_job(fresh_cluster: LocalCluster, until: Until) -> None:
    batch = ["sbatch", "--no-requeue", "-w", "n2", "-o", "/dev/null", "--wrap", "sleep 1000"]
    job = fresh_cluster.exec(batch).out.split()[-1]
    show = ["scontrol", "show", "job", job]
    until(lambda: "JobState=RUNNING" in fresh_cluster.exec(show).out)
    fresh_cluster.node("kill", "n2")
    until(lambda: "JobState=NODE_FAIL" in fresh_cluster.exec(show).out)


def test_replace_asked_of_the_bmc_from_inside(fresh_cluster: LocalCluster, until: Until) -> None:
    disk = fresh_cluster.folder.path / "local/lost"
    fresh_cluster.exec(["touch", str(disk)], node="n2")
    before = fresh_cluster.exec(["nvidia-smi", "-L"], node="n2").out
    fresh_cluster.node("gpu-break", "n2", gpu=3)
    broken = fresh_cluster.exec(["nvidia-smi", "-L"], node="n2")
    assert (broken.rc, broken.out.count("GPU ")) == (15, 7)
    assert "Unable to determine the device handle for GPU" in broken.err
    fresh_cluster.node("kernel-line", "n2", text="NVRM: says 'no' 100% \\n")
    assert "NVRM" not in fresh_cluster.exec(["cat", "/dev/kmsg"], node="n1").out
    said = fresh_cluster.exec(["cat", "/dev/kmsg"], node="n2").out.splitlines()[-1]
    assert re.fullmatch(r"4,1,\d+,-;NVRM: says 'no' 100% \\n", said)
    boot_ids = [fresh_cluster.status().nodes[1].boot_id]

    def booted_again() -> bool:
        now = fresh_cluster.status().nodes[1]
        return now.powered and now.boot_id not in boot_ids

    assert fresh_cluster.exec(["bmc", "reboot", "n2"]).out == "accepted: reboot n2\n"
    until(booted_again)
    assert fresh_cluster.exec(["nvidia-smi", "-L"], node="n2").rc == 15
    assert "NVRM" not in fresh_cluster.exec(["cat", "/dev/kmsg"], node="n2").out
    assert fresh_cluster.exec(["ls", str(disk)], node="n2").ok
    boot_ids.append(fresh_cluster.status().nodes[1].boot_id)
    assert fresh_cluster.exec(["bmc", "replace", "n2"], node="n1").ok
    until(booted_again)
    until(lambda: fresh_cluster.exec(["hostname"], node="n2").out == "n2\n")
    after = fresh_cluster.exec(["nvidia-smi", "-L"], node="n2")
    assert (after.rc, after.out.count("GPU ")) == (0, 8)
    assert not set(after.out.splitlines()) & set(before.splitlines())
    assert not fresh_cluster.exec(["ls", str(disk)], node="n2").ok
    for bad in (["bmc", "melt", "n2"], ["bmc", "off", "n9"], ["bmc"]):
        refused = fresh_cluster.exec(bad)
        assert (refused.rc, refused.err.count("\n")) == (64, 1)


def test_bmc_off_and_on_and_slurms_own_reboot(fresh_cluster: LocalCluster, until: Until) -> None:
    fresh_cluster.exec(["bmc", "off", "n1"])
    until(lambda: not fresh_cluster.status().nodes[0].powered)
    fresh_cluster.exec(["bmc", "on", "n1"])
    until(lambda: fresh_cluster.status().nodes[0].powered)
    old = fresh_cluster.status().nodes[1].boot_id
    assert fresh_cluster.exec(["scontrol", "reboot", "ASAP", "nextstate=RESUME", "n2"]).ok
    until(lambda: fresh_cluster.status().nodes[1].boot_id != old)
    until(lambda: fresh_cluster.states()["n2"] == "idle")


@pytest.mark.parametrize(
    ("harm", "cure"), [("cut", "uncut"), ("freeze", "thaw"), ("slurmd-kill", "slurmd-start")]
)
def test_silence_is_noticed_and_heals(
    harm: str, cure: str, fresh_cluster: LocalCluster, until: Until
) -> None:
    fresh_cluster.node(harm, "n1")
    until(lambda: fresh_cluster.states()["n1"].endswith("*"))
    fresh_cluster.node(cure, "n1")
    until(lambda: not fresh_cluster.states()["n1"].endswith("*"))
    # Slurm takes a node back when it registers. Now and then it notes the answer to a ping first,
    # and then asks for no registration: the node stays "down", answering, until somebody says so.
    if fresh_cluster.states()["n1"] == "down":
        fresh_cluster.exec(["scontrol", "update", "nodename=n1", "state=resume"])
    until(lambda: fresh_cluster.states()["n1"] == "idle")


@pytest.mark.parametrize(("how", "ok", "rc"), [("gone", 7, 0), ("ecc", 8, 0), ("lost", 7, 15)])
def test_ways_to_lose_a_gpu(how: str, ok: int, rc: int, fresh_cluster: LocalCluster) -> None:
    fresh_cluster.node("gpu-break", "n1", gpu=7, how=how)
    errors = "--query-gpu=ecc.errors.uncorrected.volatile.total"
    seen = fresh_cluster.exec(["nvidia-smi", errors, "--format=csv,noheader,nounits"], node="n1")
    assert (seen.rc, len(seen.out.splitlines())) == (rc, ok)
    assert seen.out.count("1") == (how == "ecc")
    assert fresh_cluster.status().nodes[0].gpus_ok == 7


def test_what_all_nodes_share_can_be_broken(fresh_cluster: LocalCluster, until: Until) -> None:
    disk = fresh_cluster.shared_disk
    assert fresh_cluster.exec(["cp", "/etc/hostname", str(disk / "a")], node="n1").ok
    assert fresh_cluster.seen_from_here(disk / "a").is_file()
    write = ["cp", "/etc/passwd", str(disk / "b")]
    for harm, cure, said in (
        ("disk-fill", "disk-free", "No space left"),
        ("disk-read-only", "disk-writable", "Read-only"),
    ):
        fresh_cluster.head(harm)
        assert said in fresh_cluster.exec(write, node="n2").err
        fresh_cluster.head(cure)
        assert fresh_cluster.exec(write, node="n2").ok
    fresh_cluster.node("hide", "n1", path=str(disk))
    assert fresh_cluster.exec(["ls", str(disk)], node="n1").out == ""
    fresh_cluster.node("show", "n1", path=str(disk))
    assert fresh_cluster.exec(["ls", str(disk)], node="n1").out == "a\nb\n"
    fresh_cluster.head("name-forget", "n2")
    assert not fresh_cluster.exec(["getent", "hosts", "n2"], node="n1").ok
    fresh_cluster.head("name-recall", "n2")
    assert fresh_cluster.exec(["getent", "hosts", "n2"], node="n1").ok
    fresh_cluster.head("slurmctld-stop")
    assert not fresh_cluster.states()
    fresh_cluster.head("slurmctld-start")
    until(lambda: set(fresh_cluster.states().values()) == {"idle"})
    with pytest.raises(UsageError, match="Did you mean 'disk-fill'"):
        fresh_cluster.head("disk-fil")
    with pytest.raises(UsageError, match="name-forget"):
        fresh_cluster.head("disk-fill", "n1")


def test_on_node_is_like_ssh(cluster: LocalCluster) -> None:
    done = cluster.exec(["on-node", "n4", "bash", "-c", "hostname; echo no >&2; exit 5"])
    assert (done.rc, done.out, done.err) == (5, "n4\n", "no\n")
    assert cluster.exec(["on-node", "n99", "true"]).rc == 64
    limit = {**os.environ, "ON_NODE_TIMEOUT_S": "1"}
    assert cluster.exec(["on-node", "n4", "sleep", "100"], env=limit).rc == 124


def test_a_broken_checker_harms_no_node(cluster: LocalCluster) -> None:
    hook = cluster.folder.path / "hooks/health_check.sh"
    assert cluster.exec(["env", "-i", "SLURMD_NODENAME=n1", str(hook)], node="n1").rc == 0
    assert set(cluster.states().values()) == {"idle"}


def test_shape_reaches_slurm(make_cluster: Callable[..., LocalCluster]) -> None:
    settings = (("SlurmdTimeout", "77"), ("SchedulerTimeSlice", "33"))
    one = make_cluster(gpus=0, cpus=3, settings=settings, out_of_service=("n2",))
    assert one.states() == {"n1": "idle", "n2": "drained"}
    assert one.status().nodes[1].reason.startswith("admin:")
    config = one.exec(["scontrol", "show", "config"]).out
    assert "SlurmdTimeout           = 77 sec" in config
    assert "SchedulerTimeSlice      = 33 sec" in config
    node = one.exec(["scontrol", "show", "node", "n1"]).out
    assert "CPUTot=3" in node
    assert "Gres=(null)" in node


def test_bad_words_get_one_line(cluster: LocalCluster, run_cli: Cli) -> None:
    at = ["--name", cluster.name]
    for code, argv in (
        (64, ["node", *at, "thow", "n1"]),
        (64, ["node", *at, "kill", "n9"]),
        (64, ["node", *at, "gpu-break", "n1"]),
        (64, ["node", *at, "gpu-break", "n1", "8"]),
        (64, ["node", *at, "cut", "n1", "--silent"]),
        (64, ["exec", *at]),
        (64, ["exec", *at, "--node", "n9", "true"]),
        (64, ["up", "--name", "No Name"]),
        (64, ["up", *at, "--nodes", "0"]),
        (64, ["up", *at, "--set", "novalue"]),
        (64, ["up", *at, "--set", "NodeName=x"]),
        (64, ["up", *at, "--out-of-service", "n99"]),
        (64, ["up", *at, "--owner-pid", "4194999"]),
        (69, ["exec", "--name", "absent", "true"]),
        (69, ["node", "--name", "absent", "kill", "n1"]),
    ):
        done = run_cli(*argv)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1), (argv, done)
        assert "Fix: " in done.stderr
    assert run_cli("status", "--name", "absent").returncode == 1
    with pytest.raises(UsageError, match="Did you mean 'thaw'"):
        cluster.node("thow", "n1")


@pytest.fixture
def other_user() -> Iterator[str]:
    """An account without rights; made and removed here."""
    if os.getuid() != 0:
        pytest.skip("needs root to make another user")
    name = f"mt{os.getpid()}"
    subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
    yield name
    subprocess.run(["userdel", name], check=True)


def test_root_lets_a_user_submit(
    cluster: LocalCluster, other_user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)  # closed to the user, who has no home either
    argv = ["srun", "-N2", "--gpus-per-node=1", "id", "-un"]
    assert cluster.exec(argv, user=other_user).out == f"{other_user}\n" * 2
    assert cluster.exec(["bmc", "off", "n1"], user=other_user).rc != 0
    assert cluster.exec(["id"], user="nobody-at-all").rc == 64
    assert set(cluster.states().values()) == {"idle"}


@pytest.mark.may_skip("a clone in a closed folder, such as /root, has no ordinary user")
def test_an_ordinary_user_has_it_all(other_user: str, cli: list[str], until: Until) -> None:
    """The whole of it without root: up, job, fault, replacement, down."""
    seen = ["setpriv", "--reuid", other_user, "--clear-groups", "test", "-r", __file__]
    if subprocess.run(seen, check=False).returncode != 0:
        pytest.skip(f"{__file__} cannot be read by others")
    home = Path(tempfile.mkdtemp(dir="/tmp", prefix="m"))
    shutil.chown(home, other_user)
    become = ["setpriv", "--reuid", other_user, "--regid", other_user, "--init-groups"]
    env = {"PATH": "/usr/bin:/bin", "MUSTER_CLUSTER_HOME": str(home / "c"), "HOME": "/"}

    def run(*argv: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*become, "/usr/bin/python3", *cli[1:], *argv],  # ours may be private to us
            cwd="/",
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    options = ("--nodes", "2", "--boot-s", "0.1", "--owner-pid", str(os.getpid()))
    up = run("up", *options)
    assert up.returncode == 0, up.stderr
    try:
        job = run("exec", "srun", "-N2", "--gpus-per-node=8", "id", "-un")
        assert job.stdout == f"{other_user}\n" * 2
        boot_id = run("exec", "--node", "n2", "cat", BOOT_ID).stdout
        assert len(boot_id) == 37
        assert run("node", "kill", "n2", "--silent").returncode == 0
        assert run("exec", "bmc", "replace", "n2").returncode == 0
        until(lambda: run("exec", "on-node", "n2", "cat", BOOT_ID).returncode == 0)
        assert run("exec", "on-node", "n2", "cat", BOOT_ID).stdout != boot_id
        assert run("exec", "--user", "root", "id").returncode == 64
    finally:
        assert run("down").returncode == 0
        home.rmdir()
