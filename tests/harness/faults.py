"""Faults of processes on a node of the local cluster; faults of nodes are verbs of the cluster."""

from __future__ import annotations

from tests.harness.training import Training

_EACH_PROCESS = (
    "for p in /proc/[0-9]*; do e=$(tr '\\0' '\\n' <$p/environ 2>/dev/null) || continue; "
)


def signal_rank(run: Training, rank: int, number: int) -> None:
    """Send a signal to one rank of the newest attempt: to its processes, not to its wrapper.

    Raises:
        LookupError: there is no such process (yet, or any more).
    """
    attempt = run.events("attempt_started")[-1]
    node = attempt["nodes"][rank * len(attempt["nodes"]) // attempt["ranks"]]
    script = (
        f"{_EACH_PROCESS} grep -qx RANK={rank} <<<$e && grep -qx SLURM_JOB_ID={run.job} <<<$e && "
        f"grep -q ^MUSTER_ATTEMPT= <<<$e && kill -{int(number)} ${{p#/proc/}} && echo hit; done"
    )
    done = run.cluster.exec(["bash", "-c", script], node=node)
    if "hit" not in done.out:
        raise LookupError(f"no rank {rank} on {node}: {done.err}")


def kill_supervisor(run: Training) -> None:
    """SIGKILL the supervisor on its batch host, as an out-of-memory killer would.

    Raises:
        LookupError: there is none (yet, or any more).
    """
    host = run.events("supervisor_started")[-1]["host"]
    script = (
        f"{_EACH_PROCESS} grep -qx SLURM_JOB_ID={run.job} <<<$e || continue; "
        "a=$(tr '\\0' ' ' <$p/cmdline); case $a in *python*' run '*) "
        "kill -9 ${p#/proc/} && echo hit;; esac; done"
    )
    done = run.cluster.exec(["bash", "-c", script], node=host)
    if "hit" not in done.out:
        raise LookupError(f"no supervisor on {host}: {done.err}")
