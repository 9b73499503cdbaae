"""Small real programs for PATH: a fake Slurm client whose answers are files that a test writes."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

_SCONTROL = """\
cd {state} || exit 9
echo "$*" >>calls
case "$1 $2" in
  "show job") cat job ;;
  "show node") cat nodes ;;
  "show hostnames") cat hosts ;;
  "requeue "*) echo "$2" >>requeued && sed -i 's/Restarts=[0-9]*/Restarts=1/' job ;;
  "ping "*) echo "Slurmctld(primary) at head is UP" ;;
esac
"""


def put(folder: Path, name: str, text: str) -> Path:
    """An executable file; a text without `#!` is for bash."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return path


def job_record(**values: object) -> str:
    """A job as `scontrol show job` prints it, cut to what is read."""
    v = {
        "JobId": "7", "JobName": "train", "JobState": "RUNNING", "Reason": "None", "Restarts": 0,
        "Requeue": 1, "NodeList": "n1,n2", "BatchHost": "n1", "Command": "/r/run.sbatch",
        "StartTime": "2024-06-01T00:00:00", "PreemptTime": "None", **values,
    }  # fmt: skip
    return (
        f"JobId={v['JobId']} JobName={v['JobName']}\n"
        f"   UserId=u(1000) GroupId=u(1000) MCS_label=N/A\n"
        f"   JobState={v['JobState']} Reason={v['Reason']} Dependency=(null)\n"
        f"   Requeue={v['Requeue']} Restarts={v['Restarts']} BatchFlag=1 Reboot=0 ExitCode=0:0\n"
        f"   StartTime={v['StartTime']} EndTime=Unknown Deadline=N/A\n"
        f"   PreemptEligibleTime=None PreemptTime={v['PreemptTime']}\n"
        f"   NodeList={v['NodeList']}\n   BatchHost={v['BatchHost']}\n"
        f"   Command={v['Command']}\n   WorkDir=/r\n"
    )


def node_record(name: str, state: str = "ALLOCATED", **values: object) -> str:
    """A node as `scontrol show node` prints it, cut to what is read."""
    v = {"NodeAddr": "127.0.0.1", "Port": 6818, "Reason": "", "BootTime": "2024-01-01T00:00:00"}
    v.update(values)
    reason = f"   Reason={v['Reason']}\n" if v["Reason"] else ""
    return (
        f"NodeName={name} Arch=x86_64 CoresPerSocket=1 \n"
        f"   NodeAddr={v['NodeAddr']} NodeHostName={name} Port={v['Port']} Version=22.05.8\n"
        f"   OS=Linux 6.1.0 #1 SMP Debian 6.1.0-1 (2023-05-08) \n"
        f"   State={state} ThreadsPerCore=1 TmpDisk=0 Weight=1\n"
        f"   Partitions=main,big \n   BootTime={v['BootTime']} LastBusyTime=None\n"
        f"{reason}\n"
    )


@dataclass(frozen=True)
class Scontrol:
    """A fake `scontrol` in `bin` that answers from files in `state`."""

    bin: Path
    state: Path

    @classmethod
    def install(cls, bin_folder: Path, state: Path) -> Scontrol:
        """Put it into a folder of PATH, with one running job 7 on n1 and n2."""
        state.mkdir(parents=True, exist_ok=True)
        put(bin_folder, "scontrol", _SCONTROL.format(state=shlex.quote(str(state))))
        one = cls(bin_folder, state)
        one.job()
        one.nodes(node_record("n1"), node_record("n2"))
        return one

    def job(self, **values: object) -> None:
        """What `show job` answers from now on."""
        (self.state / "job").write_text(job_record(**values), encoding="utf-8")

    def nodes(self, *records: str) -> None:
        """What `show node` answers from now on."""
        (self.state / "nodes").write_text("\n".join(records), encoding="utf-8")

    @property
    def requeued(self) -> list[str]:
        """Job numbers that were requeued, one for each call."""
        path = self.state / "requeued"
        return path.read_text(encoding="utf-8").split() if path.exists() else []
