"""A cluster begins and ends as a whole: nothing of it stays, whoever dies first."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from muster.cluster import LocalCluster, Shape
from muster.errors import CreateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    Until = Callable[..., None]
    Cli = Callable[..., subprocess.CompletedProcess[str]]

pytestmark = pytest.mark.cluster


def host() -> tuple[str, list[str], list[str]]:
    """What of this machine a cluster could touch; other tests may mount in their own folders."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [line for line in lines if "/pytest-of-" not in line]
    return socket.gethostname(), sorted(p.name for p in Path("/sys/class/net").iterdir()), mounts


def parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(entry.name)] = int(fields[1])
    return found


def inside(cluster: LocalCluster) -> set[int]:
    """All processes of a cluster: process 1 and whatever hangs below it."""
    tree = {cluster.folder.state()["init"]}
    table = parents()
    while more := {pid for pid, parent in table.items() if parent in tree} - tree:
        tree |= more
    return tree


def mentioning(*names: str) -> dict[int, str]:
    """{process number: command line} of living processes that mention a cluster's name."""
    lines = {}
    for pid in set(parents()) - {os.getpid()}:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
        if all(name in line for name in names):
            lines[pid] = line
    return lines


def test_down_leaves_nothing(make_cluster: Callable[..., LocalCluster], until: Until) -> None:
    before = host()
    cluster = make_cluster()
    assert host() == before
    pids = inside(cluster)
    assert len(pids) > 8
    assert cluster.down() is True
    until(lambda: not pids & set(parents()))
    assert mentioning(cluster.name) == {}
    assert not cluster.folder.path.exists()
    assert host() == before
    assert cluster.down() is False


def test_up_twice(make_cluster: Callable[..., LocalCluster], run_cli: Cli) -> None:
    cluster = make_cluster()
    assert cluster.up() is False
    with pytest.raises(UsageError, match="another shape"):
        LocalCluster(cluster.name, Shape(nodes=3)).up()
    shape = ("--nodes", "2", "--boot-s", "0.1")
    done = run_cli("up", "--name", cluster.name, *shape)
    assert (done.returncode, done.stdout) == (0, f"cluster '{cluster.name}' is up already\n")


def test_two_at_once_under_one_name(cli: list[str], run_cli: Cli, slurm_here: None) -> None:
    name = f"r{os.getpid()}"
    argv = [*cli, "up", "--name", name, "--nodes", "1", "--owner-pid", str(os.getpid())]
    racers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = sorted(racer.communicate(timeout=120)[0] for racer in racers)
    assert [racer.returncode for racer in racers] == [0, 0]
    assert "1 idle" in said[0]  # "after" sorts before "already"
    assert "is up already" in said[1]
    assert run_cli("down", "--name", name).returncode == 0


def test_two_side_by_side(make_cluster: Callable[..., LocalCluster]) -> None:
    one, other = make_cluster(), make_cluster(nodes=1)
    assert one.states() == {"n1": "idle", "n2": "idle"}
    assert other.states() == {"n1": "idle"}
    one.down()
    assert other.exec(["srun", "hostname"]).out == "n1\n"


@pytest.mark.parametrize("stage", ["cluster.json", "munge/sock", "nodes/n1/pid"])
def test_killed_while_coming_up(stage: str, cli: list[str], until: Until, slurm_here: None) -> None:
    name = f"k{os.getpid()}"
    cluster = LocalCluster(name)
    before = host()
    caller = subprocess.Popen([*cli, "up", "--name", name, "--nodes", "4"])
    until((cluster.folder.path / stage).exists)
    caller.kill()
    caller.wait()
    until(lambda: not cluster.folder.path.exists())
    until(lambda: not mentioning(name))
    assert host() == before


def test_ends_with_its_owner(until: Until, slurm_here: None) -> None:
    owner = subprocess.Popen(["sleep", "1000"])
    cluster = LocalCluster(f"o{os.getpid()}", Shape(nodes=1))
    cluster.up(owner_pid=owner.pid)
    pids = inside(cluster)
    owner.kill()
    owner.wait()
    until(lambda: not cluster.folder.path.exists() and not pids & set(parents()))


def test_dead_files_are_no_obstacle(
    make_cluster: Callable[..., LocalCluster], until: Until
) -> None:
    cluster = make_cluster(nodes=1)
    pids = inside(cluster)
    (keeper,) = mentioning("muster.cluster.keeper", cluster.name)
    os.kill(keeper, signal.SIGKILL)
    until(lambda: not pids & set(parents()))
    assert cluster.folder.path.exists()
    assert cluster.status().state == "down"
    assert cluster.up(owner_pid=os.getpid()) is True
    assert cluster.states() == {"n1": "idle"}


def test_logs_are_kept_on_request(make_cluster: Callable[..., LocalCluster]) -> None:
    cluster = make_cluster(nodes=1)
    cluster.down(keep_logs=True)
    assert [entry.name for entry in cluster.folder.path.iterdir()] == ["log"]
    assert "slurmctld" in (cluster.folder.logs / "slurmctld.log").read_text()


def test_what_cannot_start_says_so_and_ends(run_cli: Cli, until: Until, slurm_here: None) -> None:
    name = f"b{os.getpid()}"
    cluster = LocalCluster(name)
    done = run_cli("up", "--name", name, "--set", "SelectType=select/nonsense")
    assert done.returncode == 69
    assert done.stderr.count("\n") == 1
    assert "did not come up" in done.stderr
    assert "fatal:" in done.stderr
    assert str(cluster.folder.logs) in done.stderr
    until(lambda: not mentioning(name))
    cluster.down()
    assert not cluster.folder.path.exists()


def test_nothing_of_the_caller_is_held(cli: list[str], run_cli: Cli, slurm_here: None) -> None:
    read, write = os.pipe()
    name = f"p{os.getpid()}"
    argv = [*cli, "up", "--name", name, "--nodes", "1", "--owner-pid", str(os.getpid())]
    # The pipe of standard output too: communicate() returns only at its end of file.
    caller = subprocess.Popen(argv, stdout=subprocess.PIPE, pass_fds=[write])
    os.close(write)
    assert b"is up" in caller.communicate(timeout=120)[0]
    os.set_blocking(read, False)
    assert os.read(read, 1) == b""
    os.close(read)
    assert run_cli("down", "--name", name).returncode == 0


@pytest.mark.parametrize("trap", ["link", "writable", "file"])
def test_refuses_a_home_that_others_control(
    trap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm_here: None
) -> None:
    # A short path: tmp_path is longer than what a socket's path may have.
    link = Path(f"/tmp/mt-{os.getpid()}")
    link.symlink_to(tmp_path)
    home = link / "h"
    monkeypatch.setenv("MUSTER_CLUSTER_HOME", str(home))
    if trap == "link":
        (tmp_path / "real").mkdir()
        home.symlink_to(tmp_path / "real")
    elif trap == "writable":
        home.mkdir()
        home.chmod(0o777)
    else:
        home.write_text("")
    try:
        with pytest.raises(CreateError, match=r"is not a folder|may be written by others"):
            LocalCluster("x").up(owner_pid=os.getpid())
    finally:
        link.unlink()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make a foreign folder")
def test_refuses_a_foreign_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slurm_here: None
) -> None:
    link = Path(f"/tmp/mf-{os.getpid()}")
    link.symlink_to(tmp_path)
    home = link / "h"
    home.mkdir()
    os.chown(home, 65534, 65534)
    monkeypatch.setenv("MUSTER_CLUSTER_HOME", str(home))
    try:
        with pytest.raises(CreateError, match="belongs to user 65534"):
            LocalCluster("x").up(owner_pid=os.getpid())
    finally:
        link.unlink()
