"""cluster.yaml as frozen dataclasses: everything that makes one cluster differ from another.

Every part of `lifecycle` and `slurm` reads these and nothing else. Whether the values go together
is looked at in check.py; docs/reference/cluster_yaml.md is the table, and a test compares the two.
Durations in seconds, sizes with their unit in the name. No secret stands here: see `Secret`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

ROLES = ("head", "login", "compute")
PLATFORMS = ("plain", "hyperpod", "parallelcluster")
MOUNT_KINDS = ("lustre", "nfs", "openzfs", "existing")
PREEMPT_WAYS = ("off", "requeue", "cancel", "suspend")
DATABASES = ("local", "external", "off")
FABRICS = ("auto", "none", "efa", "infiniband", "roce")
TOPOLOGIES = ("none", "tree", "block")
SCRATCH_KINDS = ("raid", "instance_store", "folder")


@dataclass(frozen=True)
class Secret:
    """Where a secret is read from, when it is needed, by root. Exactly one of the two."""

    file: Optional[Path] = None  # its content without the last line end
    command: list[str] = field(default_factory=list)  # prints it; no shell


@dataclass(frozen=True)
class Hardware:
    """What one machine has. None in a group: the table of instance types, else the node itself."""

    sockets: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int  # in the machine; Slurm gives out a little less
    gpus: int = 0
    gpu_type: Optional[str] = None  # as jobs ask for it: --gres=gpu:h100:8

    @property
    def cpus(self) -> int:
        """Threads, which is what Slurm calls CPUs."""
        return self.sockets * self.cores_per_socket * self.threads_per_core


@dataclass(frozen=True)
class Group:
    """Machines that are alike and do the same."""

    name: str
    role: str  # head, login or compute
    nodes: list[str] = field(default_factory=list)  # host lists: "n[001-100]", "head"
    addresses: dict[str, str] = field(default_factory=dict)  # node: IP; else the name is resolved
    instance_type: Optional[str] = None  # p5.48xlarge; a leading "ml." does not matter
    hardware: Optional[Hardware] = None
    spares: int = 0  # nodes that no job is sized for: swaps find them free
    features: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Partition:
    """A queue. A higher priority_tier is served first, and may preempt lower ones."""

    name: str
    groups: list[str]
    default: bool = False
    priority_tier: int = 1
    preempt: str = "off"  # what happens to its jobs when a higher tier wants their nodes
    grace_s: int = 0  # between the warning and that
    max_time_s: Optional[int] = None  # None: no limit
    default_time_s: Optional[int] = None  # of a job that does not say; None: max_time_s
    exclusive: bool = False  # whole nodes only
    max_nodes: Optional[int] = None  # of one job; None: all but the spares
    allow_groups: list[str] = field(default_factory=list)  # of users; empty: everybody
    allow_accounts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Mount:
    """A file system that all nodes of some roles share."""

    path: Path
    kind: str  # lustre, nfs, openzfs, or existing: somebody else mounts it, we wait for it
    source: Optional[str] = None  # as mount(8) takes it: 10.0.0.5@tcp:/fsx, server:/export
    options: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=lambda: list(ROLES))
    writable: bool = True
    wait_s: int = 300  # for it to be mounted and, if writable, written
    min_size_tb: Optional[float] = None  # less is another file system than the one meant


@dataclass(frozen=True)
class Scratch:
    """A fast disk of each compute node. The first kind that the node has is taken."""

    path: Path = Path("/scratch")
    kinds: list[str] = field(default_factory=lambda: list(SCRATCH_KINDS))
    stores: list[Path] = field(default_factory=lambda: [Path("/opt/dlami/nvme")])
    folder: Path = Path("/var/scratch")  # the last resort, on the root disk
    min_free_gib: float = 20.0  # less is no scratch


@dataclass(frozen=True)
class UserGroup:
    """A group of users, with the same id everywhere."""

    name: str
    gid: int


@dataclass(frozen=True)
class User:
    """A person, with the same id everywhere."""

    name: str
    uid: int
    group: str  # primary; one of users.groups
    groups: list[str] = field(default_factory=list)  # further ones; may be the system's
    shell: Path = Path("/bin/bash")
    ssh_keys: list[str] = field(default_factory=list)  # public ones
    admin: bool = False  # may use sudo


@dataclass(frozen=True)
class Users:
    """Who may log in, and where homes are."""

    home: Path = Path("/home")  # shared, if it lies below a mount
    groups: list[UserGroup] = field(default_factory=list)
    users: list[User] = field(default_factory=list)


@dataclass(frozen=True)
class Accounting:
    """slurmdbd and its database. A fresh local database gets a random password of its own."""

    database: str = "local"  # local: MariaDB beside slurmdbd; external; off
    node: Optional[str] = None  # where slurmdbd runs; None: the first head node
    host: Optional[str] = None  # of an external database
    port: int = 3306
    user: str = "slurm"
    name: str = "slurm_acct_db"
    password: Optional[Secret] = None
    purge_after_days: int = 365


@dataclass(frozen=True)
class Containers:
    """What runs images on compute nodes."""

    enroot: bool = False
    pyxis: bool = False  # srun --container-image; needs enroot
    docker: bool = False
    cache: Optional[Path] = None  # of downloaded layers; None: in the scratch path
    data: Optional[Path] = None  # unpacked containers; None: in the scratch path
    enroot_version: Optional[str] = None  # None: the one that is there, else one that muster knows
    pyxis_version: Optional[str] = None  # likewise


@dataclass(frozen=True)
class Monitoring:
    """Figures of nodes and GPUs, collected on the first head node."""

    enabled: bool = False
    retention_days: int = 15
    prometheus_port: int = 9090
    node_port: int = 9100
    dcgm_port: int = 9400


@dataclass(frozen=True)
class Fabric:
    """The fast network between nodes, and what every job on it must know."""

    kind: str = "auto"  # what the node has; another value: it must have that
    environment: dict[str, str] = field(default_factory=dict)  # for jobs: NCCL_DEBUG: WARN
    efa_installer: Optional[str] = None  # version to install; None: the machine has what it needs


@dataclass(frozen=True)
class Switch:
    """One switch (tree) or block of nodes (block)."""

    name: str
    nodes: list[str] = field(default_factory=list)  # host lists
    switches: list[str] = field(default_factory=list)  # below this one


@dataclass(frozen=True)
class Slurm:
    """How Slurm itself is set up."""

    version: Optional[str] = None  # release, such as "23.11"; None: what is installed says
    config_dir: Path = Path("/etc/slurm")
    state_dir: Path = Path("/var/spool/slurmctld")  # on a mount, when there are several heads
    user: str = "slurm"
    uid: int = 64030  # the one that Debian has set aside for Slurm
    munge_key: Optional[Secret] = None  # base64 text; None: the head makes one, in shared_dir
    lost_after_s: int = 30  # silence after which a node is DOWN
    requeue_wait_s: int = 5  # before a requeued job may start again; 5 is Slurm's least
    kill_wait_s: int = 30  # from SIGTERM to SIGKILL
    health_interval_s: int = 60  # of HealthCheckProgram
    cgroup: bool = True  # confine jobs to their CPUs, memory and GPUs
    ssh_with_job_only: bool = False  # pam_slurm_adopt on compute nodes
    auto_resume: bool = False  # srun --auto-resume=1, by a plugin that is on all nodes
    topology: str = "none"
    switches: list[Switch] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)  # further lines of slurm.conf


@dataclass(frozen=True)
class Health:
    """What a node must pass before it takes jobs."""

    profile: str = "auto"  # of muster check
    deep: bool = False  # burn-in during creation: minutes


@dataclass(frozen=True)
class Description:
    """A whole cluster.yaml."""

    name: str
    groups: list[Group]
    partitions: list[Partition]
    platform: str = "plain"  # hyperpod, parallelcluster: these run Slurm's daemons themselves
    shared_dir: Optional[Path] = None  # below a mount: ledger copies and what nodes share of ours
    mounts: list[Mount] = field(default_factory=list)
    scratch: Scratch = field(default_factory=Scratch)
    users: Users = field(default_factory=Users)
    accounting: Accounting = field(default_factory=Accounting)
    containers: Containers = field(default_factory=Containers)
    monitoring: Monitoring = field(default_factory=Monitoring)
    fabric: Fabric = field(default_factory=Fabric)
    slurm: Slurm = field(default_factory=Slurm)
    health: Health = field(default_factory=Health)
    time_servers: list[str] = field(default_factory=list)  # empty: the machine's own stay
    packages: list[str] = field(default_factory=list)  # further ones, on every node
    checksums: dict[str, str] = field(default_factory=dict)  # sha256 of files that are downloaded
    replace_command: list[str] = field(default_factory=list)  # "{node}" is filled in
    reboot_command: list[str] = field(default_factory=list)
