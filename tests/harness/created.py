"""Runs `muster create` with steps of a test's own, in a folder instead of on a machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from muster.cli import main

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """
name: test
groups:
  - {name: head, role: head, nodes: [head]}
  - {name: n, role: compute, nodes: ["n[1-2]"], hardware: {sockets: 1, cores_per_socket: 1,
     threads_per_core: 2, memory_mib: 2000, gpus: 8, gpu_type: h100}}
partitions: [{name: main, groups: [n]}]
accounting: {database: "off"}
"""


class CreatedNode:
    """One node: its steps, what they make (`made`), state, logs and secrets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps = folder / "lifecycle" / "steps"
        self.made = folder / "made"
        self.secrets = folder / "secrets"
        self.cluster = folder / "cluster.yaml"
        self.steps.mkdir(parents=True)
        self.made.mkdir()
        (folder / "lifecycle" / "lib").symlink_to(ROOT / "lifecycle" / "lib")
        self.cluster.write_text(CLUSTER)

    def step(self, name: str, body: str, head: str = "") -> None:
        """Add a step: `body` are functions of bash, `head` lines like `needs: a`."""
        lines = "".join(f"# {line}\n" for line in head.splitlines())
        (self.steps / f"{name}.sh").write_text(
            f"#!/usr/bin/env bash\n# Makes {name}.\n#\n{lines}set -euo pipefail\n"
            f'source "$MUSTER_LIB/step.sh"\n{body}\nstep::run "$@"\n'
        )

    def file_step(self, name: str, head: str = "") -> None:
        """Add a step that makes a file of some lines."""
        self.step(name, f"step::state() {{ seq 9 | want::file $MADE/{name} 0644; }}", head)

    def words(self, *more: str, name: str = "n1") -> list[str]:
        """The command."""
        return [
            *(sys.executable, "-m", "muster", "create", str(self.cluster), "--node", name),
            *("--steps", str(self.steps), "--state", str(self.folder / "state")),
            *("--logs", str(self.folder / "logs"), "--secrets", str(self.secrets)),
            *("--wait-s", "20", *more),
        ]

    def environment(self, **more: str) -> dict[str, str]:
        """Its environment."""
        return {**os.environ, "MADE": str(self.made), **more}

    def run(self, *more: str, name: str = "n1", **env: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end, in a child of ours: starting Python anew would be most of the time."""
        words = self.words(*more, name=name)[3:]
        out, err = self.folder / "stdout", self.folder / "stderr"
        pid = os.fork()
        if pid == 0:
            rc = 70
            try:
                for number, path in ((1, out), (2, err)):
                    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                os.environ.update(self.environment(**env))
                rc = main(words)
            except SystemExit as end:
                rc = int(end.code or 0)
            except BaseException:  # noqa: BLE001
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(rc)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return subprocess.CompletedProcess(words, status, out.read_text(), err.read_text())

    def ledger(self) -> dict[str, Any]:
        """{step: what is written down about it}."""
        text = (self.folder / "state" / "ledger.json").read_text()
        steps: dict[str, Any] = json.loads(text)["steps"]
        return steps

    def states(self) -> dict[str, str]:
        """{step: its state}."""
        return {name: step["state"] for name, step in self.ledger().items()}

    def log(self, name: str) -> str:
        """What a step printed."""
        return (self.folder / "logs" / f"{name}.log").read_text()

    def snapshot(self) -> dict[str, tuple[int, int, bytes]]:
        """Every file that steps made: mode, time of change in ns, content."""
        return {
            str(path.relative_to(self.made)): (
                path.stat().st_mode,
                path.stat().st_mtime_ns,
                path.read_bytes(),
            )
            for path in sorted(self.made.rglob("*"))
            if path.is_file()
        }
