"""A small process that outlives the supervisor: for want of memory the larger one is killed.

The guards on the nodes bring a job back that has lost its supervisor. But they need seconds to
start, and have to be started anew when srun has given them up; a supervisor that is killed just
then would end its job for good. So the process of the batch script stays, and does what a guard
does. If it is killed itself, so is the supervisor, and it is up to the guards.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from types import FrameType
from typing import Optional

from muster import slurm
from muster.errors import MusterError
from resume import rescue
from resume.guard import GuardArguments
from resume.lease import LeaseWatch

_PASSED_ON = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT)
_HURRY_S = 1.0  # the supervisor is known to be dead: the shortest stillness of the lease will do
_PR_SET_PDEATHSIG = 1


def keep_watch(arguments: GuardArguments, host: str) -> None:
    """Split in two: returns in the supervisor; the other one lives until that has ended.

    Args:
        arguments: as for a guard of this run.
        host: the batch host.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _end_with(parent)
        return
    minder = _Minder(child)
    minder.arm()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os._exit(minder.until_over(arguments, host))


def _end_with(parent: int) -> None:
    """SIGKILL for this process when its parent has ended."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


class _Minder:
    def __init__(self, child: int) -> None:
        self._child: Optional[int] = child

    def arm(self) -> None:
        """Pass signals on: Slurm sends some to the batch script alone."""
        for number in _PASSED_ON:
            typed = number == signal.SIGINT and os.isatty(0)  # a terminal tells both
            if typed or signal.getsignal(number) == signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN)
            else:
                signal.signal(number, self._pass_on)

    def _pass_on(self, number: int, _frame: Optional[FrameType]) -> None:
        if self._child is None:
            os._exit(128 + number)  # Slurm ends the job, as it was asked to
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, number)

    def until_over(self, arguments: GuardArguments, host: str) -> int:
        """The supervisor's exit code; if it was killed, its job has been requeued before."""
        _, status = os.waitpid(self._child or 0, 0)
        self._child = None
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        if -code not in _PASSED_ON:  # those are of somebody who wants it to end
            with contextlib.suppress(OSError):  # nobody may read it any more
                print(f"muster run: was killed by signal {-code}", file=sys.stderr, flush=True)
            bring_back(arguments, host)
        return 128 - code


def bring_back(arguments: GuardArguments, host: str) -> None:
    """Requeue the job, unless it ended on purpose or may not come back."""
    watch = LeaseWatch(arguments.run_dir)
    watch.still_s()
    try:
        if not slurm.show_job(arguments.job).requeue:
            return
    except MusterError:
        pass  # Slurm is away: it is asked until it answers
    rescue.rescue(arguments, host, watch, "supervisor_lost", _HURRY_S)
