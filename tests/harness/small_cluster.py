"""Three machines on one network that the real steps make a cluster of: a head and two nodes."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.harness.debs import provide
from tests.harness.private_network import PrivateNetwork
from tests.harness.private_root import ROOT, PrivateRoot

CREATE = f"bash {ROOT}/lifecycle/create.sh /root/cluster.yaml"
ADDRESSES = {"head": "10.9.0.1", "n1": "10.9.0.11", "n2": "10.9.0.12"}
HEAD = {"name": "head", "role": "head", "nodes": ["head"], "addresses": {"head": "10.9.0.1"}}
SMALL = {"sockets": 1, "cores_per_socket": 1, "threads_per_core": 1, "memory_mib": 500}
PLACES = "/etc /mnt /usr/local/bin /run/slurm/conf/"
LOOK = (
    f"{{ find {PLACES} -type f ! -path '*/ledger/*' -printf '%p %m %u:%g %T@\\n' "
    "-exec sha256sum {} + 2>/dev/null || true; } | sort"
)
_LATE_S = 300


def group(role: str, *nodes: str, **hardware: Any) -> dict[str, Any]:
    """A group of the description."""
    found = {
        "name": role,
        "role": role,
        "nodes": list(nodes),
        "addresses": {name: ADDRESSES[name] for name in nodes},
    }
    return {**found, "hardware": {**SMALL, **hardware}} if role == "compute" else found


def only(*names: str) -> str:
    """The command that runs these steps."""
    return " ".join([CREATE, *(f"--only {name}" for name in names)])


CONTROLLER = only("hosts", "users", "mounts", "munge", "slurm_conf", "slurmctld")
"""What makes a head a controller, and nothing else."""
WORKER = only("hosts", "users", "mounts", "munge", "slurm_programs", "slurmd")
"""What makes a machine a node that runs jobs, and nothing else."""


class SmallCluster:
    """The machines, turned on; everybody has the description."""

    def __init__(self, folder: Path, network: PrivateNetwork) -> None:
        self.network = network
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.all = {
            name: PrivateRoot(folder / name, name, address, self.shared)
            for name, address in ADDRESSES.items()
        }
        self.describe()
        for machine in self.all.values():
            program = machine.file("/usr/local/bin/muster")
            program.parent.mkdir(parents=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
            provide(machine, "logrotate", "logrotate")
            network.up(machine)

    def __getitem__(self, name: str) -> PrivateRoot:
        return self.all[name]

    def describe(self, *groups: dict[str, Any], **changes: Any) -> None:
        """Give all machines a cluster.yaml: these groups beside the head, these keys."""
        values = {
            "name": "test",
            "groups": [HEAD, *(groups or (group("compute", "n1", "n2"),))],
            "partitions": [{"name": "main", "groups": ["compute"], "default": True}],
            "mounts": [{"path": "/mnt", "kind": "existing", "wait_s": 20}],
            "shared_dir": "/mnt/.muster",
            "scratch": {"kinds": ["folder"], "min_free_gib": 0.01},
            "accounting": {"database": "off"},
            **changes,
            "slurm": {"cgroup": False, **changes.get("slurm", {})},
        }
        for machine in self.all.values():
            path = machine.file("/root/cluster.yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(values))

    def run(self, name: str, script: str, **env: str) -> tuple[int, str]:
        """A script on one of the machines: (exit code, output)."""
        return self.network.run(name, script, **env)

    def works(self, name: str, script: str, **env: str) -> str:
        """The same, and it must end with 0: its output."""
        rc, out = self.run(name, script, **env)
        assert rc == 0, out
        return out

    def start(self, name: str, script: str = CREATE, **env: str) -> subprocess.Popen[str]:
        """Begin a script on a machine."""
        return self.network.start(name, script, **env)

    def create(self, **scripts: str) -> dict[str, dict[str, str]]:
        """Create machines at the same time, which must work: {machine: {step: its state}}."""
        begun = {name: self.start(name, script) for name, script in scripts.items()}
        ended = {name: (one.communicate()[0], one.returncode) for name, one in begun.items()}
        for out, rc in ended.values():
            assert rc == 0, out
        return {name: steps(out) for name, (out, _) in ended.items()}

    def log(self, name: str, step: str) -> str:
        """What a step said on a machine."""
        return self[name].file(f"/var/log/muster/create/{step}.log").read_text()

    def ledger(self, name: str) -> str:
        """What is written down about the steps of a machine."""
        path = self[name].file("/var/lib/muster/create/ledger.json")
        return path.read_text() if path.exists() else ""

    def wait_until_applying(self, name: str, step: str) -> None:
        """Until a machine is in the middle of a step."""
        begun = re.compile(rf'"{step}": {{\s+"state": "applying"')
        self.wait(lambda: bool(begun.search(self.ledger(name))), f"{name} applies {step}")

    def wait(self, holds: Callable[[], bool], what: str) -> None:
        """Until something holds."""
        end = time.monotonic() + _LATE_S
        while not holds():
            assert time.monotonic() < end, f"not in {_LATE_S} s: {what}"
            time.sleep(0.1)


def steps(out: str) -> dict[str, str]:
    """{step: what became of it}."""
    return dict(re.findall(r"^([a-z_]+): (changed|unchanged|failed)", out, re.MULTILINE))
