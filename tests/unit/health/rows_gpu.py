"""GPUs, row by row."""

from __future__ import annotations

from tests.harness.fake_tools.node import FakeNode
from tests.harness.fake_tools.rows import Edit, Row


def gpu(index: int, **fields: str) -> Edit:
    """One GPU shows other values; `__` in a name stands for a dot."""

    def edit(node: FakeNode) -> None:
        row = node.parts["gpus"][index]
        row.update({name.replace("__", "."): value for name, value in fields.items()})

    return edit


def silent(node: FakeNode) -> None:
    """nvidia-smi never answers."""
    node.say("nvidia-smi", hangs=True)


def gone(index: int) -> Edit:
    """One GPU is not shown any more."""
    return lambda node: node.parts["gpus"].pop(index)


ERRORS = "ecc__errors__uncorrected__volatile__total"
ROWS = [
    Row("it answers", "nvidia_smi", "PASS"),
    Row("it hangs", "nvidia_smi", "FAIL", silent, rule="nvidia_smi.hung", action="reboot"),
    Row("our own mistake", "nvidia_smi", "UNKNOWN", lambda n: n.say("nvidia-smi", rc=2)),
    Row("all there", "gpu_count", "PASS"),
    Row("one is gone", "gpu_count", "FAIL", gone(3), rule="gpu_count.driver", action="reboot"),
    Row("no answer", "gpu_count", "UNKNOWN", silent),
    Row("none lost", "gpu_lost", "PASS"),
    Row("one is lost", "gpu_lost", "FAIL", gpu(3, serial="[GPU is lost]"), action="reboot"),
    Row("no answer", "gpu_lost", "UNKNOWN", silent),
    Row("no errors", "gpu_ecc", "PASS"),
    Row("two errors", "gpu_ecc", "FAIL", gpu(3, **{ERRORS: "2"}), action="reset", says="GPU 3"),
    Row("no answer", "gpu_ecc", "UNKNOWN", silent),
]
