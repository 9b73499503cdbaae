"""`muster cluster exec` is transparent: what a command gets and gives is as without it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from muster.cluster import LocalCluster

    Until = Callable[..., None]

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize("node", [None, "n1"])
def test_streams_folder_and_exit_code(
    cluster: LocalCluster, node: str | None, tmp_path: Path
) -> None:
    script = 'cat; pwd; echo "to err" >&2; exit 7'
    argv = cluster.exec_argv(["bash", "-c", script], node=node)
    done = subprocess.run(
        argv, input="in\n", cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, f"in\n{tmp_path}\n", "to err\n")


def test_ends(cluster: LocalCluster) -> None:
    assert cluster.exec(["no-such-program"]).rc == 127
    assert cluster.exec(["/etc/passwd"]).rc == 126
    assert cluster.exec(["bash", "-c", "kill -9 $$"]).rc == 137
    assert cluster.exec(["sleep", "100"], timeout_s=1).timed_out


def test_environment(cluster: LocalCluster) -> None:
    ours = {**os.environ, "MINE": "kept", "PATH": "/usr/bin:/bin"}
    done = cluster.exec(["env"], env=ours)
    seen = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
    at = str(cluster.folder.path)
    assert seen["MINE"] == "kept"
    assert seen["SLURM_CONF"] == f"{at}/etc/slurm.conf"
    assert seen["MUSTER_SITE"] == f"{at}/site.yaml"
    assert seen["PATH"] == f"{at}/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    assert cluster.exec(["bash", "-c", "command -v muster"]).out == f"{at}/bin/muster\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_signals_reach_the_command(cluster: LocalCluster, number: signal.Signals) -> None:
    name = number.name[3:]
    script = f"trap 'echo got {name}; exit 3' {name}; echo ready; while :; do sleep 0.05; done"
    # Who started the tests with nohup handed down an ignored SIGHUP, which no shell can trap.
    fresh = ["env", f"--default-signal={name}"]
    argv = [*fresh, *cluster.exec_argv(["bash", "-c", script], node="n2")]
    child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.communicate(timeout=60)[0] == f"got {name}\n"
    assert child.returncode == 3


def test_site_file_is_what_the_tools_expect(cluster: LocalCluster) -> None:
    from muster.site import load_site

    assert cluster.exec(["test", "-r", str(cluster.folder.path / "site.yaml")]).ok
    loaded = load_site(cluster.folder.path / "site.yaml")
    assert loaded.ranks_per_node == 1
