"""slurm.conf without nodes and partitions: every key, its value and why.

What decides how long a recovery takes is explained at more length, with the figures that were
measured, in docs/explanation/slurm_settings.md.
"""

from __future__ import annotations

from lifecycle.description.model import Description
from lifecycle.description.nodes import accounting_node, of_role
from slurm.conf.setting import Section, Setting
from slurm.conf.version import REQUEUE_DELAY

Version = tuple[int, int]
LEAST_MESSAGE_S = 2
MOST_MESSAGE_S = 10


def sections(description: Description, version: Version) -> list[Section]:
    """All keys, in groups; where a platform runs Slurm's daemons, only what it leaves to us."""
    if description.platform != "plain":
        return [_recovery(description, version), _health(description), _preemption(description)]
    return [
        _controllers(description),
        _places(description),
        _recovery(description, version),
        _health(description),
        _resources(description),
        _confinement(description),
        _preemption(description),
        _accounting(description),
    ]


def _controllers(description: Description) -> Section:
    heads = of_role(description, "head")
    slurm = description.slurm
    settings = [Setting("ClusterName", description.name, "The name in accounting and in logs.")]
    for number, head in enumerate(heads):
        name = f"{head.name}({head.address})" if head.address else head.name
        why = "Where slurmctld runs." if not number else "Takes over when those above are silent."
        settings.append(Setting("SlurmctldHost", name, why))
    settings += [
        Setting("SlurmUser", slurm.user, "slurmctld needs no root.", "root"),
        Setting("AuthType", "auth/munge", "One key on all nodes says who somebody is."),
        Setting(
            "SlurmctldParameters",
            "enable_configless,preempt_send_user_signal",
            """enable_configless: a slurmd started with --conf-server needs no copy of these files.
            preempt_send_user_signal: a job that is preempted gets its --signal before the grace
            time, so that it can save.""",
        ),
    ]
    if len(heads) > 1:
        why = "A second controller takes over after this many seconds of silence."
        settings.append(Setting("SlurmctldTimeout", "30", why, "120"))
    return Section("Who is in charge", settings)


def _places(description: Description) -> Section:
    return Section(
        "Where things are kept",
        [
            Setting(
                "StateSaveLocation",
                str(description.slurm.state_dir),
                "Jobs and nodes across a restart of slurmctld; all controllers must see it.",
            ),
            Setting("SlurmdSpoolDir", "/var/spool/slurmd", "Of each node, on its own disk."),
            Setting("SlurmctldPidFile", "/run/slurmctld.pid", "Where systemd expects it."),
            Setting("SlurmdPidFile", "/run/slurmd.pid", "Where systemd expects it."),
            Setting("SlurmctldLogFile", "/var/log/slurm/slurmctld.log", "Else it is in syslog."),
            Setting("SlurmdLogFile", "/var/log/slurm/slurmd.log", "Else it is in syslog."),
        ],
    )


def message_timeout_s(lost_after_s: int) -> int:
    """A ping and two repetitions fit into SlurmdTimeout; 10, Slurm's own, where there is room."""
    return max(LEAST_MESSAGE_S, min(MOST_MESSAGE_S, lost_after_s // 3))


def _recovery(description: Description, version: Version) -> Section:
    slurm = description.slurm
    scheduler = ["bf_interval=10", "bf_continue", "sched_interval=10", "nohold_on_prolog_fail"]
    new = version >= REQUEUE_DELAY
    if new:
        scheduler.append(f"requeue_delay={slurm.requeue_wait_s}")
    settings = [
        Setting(
            "SlurmdTimeout",
            str(slurm.lost_after_s),
            """Seconds of silence until a node is DOWN, and its job can be requeued. Lower: recovery
            starts sooner. Too low: a switch that reboots, or a node so busy that slurmd is late,
            costs a healthy job. It must be longer than the longest such pause that the site
            knows.""",
            "300",
        ),
        Setting(
            "MessageTimeout",
            str(message_timeout_s(slurm.lost_after_s)),
            """Seconds that an answer may take. Three of them fit into SlurmdTimeout, or one late
            answer would make a node DOWN.""",
            "10",
        ),
        Setting(
            "SchedulerParameters",
            ",".join(scheduler),
            """sched_interval and bf_interval: a requeued job waits for the scheduler's next pass,
            every 60 and 30 s by default; at some thousand queued jobs raise both. bf_continue: a
            pass that was interrupted goes on. nohold_on_prolog_fail: a job that met an unfit node
            waits for other nodes, not for a person.""",
        ),
        Setting("JobRequeue", "1", "A job that says nothing may be requeued.", "1"),
        Setting("JobFileAppend", "1", "A requeue does not empty the job's log.", "0"),
        Setting(
            "KillOnBadExit",
            "1",
            "A rank that fails ends the step: the others would wait for it in a collective.",
            "0",
        ),
        Setting(
            "ReturnToService",
            "1",
            """A node that was merely silent comes back by itself. One that rebooted unexpectedly
            stays DOWN until somebody, or muster watch, has looked; with 2 nobody looks, and a
            'state=down' of an administrator is undone at once.""",
            "0",
        ),
        Setting(
            "KillWait",
            str(slurm.kill_wait_s),
            "Seconds from SIGTERM to SIGKILL at the end of a job.",
            "30",
        ),
        Setting(
            "UnkillableStepTimeout",
            "180",
            """Ranks that die in the GPU driver take their time; when this is over the node is
            drained.""",
            "60",
        ),
        Setting("InactiveLimit", "0", "A job is not ended for waiting.", "0"),
    ]
    if not new and description.platform == "plain":
        why = """How long a requeued job waits before it may start again, plus 1 s. It is the life
            of a credential: the clocks of all nodes must agree to less than this. Below 5 Slurm
            takes 120."""
        value = f"cred_expire={slurm.requeue_wait_s}"
        settings.insert(2, Setting("AuthInfo", value, why, "120"))
    if description.platform == "plain":
        settings += [
            Setting(
                "BatchStartTimeout", "90", "The prolog looks at the node before a job starts.", "10"
            ),
            Setting("RebootProgram", "/usr/sbin/reboot", "For 'scontrol reboot' and muster watch."),
            Setting(
                "ResumeTimeout", "1800", "A machine with eight GPUs boots for many minutes.", "60"
            ),
        ]
    return Section("How fast a lost node is noticed, and its job starts again", settings)


def _health(description: Description) -> Section:
    slurm = description.slurm
    at = slurm.config_dir / "muster"
    settings = [
        Setting(
            "HealthCheckProgram",
            f"{at}/health_check.sh",
            "Every node looks at itself, and drains itself only for a fault of its hardware.",
        ),
        Setting(
            "HealthCheckInterval",
            str(slurm.health_interval_s),
            "Seconds. On all nodes at the same moment, so that ranks are disturbed together.",
            "0",
        ),
        Setting("HealthCheckNodeState", "ANY", "Busy nodes too: that is where GPUs fail.", "ANY"),
    ]
    if description.platform != "hyperpod":
        flags, contain = "Alloc,DeferBatch", ""
        if description.platform == "plain" and slurm.ssh_with_job_only and slurm.cgroup:
            flags = "Contain,DeferBatch"
            contain = """Contain: every job has a container on each of its nodes, which
                pam_slurm_adopt puts ssh sessions into: they end with the job."""
        settings += [
            Setting(
                "Prolog", f"{at}/prolog.d/*", "An unfit node is drained before a job meets it."
            ),
            Setting("Epilog", f"{at}/epilog.d/*", "What a job broke, the next one does not meet."),
            Setting(
                "PrologFlags",
                flags,
                f"""Alloc (part of Contain): the prolog runs on all nodes of a job when it gets
                them, not when its first step comes. DeferBatch: the script starts when it has
                passed on all of them. {contain}""",
            ),
            Setting("PrologEpilogTimeout", "60", "No prolog takes longer.", "forever"),
        ]
    settings.append(
        Setting(
            "TaskProlog",
            f"{at}/task_prolog.sh",
            "Every task gets the variables of environment.d beside it, unless its job sets them.",
        )
    )
    return Section("Health", settings)


def _resources(description: Description) -> Section:
    settings = [
        Setting("SelectType", "select/cons_tres", "Hands out CPUs, memory and GPUs one by one."),
        Setting(
            "SelectTypeParameters",
            "CR_Core_Memory" if description.slurm.cgroup else "CR_Core",
            "Memory counts where it is enforced: two jobs on a node cannot fill it.",
        ),
        Setting("EnforcePartLimits", "ALL", "What can never run is refused, and not queued.", "NO"),
        Setting("MpiDefault", "none", "Ranks find each other over TCP; no PMI is needed."),
        Setting(
            "PropagateResourceLimitsExcept",
            "MEMLOCK",
            "The limit of a login shell would forbid RDMA to pin memory.",
        ),
    ]
    gpus = any(node.hardware and node.hardware.gpus for node in of_role(description, "compute"))
    if gpus:
        settings.insert(0, Setting("GresTypes", "gpu", "Else --gpus is unknown."))
    return Section("What jobs can ask for", settings)


def _confinement(description: Description) -> Section:
    if description.slurm.cgroup:
        return Section(
            "What a job can touch",
            [
                Setting("ProctrackType", "proctrack/cgroup", "No process of a job outlives it."),
                Setting(
                    "TaskPlugin",
                    "task/cgroup,task/affinity",
                    "Only its own CPUs, memory and GPUs: see cgroup.conf.",
                ),
            ],
        )
    return Section(
        "What a job can touch",
        [
            Setting("ProctrackType", "proctrack/linuxproc", "cgroup is off in cluster.yaml."),
            Setting("TaskPlugin", "task/none", "cgroup is off in cluster.yaml."),
        ],
    )


def _preemption(description: Description) -> Section:
    ways = {partition.preempt for partition in description.partitions} - {"off"}
    if not ways:
        return Section("Who yields to whom: nobody", [])
    mode = "SUSPEND,GANG" if "suspend" in ways else "REQUEUE"
    return Section(
        "Who yields to whom",
        [
            Setting(
                "PreemptType",
                "preempt/partition_prio",
                "A job of a higher PriorityTier takes nodes from jobs of a lower one.",
                "preempt/none",
            ),
            Setting(
                "PreemptMode",
                mode,
                """For partitions that say nothing. REQUEUE: the job goes back into the queue and
                comes again by itself.""",
                "OFF",
            ),
        ],
    )


def _accounting(description: Description) -> Section:
    node = accounting_node(description)
    if node is None:
        return Section("Accounting: off", [])
    gather = "jobacct_gather/cgroup" if description.slurm.cgroup else "jobacct_gather/linux"
    return Section(
        "Accounting",
        [
            Setting("AccountingStorageType", "accounting_storage/slurmdbd", "Who used what."),
            Setting("AccountingStorageHost", node, "Where slurmdbd runs."),
            Setting("AccountingStorageTRES", "gres/gpu", "GPUs are counted, too."),
            Setting("JobAcctGatherType", gather, "What a job really used."),
        ],
    )
