"""Around a job, and Trainium, row by row."""

from __future__ import annotations

from collections.abc import Sequence

from tests.harness.fake_tools.gpus import rack
from tests.harness.fake_tools.node import Answer, FakeNode
from tests.harness.fake_tools.rows import Edit, Row, both, profile

NEURON = "/sys/devices/virtual/neuron_device"
SERIAL_3 = "1650323100003"


def process(pid: int = 4711, index: int = 3, job: str | None = None) -> Edit:
    """A process is on a GPU."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[index].processes.append(pid)
        node.files[f"/proc/{pid}/stat"] = f"{pid} (python) S 1 1 1 0 -1"
        group = f"/system.slice/slurmstepd.scope/job_{job}/step_0" if job else "/user.slice"
        node.files[f"/proc/{pid}/cgroup"] = f"0::{group}/user/task_0\n"

    return edit


def ended(node: FakeNode) -> None:
    """Meanwhile it has ended."""
    node.remove("/proc/4711")


def job(gpus: str = "2,3") -> Edit:
    """Slurm runs the check for a job."""
    return lambda node: node.environ.update({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": gpus})


def leaves(node: FakeNode) -> None:
    """A process needs a moment to go."""
    process()(node)
    before = node.tools["nvidia-smi"]

    def tool(arguments: Sequence[str]) -> Answer:
        answer = before(arguments)
        if "compute-apps" in " ".join(arguments):
            rack(node).cards[3].processes.clear()
        return answer

    node.tools["nvidia-smi"] = tool


def memory(mib: str, index: int = 3) -> Edit:
    """So much memory is taken on a GPU."""

    def edit(node: FakeNode) -> None:
        rack(node).cards[index].row["memory.used"] = mib

    return edit


def no_answer(node: FakeNode) -> None:
    """nvidia-smi does not tell processes."""
    node.say("nvidia-smi", words="compute-apps", rc=255)


def trainium(count: int = 16, **errors: int) -> Edit:
    """So many Neuron devices; errors by counter, of the last one."""

    def edit(node: FakeNode) -> None:
        profile(neuron_devices=16)(node)
        for number in range(count):
            for counter in ("mem_ecc_uncorrected", "sram_ecc_uncorrected"):
                found = errors.get(counter, 0) if number == count - 1 else 0
                at = f"{NEURON}/neuron{number}/stats/hardware/{counter}/total"
                node.files[at] = f"{found}\n"

    return edit


ROWS = [
    Row("nobody", "gpu_processes", "PASS", job(), when="prolog"),
    Row("somebody", "gpu_processes", "FAIL", both(job(), process()), action="drain",
        when="prolog", says="process 4711", gpu=SERIAL_3),
    Row("after the job", "gpu_processes", "FAIL", both(job(), process(job="7")), action="drain",
        when="epilog"),
    Row("it goes in time", "gpu_processes", "PASS", both(job(), leaves), when="epilog"),
    Row("on another job's GPU", "gpu_processes", "PASS", both(job("0,1"), process()),
        when="prolog"),
    Row("another job's, on a shared GPU", "gpu_processes", "PASS",
        both(job(), process(job="8")), when="prolog"),
    Row("has ended", "gpu_processes", "PASS", both(job(), process(), ended), when="prolog"),
    Row("all GPUs", "gpu_processes", "FAIL", process(index=0), action="drain", when="prolog"),
    Row("no answer", "gpu_processes", "UNKNOWN", no_answer, when="prolog"),
    Row("no answer, three times", "gpu_processes", "UNKNOWN", no_answer, when="epilog"),
    Row("no GPUs", "gpu_processes", "SKIP", profile(gpus=0), when="prolog"),
    Row("nothing taken", "gpu_memory_left", "PASS", job(), when="epilog"),
    Row("2 GiB taken", "gpu_memory_left", "FAIL", both(job(), memory("2048")), action="reset",
        when="epilog", gpu=SERIAL_3),
    Row("what the driver keeps", "gpu_memory_left", "PASS", both(job(), memory("1024")),
        when="epilog"),
    Row("by a process", "gpu_memory_left", "PASS", both(job(), memory("2048"), process(job="8")),
        when="epilog"),
    Row("on another job's GPU", "gpu_memory_left", "PASS", both(job("0"), memory("2048")),
        when="epilog"),
    Row("no answer", "gpu_memory_left", "UNKNOWN", no_answer, when="epilog"),
    Row("strange", "gpu_memory_left", "UNKNOWN", memory("lots"), when="prolog"),
    Row("no Trainium", "neuron_count", "SKIP"),
    Row("all there", "neuron_count", "PASS", trainium()),
    Row("one is gone", "neuron_count", "FAIL", trainium(15), action="replace", says="15 of 16"),
    Row("none", "neuron_count", "UNKNOWN", trainium(0)),
    Row("no Trainium", "neuron_ecc", "SKIP"),
    Row("no errors", "neuron_ecc", "PASS", trainium()),
    Row("memory", "neuron_ecc", "FAIL", trainium(mem_ecc_uncorrected=1), action="reboot"),
    Row("on-chip memory", "neuron_ecc", "FAIL", trainium(sram_ecc_uncorrected=2), action="reboot"),
    Row("not counted", "neuron_ecc", "UNKNOWN",
        both(trainium(), lambda node: node.remove(f"{NEURON}/neuron3/stats"))),
]  # fmt: skip
