"""The files of a cluster's folder: Slurm's configuration, the site file, and the scripts.

Everything is rendered by pure functions from a `Shape`, and `write` puts it down. The scripts are
copied into the folder, so that a cluster keeps running unchanged while its checkout is edited.
"""

from __future__ import annotations

import json
import os
import pkgutil
import secrets
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.cluster import archive, people
from muster.cluster.shape import HEAD, SUBNET, Shape

SCRIPTS = {
    "lib/world.sh": "world.sh",
    "lib/machine.sh": "machine.sh",
    "lib/head.sh": "head.sh",
    "lib/node.sh": "node.sh",
    "bin/bmc": "bmc.sh",
    "bin/on-node": "on_node.sh",
    "bin/nvidia-smi": "nvidia_smi.sh",
    "hooks/reboot.sh": "reboot.sh",
}
SLURM_SCRIPTS = (
    "health_check.sh",
    "muster_health.sh",
    "prolog.d/muster_health.sh",
    "epilog.d/muster_health.sh",
)
"""Of the checkout's slurm/, as a site installs them; they read muster.env beside them."""
PRIVATE_FOLDERS = ("state", "disks", "requests")
SPANK_PLUGIN = "slurm/spank/auto_resume.so"
"""Installed in the cluster if somebody has built it: make -C slurm/spank."""
PUBLIC_FOLDERS = ("etc", "bin", "lib", "hooks", "log", "nodes", "local", "shared", "dev", "munge")


@dataclass(frozen=True)
class Owner:
    """Who runs the daemons. An ordinary user is mapped onto itself in a nested user namespace."""

    name: str
    uid: int
    gid: int

    @property
    def prefix(self) -> list[str]:
        """Command prefix for daemons and clients inside.

        In a user namespace Slurm refuses uid 0 ("Failed to drop supplementary groups"), so there
        everything of Slurm runs under the caller's own uid, one namespace further in.
        """
        if self.uid == 0:
            return []
        return ["unshare", "-U", f"--map-user={self.uid}", f"--map-group={self.gid}", "--"]


def write(folder: Path, shape: Shape, owner: Owner, python: str, checkout: str) -> None:
    """Fill an empty cluster folder."""
    for name in PUBLIC_FOLDERS:
        (folder / name).mkdir(mode=0o755)
    for name in PRIVATE_FOLDERS:
        (folder / name).mkdir(mode=0o700)
    for name in shape.names:
        (folder / "nodes" / name).mkdir(mode=0o755)
    for target, source in SCRIPTS.items():
        _put(folder / target, _script(source), 0o755)
    for name in SLURM_SCRIPTS:
        (folder / "hooks" / name).parent.mkdir(mode=0o755, exist_ok=True)
        _put(folder / "hooks" / name, (Path(checkout) / "slurm" / name).read_text(), 0o755)
    _put(folder / "hooks/muster.env", muster_env(folder))
    if shape.people:  # whose eyes our checkout and our Python may be closed to
        archive.make(Path(checkout), folder / "bin/muster")
        people.write(folder, shape.people)
    else:
        _put(folder / "bin/muster", muster_wrapper(python, checkout), 0o755)
    _put(folder / "etc/slurm.conf", slurm_conf(folder, shape, owner))
    _put(folder / "etc/gres.conf", gres_conf(folder, shape))
    _put(folder / "etc/hosts", hosts(shape))
    _put(folder / "etc/resolv.conf", "")
    _put(folder / "etc/nsswitch.conf", nsswitch(_read(Path("/etc/nsswitch.conf"))))
    _put(folder / "etc/world.env", world_env(shape, owner))
    _put(folder / "site.yaml", site_yaml(folder, shape))
    plugin = _read_bytes(Path(checkout) / SPANK_PLUGIN)
    if plugin is not None:
        _put_bytes(folder / "lib/auto_resume.so", plugin, 0o755)
        _put(folder / "etc/plugstack.conf", plugstack_conf(folder))
    _put_bytes(folder / "etc/munge.key", secrets.token_bytes(128), 0o600)
    os.mkfifo(folder / "bmc", mode=0o600)


def slurm_conf(folder: Path, shape: Shape, owner: Owner) -> str:
    """slurm.conf: time limits tuned so that a lost node is noticed in seconds, not minutes."""
    at = str(folder)
    keys = {
        "ClusterName": "muster",
        "SlurmctldHost": f"{HEAD}({SUBNET}.1)",
        "SlurmUser": owner.name,
        "SlurmdUser": owner.name,
        "AuthType": "auth/munge",
        # cred_expire is also how long a requeued job waits before it may start again: 120 s by
        # default, 5 at least.
        "AuthInfo": f"socket={at}/munge/sock,cred_expire=5",
        "StateSaveLocation": f"{at}/state",
        "SlurmctldPidFile": f"{at}/munge/slurmctld.pid",
        "SlurmctldLogFile": f"{at}/log/slurmctld.log",
        "SlurmdSpoolDir": f"{at}/local/slurmd",
        "SlurmdPidFile": f"{at}/local/slurmd.pid",
        "SlurmdLogFile": f"{at}/log/slurmd-%n.log",
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "MpiDefault": "none",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core",
        "SchedulerParameters": "bf_interval=1,sched_interval=1,nohold_on_prolog_fail",
        # 1: a node that was merely silent returns by itself; one that was set down or rebooted
        # unexpectedly stays away until somebody has looked. 2 would undo a `state=down` at once.
        "ReturnToService": "1",
        "SlurmdTimeout": "3",
        "SlurmctldTimeout": "10",
        "MessageTimeout": "2",
        "TCPTimeout": "1",
        "BatchStartTimeout": "10",
        "UnkillableStepTimeout": "10",
        "KillWait": "8",
        "InactiveLimit": "0",
        "JobRequeue": "1",
        # A node may claim more CPUs than this machine has.
        "SlurmdParameters": "config_overrides",
        "HealthCheckProgram": f"{at}/hooks/health_check.sh",
        # A round on eight nodes takes 1 to 2 s of a core: every 5 s was a third of a small machine.
        "HealthCheckInterval": "10",
        "HealthCheckNodeState": "ANY",
        "RebootProgram": f"{at}/hooks/reboot.sh",
        "ResumeTimeout": "60",
    }
    if shape.gpus:
        keys["GresTypes"] = "gpu"
    if shape.prolog:
        keys["Prolog"] = f"{at}/hooks/prolog.d/*"
        keys["Epilog"] = f"{at}/hooks/epilog.d/*"
        keys["PrologFlags"] = "Alloc"  # on all nodes of a job, before its first step
        keys["PrologEpilogTimeout"] = "60"
    known = {key.lower(): key for key in keys}
    extra = []
    for key, value in shape.settings:
        if key.lower() in known:
            keys[known[key.lower()]] = value
        else:
            extra.append(f"{key}={value}")
    gres = f" Gres=gpu:h100:{shape.gpus}" if shape.gpus else ""
    nodes = [
        f"NodeName={name} NodeAddr={shape.address(name)} CPUs={shape.cpus} RealMemory=2000{gres}"
        for name in shape.names
    ]
    partition = "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP"
    lines = [f"{key}={value}" for key, value in keys.items() if value]
    return "\n".join([*lines, *nodes, partition, *extra, ""])


def gres_conf(folder: Path, shape: Shape) -> str:
    """gres.conf. Slurm counts only character devices; `world.sh` makes them, one minor each."""
    if not shape.gpus:
        return ""
    return f"Name=gpu Type=h100 File={folder}/dev/nvidia[0-{shape.gpus - 1}]\n"


def plugstack_conf(folder: Path) -> str:
    """plugstack.conf, which Slurm looks for beside slurm.conf: srun --auto-resume=1."""
    return f"optional {folder}/lib/auto_resume.so muster={folder}/bin/muster\n"


def hosts(shape: Shape) -> str:
    """/etc/hosts of the head and of every node."""
    fixed = ["127.0.0.1 localhost", "::1 localhost", f"{SUBNET}.1 {HEAD}"]
    return "\n".join([*fixed, *(f"{shape.address(n)} {n}" for n in shape.names), ""])


def nsswitch(ours: Optional[str]) -> str:
    """The machine's nsswitch.conf with `hosts: files`.

    PyTorch looks the peer's address up backwards at every rendezvous; with a name server that never
    answers from inside, each of them would lose ten seconds.
    """
    lines = (ours or "").splitlines()
    kept = [line for line in lines if not line.strip().startswith("hosts:")]
    return "\n".join([*kept, "hosts: files", ""])


def site_yaml(folder: Path, shape: Shape) -> str:
    """The site file of this cluster: every task is one rank, a node is replaced by the BMC."""
    bmc, on_node, muster = (str(folder / "bin" / name) for name in ("bmc", "on-node", "muster"))
    keys: dict[str, object] = {
        "ranks_per_node": 1,
        # "local" expects the 8 stand-ins; otherwise what Slurm was told decides.
        "profile": {8: "local", 0: "cpu"}.get(shape.gpus, "auto"),
        "replace_command": [bmc, "replace", "{node}"],
        "reboot_command": [bmc, "reboot", "{node}"],
        "verify_command": [on_node, "{node}", muster, "check", "--when", "return", "--json"],
        "scratch_path": str(folder / "local"),  # the node's own disk; /tmp is the host's
        "scratch_min_free_bytes": 1 << 20,
        "max_unfit_fraction": 0.5,
        "replace_timeout_s": 60,
        "verify_pause_s": 0,
        "shared_cause_s": 1,
        "on_node_command": [on_node, "{node}"],
        "lost_after_s": 3,
        "lease_s": 4,
        "job_cures_per_day": 100,  # faults come by the minute here
    }
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in keys.items())


def world_env(shape: Shape, owner: Owner) -> str:
    """What the bash side needs to know, as bash."""
    return "\n".join(
        [
            f"NODES=({' '.join(shape.names)})",
            f"OUT_OF_SERVICE=({' '.join(shape.out_of_service)})",
            f"AS=({shlex.join(owner.prefix)})",
            f"SUBNET={SUBNET}",
            f"FIRST_ADDRESS={shape.address('n1').rpartition('.')[2]}",
            f"GPUS={shape.gpus}",
            f"BOOT_S={shape.boot_s:g}",
            "CREATED=",
            "",
        ]
    )


def muster_env(folder: Path) -> str:
    """What Slurm's programs on the nodes need to know, as bash: Slurm tells them nothing."""
    at = shlex.quote(str(folder))
    return "\n".join(
        [
            f"PATH={at}/bin:$PATH",
            f"SLURM_CONF={at}/etc/slurm.conf",
            f"MUSTER_SITE={at}/site.yaml",
            f"MUSTER_LOG_DIR={at}/log",
            f"MUSTER_STATE_DIR={at}/local/muster",
            f"HEALTH_LOG={at}/log/health-$(hostname).log",
            "",
        ]
    )


def muster_wrapper(python: str, checkout: str) -> str:
    """`muster` inside the cluster: this checkout, this Python.

    Neither PYTHONPATH nor the working folder decide what is imported: the first would leak into
    recipes, and a recipe may well have a folder called `resume`.
    """
    code = (
        f"import runpy, sys; sys.path[0] = {checkout!r}; sys.argv[0] = 'muster'; "
        "runpy.run_module('muster', run_name='__main__', alter_sys=True)"
    )
    return f'#!/bin/sh\nexec {shlex.quote(python)} -c {shlex.quote(code)} "$@"\n'


def _script(name: str) -> str:
    data = pkgutil.get_data("muster.cluster", name)
    if data is None:
        raise FileNotFoundError(name)
    return data.decode()


def _read(path: Path) -> Optional[str]:
    return path.read_text() if path.is_file() else None


def _read_bytes(path: Path) -> Optional[bytes]:
    return path.read_bytes() if path.is_file() else None


def _put(path: Path, text: str, mode: int = 0o644) -> None:
    _put_bytes(path, text.encode(), mode)


def _put_bytes(path: Path, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb") as file:
        os.fchmod(fd, mode)  # whatever the umask: an ordinary user's jobs read these
        file.write(data)
