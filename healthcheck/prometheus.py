"""Findings as a file for node_exporter's textfile collector.

The time of the run is a metric of its own, because that collector refuses files with timestamps on
samples: an alert on its age finds a check that has stopped running. The file is replaced as a
whole, so a finding that is gone is gone from the file too.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from healthcheck.finding import plain
from healthcheck.output import Report
from muster.errors import CreateError
from muster.ordinary import require_ordinary

STATUS = ("PASS", "WARN", "FAIL", "SKIP", "UNKNOWN")
"""The value of a status is its place here."""
_WORST_LAST = ("PASS", "SKIP", "UNKNOWN", "WARN", "FAIL")


def text(report: Report, now: float) -> str:
    """The whole file; of several findings of one check about one GPU the worst counts."""
    values: dict[tuple[str, str], str] = {}
    for finding in sorted(report.findings, key=lambda f: _WORST_LAST.index(f.status)):
        values[finding.check, plain(finding.gpu or "")] = finding.status
    mode = f'mode="{report.when}"'
    return "\n".join(
        [
            "# HELP muster_check_status Worst finding: 0 pass, 1 warn, 2 fail, 3 skip, 4 unknown.",
            "# TYPE muster_check_status gauge",
            *(
                f'muster_check_status{{{mode},check="{check}",gpu="{gpu}"}} {STATUS.index(status)}'
                for (check, gpu), status in sorted(values.items())
            ),
            "# HELP muster_node_fit Whether the node passed: 1 fit, 0 unfit.",
            "# TYPE muster_node_fit gauge",
            f"muster_node_fit{{{mode}}} {0 if report.unfit else 1}",
            "# HELP muster_check_time_seconds When the checks ran, Unix time.",
            "# TYPE muster_check_time_seconds gauge",
            f"muster_check_time_seconds{{{mode}}} {now:.3f}",
            "",
        ]
    )


def write(path: Path, report: Report, now: float) -> None:
    """Replace the file; a link stays one.

    Raises:
        CreateError: it cannot be written, or is a device.
    """
    require_ordinary(path, "name another file")
    path = Path(os.path.realpath(path))
    draft = path.with_name(f".{path.name}.{os.getpid()}")  # no .prom at its end: not collected
    try:
        draft.write_text(text(report, now), encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise CreateError(str(path), str(error.strerror), "name another file") from error
