"""A small typed client for Slurm: scontrol in, frozen records out, a time limit on every call.

Nodes and jobs are always read anew: SLURM_* variables in a batch script go stale as soon as Slurm
takes a dead node out of the allocation.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from muster.errors import UnavailableError
from muster.process import run

TIMEOUT_S = 10.0
PYXIS = "PYXIS_CONTAINER_"
"""How variables begin that Pyxis takes for defaults of its options, whatever srun starts."""
_PART = re.compile(r"(?:[^,\[]|\[[^\]]*\])+")
_PAIR = re.compile(r"(?:^|\s)([A-Z][A-Za-z_:/]*)=")
_REASON = re.compile(r"(?P<text>.*?)(?: \[(?P<user>[^@\]\s]+)@(?P<time>[^\]]+)\])?$")
# These fields stand alone on their line and may hold blanks and equals signs.
_WHOLE_LINE = ("Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Reason", "Comment", "Extra")
_REST_OF_LINE = ("JobName",)  # a user's free text, last on its line
# Ends of a batch script that no person asked for.
_ENDED = ("FAILED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL")
_NOTHING = ("", "None", "N/A", "Unknown", "(null)")
_LOST = frozenset({"DOWN", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN"})
_CLOSED = frozenset(
    {"DRAIN", "MAINT", "MAINTENANCE", "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT"}
)


@dataclass(frozen=True)
class Job:
    """One Slurm job as the controller knows it now."""

    job_id: str
    state: str
    nodes: list[str]
    batch_host: Optional[str]
    restarts: int
    command: str
    requeue: bool
    reason: str = ""
    array_task: Optional[str] = None  # <array>_<task>: the number may mean the whole array
    start_time: str = ""  # of this run of it, as Slurm prints a time
    submitted: tuple[tuple[str, str], ...] = ()  # options of sbatch that its record shows
    preempted: bool = False  # Slurm has chosen it as a victim; a grace time may still run
    user_id: Optional[int] = None
    submit_time: str = ""  # or when it was requeued last, as Slurm prints a time
    required_nodes: tuple[str, ...] = ()  # --nodelist
    excluded_nodes: tuple[str, ...] = ()  # --exclude

    @property
    def address(self) -> str:
        """What means this job alone to `scontrol requeue`."""
        return self.array_task or self.job_id

    @property
    def lost_its_script(self) -> bool:
        """No person asked for the end of this job: it runs without a script, or the script died.

        A job that a person cancelled shows no reason while it completes. One that was preempted or
        reached its time limit ended as well, but its run has not.
        """
        ended = self.state in ("COMPLETING", *_ENDED) and self.reason not in ("", "None")
        return self.state in ("RUNNING", "PREEMPTED") or ended or self._preempted_away

    @property
    def _preempted_away(self) -> bool:
        return self.preempted and self.state == "COMPLETING"


@dataclass(frozen=True)
class Node:
    """One node as the controller knows it now."""

    name: str
    states: frozenset[str]
    address: str
    port: int = 6818
    reason: str = ""
    reason_user: Optional[str] = None
    reason_time: str = ""
    boot_time: str = ""
    partitions: list[str] = field(default_factory=list)
    gres: str = ""
    available_features: list[str] = field(default_factory=list)
    active_features: list[str] = field(default_factory=list)

    @property
    def lost(self) -> bool:
        """Slurm has given the node up. NOT_RESPONDING is less: a busy node may miss a ping."""
        return bool(self.states & _LOST)

    def booted_after(self, job: Job) -> bool:
        """This machine has started since the job did: whatever of it ran here is gone.

        Slurm prints local time in whole seconds, so texts compare as times do; it takes the boot
        time from an uptime in whole seconds, hence `after` and not `at`.
        """
        if self.boot_time in _NOTHING or job.start_time in _NOTHING:
            return False
        return self.boot_time > job.start_time

    @property
    def closed(self) -> bool:
        """Takes no new work: drained, in maintenance, or about to reboot."""
        return bool(self.states & _CLOSED)


def fields(block: str) -> dict[str, str]:
    """Key and value pairs of one record of `scontrol show`, in its form of several lines."""
    found: dict[str, str] = {}
    for line in block.split("\n"):  # alone: other line ends may be in what users wrote
        text = line.strip()
        key = text.partition("=")[0]
        if key in _WHOLE_LINE:
            found[key] = text[len(key) + 1 :]
            continue
        starts = list(_PAIR.finditer(text))
        for match, following in zip(starts, [*starts[1:], None]):
            if following is None or match[1] in _REST_OF_LINE:
                found.setdefault(match[1], text[match.end() :].strip())
                break
            found.setdefault(match[1], text[match.end() : following.start()].strip())
    return found


def parse_job(block: str, nodes: list[str]) -> Job:
    """A job from its record; `nodes` is its NodeList written out."""
    values = fields(block)
    array, task = values.get("ArrayJobId"), values.get("ArrayTaskId", "")
    batch_host, restarts = values.get("BatchHost", "(null)"), values.get("Restarts", "0")
    user = re.search(r"\((\d+)\)$", values.get("UserId", ""))
    return Job(
        job_id=values["JobId"],
        state=values.get("JobState", "UNKNOWN"),
        nodes=nodes,
        batch_host=None if batch_host in ("", "(null)") else batch_host,
        restarts=int(restarts) if restarts.isdigit() else 0,
        command=values.get("Command", ""),
        # salloc's jobs say Requeue=1 too, but have no script that could be started again
        requeue=values.get("Requeue", "0") == "1" and values.get("BatchFlag", "1") != "0",
        reason=values.get("Reason", ""),
        array_task=f"{array}_{task}" if array and task.isdigit() else None,
        start_time=values.get("StartTime", ""),
        submitted=_submitted(values),
        preempted=values.get("PreemptTime", "") not in _NOTHING,
        user_id=int(user[1]) if user else None,
        submit_time=values.get("SubmitTime", ""),
        required_nodes=tuple(hostnames(values.get("ReqNodeList", ""))),
        excluded_nodes=tuple(hostnames(values.get("ExcNodeList", ""))),
    )


def _submitted(values: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Options of sbatch that a job's record shows, those that are not set left out."""
    options = {
        "job-name": values.get("JobName", ""),
        "partition": values.get("Partition", ""),
        "account": values.get("Account", ""),
        "qos": values.get("QOS", ""),
        "reservation": values.get("Reservation", ""),
        "constraint": values.get("Features", ""),
        "exclude": values.get("ExcNodeList", ""),
        "nodes": values.get("NumNodes", "").partition("-")[0],
        "time": values.get("TimeLimit", "").replace("Partition_Limit", ""),
        "chdir": values.get("WorkDir", ""),
        "output": values.get("StdOut", ""),
    }
    return tuple((name, text) for name, text in options.items() if text not in _NOTHING)


def unix_time(text: str) -> Optional[float]:
    """A time as scontrol prints it (local, unless SLURM_TIME_FORMAT says otherwise); None: none."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return None


def parse_node(block: str) -> Node:
    """A node from its record. A reason ends before its last ` [user@time]`."""
    values = fields(block)
    match = _REASON.fullmatch(values.get("Reason", ""))
    reason = match["text"] if match else values.get("Reason", "")
    port = values.get("Port", "")
    return Node(
        name=values["NodeName"],
        states=frozenset(_state_words(values.get("State", "UNKNOWN"))),
        address=values.get("NodeAddr", values["NodeName"]),
        port=int(port) if port.isdigit() else 6818,
        reason=reason,
        reason_user=match["user"] if match else None,
        reason_time=(match["time"] or "") if match else "",
        boot_time=values.get("BootTime", ""),
        partitions=_words(values.get("Partitions", "")),
        gres=values.get("Gres", ""),
        available_features=_words(values.get("AvailableFeatures", "")),
        active_features=_words(values.get("ActiveFeatures", "")),
    )


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word not in ("", "(null)")]


def _state_words(state: str) -> list[str]:
    """IDLE+DRAIN, DOWN* and the like as words; a star says that the node does not respond."""
    words = []
    for part in state.split("+"):
        words.append(part.rstrip("*~#!%$@^-"))
        if "*" in part:
            words.append("NOT_RESPONDING")
    return words


def _scontrol(*arguments: str, timeout_s: float = TIMEOUT_S) -> str:
    done = run(["scontrol", *arguments], timeout_s=timeout_s)
    if done.rc != 0:
        said = (done.err or done.out).strip().splitlines()
        what = "no answer in time" if done.timed_out else (said[-1] if said else "failed")
        raise UnavailableError(
            f"scontrol {arguments[0]} {arguments[1] if len(arguments) > 1 else ''}".strip(),
            what,
            "see 'scontrol ping' and the controller's log",
        )
    return done.out


def hostnames(nodelist: str) -> list[str]:
    """Write out a Slurm node list such as rack[1-2]n[01-03,07],login."""
    if nodelist in _NOTHING:
        return []
    return [name for part in _PART.findall(nodelist) for name in _written_out(part)]


def _written_out(part: str) -> list[str]:
    """One part without a comma outside brackets; leading zeros are kept."""
    head, opening, rest = part.partition("[")
    if not opening:
        return [part]
    ranges, _, tail = rest.partition("]")
    numbers: list[str] = []
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        if dash:
            numbers += [str(n).zfill(len(first)) for n in range(int(first), int(last) + 1)]
        else:
            numbers.append(one)
    return [f"{head}{number}{end}" for number in numbers for end in _written_out(tail)]


def show_job(job_id: str, timeout_s: float = TIMEOUT_S) -> Job:
    """The job as it is now.

    Raises:
        UnavailableError: Slurm does not answer, or knows no such job.
    """
    block = _record_of(job_id, _scontrol("show", "job", job_id, timeout_s=timeout_s))
    if "JobId" not in fields(block):
        raise UnavailableError(f"scontrol show job {job_id}", "no record", "see 'scontrol ping'")
    return parse_job(block, hostnames(fields(block).get("NodeList", "")))


def _record_of(job_id: str, text: str) -> str:
    """The record of this job alone: the number of an array's last task names the whole array."""
    records = [block for block in re.split(r"\n(?=JobId=)", text) if "JobId=" in block]
    return next((block for block in records if fields(block).get("JobId") == job_id), "")


def kill_wait_s() -> float:
    """Seconds between Slurm's SIGTERM and its SIGKILL; its default while it does not answer."""
    try:
        found = re.search(r"^KillWait\s*=\s*(\d+)", _scontrol("show", "config"), re.MULTILINE)
    except UnavailableError:
        found = None
    return float(found[1]) if found else 30.0


def job_from_environment(values: Mapping[str, str]) -> Job:
    """The job that we run in, as its environment tells: what is known without `scontrol`."""
    return Job(
        job_id=values["SLURM_JOB_ID"],
        state="RUNNING",
        nodes=hostnames(values.get("SLURM_JOB_NODELIST", "")),
        batch_host=values.get("SLURMD_NODENAME"),
        restarts=int(values.get("SLURM_RESTART_COUNT") or 0),
        command="",
        requeue=False,
    )


def show_nodes(names: Optional[Iterable[str]] = None) -> dict[str, Node]:
    """Nodes by name; all of the cluster when no names are given.

    Raises:
        UnavailableError: Slurm does not answer.
    """
    wanted = ",".join(names) if names is not None else ""
    if names is not None and not wanted:
        return {}
    text = _scontrol("show", "node", *([wanted] if wanted else []))
    blocks = [block for block in re.split(r"\n(?=NodeName=)", text) if "NodeName=" in block]
    nodes = [parse_node(block) for block in blocks]
    return {node.name: node for node in nodes}


def bare_environment() -> dict[str, str]:
    """Our environment without what describes the job step that we may be in, or a container."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "SLURM_CONF" or not name.startswith(("SLURM_", "SRUN_", PYXIS))
    }


def requeue(job_id: str) -> None:
    """Give the allocation back and queue the job again.

    Raises:
        UnavailableError: Slurm refused or does not answer.
    """
    _scontrol("requeue", job_id)


def script_of(job: Job) -> Optional[Path]:
    """The file that was given to sbatch: `Command=` may be followed by its arguments."""
    words = job.command.split(" ")
    for count in range(len(words), 0, -1):
        path = Path(" ".join(words[:count]))
        with contextlib.suppress(OSError):  # with long arguments it is too long for a file's name
            if path.is_file():
                return path
    return None
