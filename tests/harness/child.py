"""Work in a forked child: what it changes in libraries, or leaves open, ends with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

LIMIT_S = 300


@dataclass(frozen=True)
class Child:
    """A child that is at work."""

    pid: int
    reading: int

    def result(self) -> Any:
        """What the work returns; a text that begins with ! for an exception, or any other end.

        Raises:
            TimeoutError: it took too long, which says nothing about what it would have found.
        """
        with os.fdopen(self.reading) as pipe:
            text = pipe.read()
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGALRM:
            raise TimeoutError(f"a child was not through after {LIMIT_S} s")
        return json.loads(text) if text else f"!ended with {code}"


def start(work: Callable[[], Any]) -> Child:
    """Begin the work, which returns what JSON can hold."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.alarm(LIMIT_S)
        warnings.simplefilter("ignore")  # before.py does it for a run
        if "torch" in sys.modules:
            # Threads of the parent's pool are not here; work for several would wait for them.
            sys.modules["torch"].set_num_threads(1)
        try:
            found = work()
        except BaseException as error:  # noqa: BLE001  (it is the result)
            found = f"!{type(error).__name__}: {error}\n{traceback.format_exc()}"
        with os.fdopen(writing, "w") as pipe:
            pipe.write(json.dumps(found))
        os._exit(0)
    os.close(writing)
    return Child(pid, reading)


def in_child(work: Callable[[], Any]) -> Any:
    """What the work returns, from a fork; an exception there becomes a text that begins with !"""
    return start(work).result()
