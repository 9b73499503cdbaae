"""A regular expression that is compiled when it is first used.

A health check starts anew every few seconds on every node and uses few of its patterns; compiling
all of them is a third of its start.
"""

from __future__ import annotations

import re
from typing import Any, cast


class _Lazy:
    def __init__(self, pattern: str, flags: int) -> None:
        self._source = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        """The pattern's own methods; kept, so that the second use costs nothing."""
        found = getattr(re.compile(*self._source), name)
        self.__dict__[name] = found
        return found


def pattern(text: str, flags: int = 0) -> re.Pattern[str]:
    """As `re.compile`, later."""
    return cast("re.Pattern[str]", _Lazy(text, flags))
