"""What ranks do together: agree that something worked, or end with one line and one exit code."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import torch.distributed as dist

from errors import Stop

T = TypeVar("T")


def agreed(work: Callable[[], T]) -> T:
    """Do work that may fail on some ranks only; if it does, all ranks end together."""
    try:
        result = work()
    except Stop as stop:
        end_together(stop)
        raise
    end_together(None)
    return result


def end_together(problem: Stop | None) -> None:
    """If any rank has a problem, the first such rank says it and all end with its code."""
    found: list[tuple[int, str] | None] = [None] * dist.get_world_size()
    mine = None if problem is None else (problem.code, str(problem))
    dist.all_gather_object(found, mine)
    for rank, problem_there in enumerate(found):
        if problem_there is not None:
            code, line = problem_there
            if rank == dist.get_rank():
                print(line, file=sys.stderr)
            dist.barrier()  # the line is out before anybody's exit ends the others
            leave(code)


def leave(code: int) -> NoReturn:
    """End at once: a thread that still writes a checkpoint must not hold up the exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
