"""SIGSTOP to the srun that started the ranks: it neither reports nor ends; they train on."""

import signal

from tests.faults.fault import fault, goes_on
from tests.faults.stage import Stage
from tests.harness import processes


@fault(goes_on())
def stop_launcher(stage: Stage) -> None:
    stage.hit(stage.batch_host)
    processes.send(lambda: processes.launchers(stage.run), "launcher", signal.SIGSTOP)
