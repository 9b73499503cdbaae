"""The one way in which this recipe ends because of something a person can repair.

One line says where, what and the fix; the exit code tells the supervisor whether a retry can help.
"""

from typing import ClassVar


class Stop(Exception):  # noqa: N818  (it is an order to stop, not always an error)
    """End this rank with `code`, after one line on stderr."""

    CRASH: ClassVar[int] = 1  # not understood, worth another try
    USAGE: ClassVar[int] = 64
    DATA: ClassVar[int] = 65  # never retried
    UNAVAILABLE: ClassVar[int] = 69
    STORAGE: ClassVar[int] = 74  # the disk, not the node
    TEMPORARY: ClassVar[int] = 75
    DIVERGED: ClassVar[int] = 76  # the loss is not finite: back behind a checkpoint, or a person
    CONFIG: ClassVar[int] = 78  # never retried

    def __init__(self, code: int, where: str, what: str, fix: str) -> None:
        self.code = code
        super().__init__(" ".join(f"{where}: {what.rstrip('.')}. Fix: {fix}".split()))
