"""Colours and marks that the panels share: a number is the same incident in all of them."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from resume.report.incidents import Incident

INK, QUIET, PALE = "#222222", "#8a8a8a", "#ececec"
BLUE, ORANGE, RED, SKY, GREEN, YELLOW = (
    "#0072B2",
    "#E69F00",
    "#D55E00",
    "#56B4E9",
    "#009E73",
    "#F0E442",
)


def badge(axes: Axes, x: float, y: float, incident: Incident) -> None:
    """The number of an incident in a filled circle."""
    axes.text(
        x,
        y,
        str(incident.number),
        color="white",
        fontsize=9,
        fontweight="bold",
        ha="center",
        va="center",
        zorder=6,
        bbox={"boxstyle": "circle,pad=0.22", "facecolor": RED, "edgecolor": "white"},
    )


def legend(axes: Axes, marks: Sequence[Line2D | Patch]) -> None:
    """A legend on the panel's title line, where it can cover nothing."""
    axes.legend(
        handles=list(marks),
        loc="lower right",
        bbox_to_anchor=(1.0, 1.0),
        ncols=len(marks),
        frameon=False,
        fontsize=9,
        handlelength=1.6,
        columnspacing=1.2,
        borderaxespad=0.1,
    )
