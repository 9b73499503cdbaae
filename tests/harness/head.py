"""What an administrator does on the head of the local cluster: other settings, `muster watch`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from muster.cluster import LocalCluster


@contextmanager
def settings(cluster: LocalCluster, **keys: str) -> Iterator[None]:
    """Other values in slurm.conf for a while; daemons read it again before and after."""
    path = cluster.folder.path / "etc" / "slurm.conf"
    before = path.read_text()
    kept = [line for line in before.splitlines() if line.partition("=")[0] not in keys]
    path.write_text("\n".join([*kept, *(f"{key}={value}" for key, value in keys.items()), ""]))
    try:
        _reconfigure(cluster)
        yield
    finally:
        path.write_text(before)
        _reconfigure(cluster)


def _reconfigure(cluster: LocalCluster) -> None:
    done = cluster.exec(["scontrol", "reconfigure"])
    if not done.ok:
        raise RuntimeError(f"scontrol reconfigure: {done.reason}")


@contextmanager
def watching(cluster: LocalCluster, folder: Path, interval_s: float = 0.3) -> Iterator[None]:
    """`muster watch` on the head; its files, `log` among them, are in the folder."""
    folder.mkdir(exist_ok=True)
    argv = [str(cluster.folder.path / "bin/muster"), "watch", "--interval", str(interval_s)]
    argv += ["--state", str(folder / "watch.json"), "--log", str(folder / "log")]
    with (folder / "out").open("ab") as out:
        process = subprocess.Popen(cluster.exec_argv(argv), stdout=out, stderr=out)
        try:
            yield
        finally:
            pid = (folder / "watch.json.lock").read_text().strip()
            cluster.exec(["kill", "-TERM", pid])
            process.wait(60)


def events(folder: Path, job: str) -> list[dict[str, Any]]:
    """What the watch wrote about a job."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in map(json.loads, lines) if line.get("job") == job]
