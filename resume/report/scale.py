"""Axis of wall-clock time in a unit that people read: seconds, minutes, hours or days."""

from __future__ import annotations

from dataclasses import dataclass

_UNITS = (("days", 86400.0, 3 * 86400.0), ("hours", 3600.0, 2 * 3600.0), ("minutes", 60.0, 300.0))


@dataclass(frozen=True)
class TimeScale:
    """Turns unix times into positions on the axis."""

    start: float
    unit: str
    unit_s: float
    length: float  # of the run, in units

    @classmethod
    def of(cls, start: float, end: float) -> TimeScale:
        """The scale of a run."""
        wall_s = max(end - start, 1.0)
        for unit, unit_s, at_least in _UNITS:
            if wall_s >= at_least:
                return cls(start, unit, unit_s, wall_s / unit_s)
        return cls(start, "seconds", 1.0, wall_s)

    def at(self, time: float) -> float:
        """Position of a unix time."""
        return (time - self.start) / self.unit_s

    @property
    def limits(self) -> tuple[float, float]:
        """The axis' ends, with a little air."""
        return -0.008 * self.length, 1.012 * self.length
