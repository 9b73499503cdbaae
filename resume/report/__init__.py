"""`muster report`: what happened to a run, so that somebody who was not there understands it.

    reading -> attempts, incidents, lanes, losses -> summary -> picture, page

Everything up to the summary is standard library and pure but for `reading`; only `picture` needs
matplotlib and is imported when a picture is wanted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Optional

from muster.errors import CreateError, UnavailableError
from resume.durable import write_whole
from resume.report.page import render_page
from resume.report.reading import read_baseline, read_run
from resume.report.summary import Summary, build_summary

__all__ = ["Summary", "summarise", "write_report"]


def summarise(
    run_dir: Path,
    *,
    baseline: Optional[Path] = None,
    faults: Optional[Iterable[Any]] = None,
    cluster_before: Optional[Mapping[str, Any]] = None,
    cluster_after: Optional[Mapping[str, Any]] = None,
) -> Summary:
    """The story of a run and its figures; writes nothing.

    Args:
        run_dir: RUN_DIR with at least journal.jsonl.
        baseline: RUN_DIR of an uninterrupted run of the same training, to compare with.
        faults: injected faults, {"time", "name", "node", "kind"}; default: faults.jsonl.
        cluster_before: node -> state before the run; default: nodes.json.
        cluster_after: node -> state after the run; default: nodes.json.

    Raises:
        DataError: there is no journal, or the baseline holds no training step.
    """
    records = read_run(run_dir, faults=faults, before=cluster_before, after=cluster_after)
    return build_summary(records, None if baseline is None else read_baseline(baseline))


def write_report(
    run_dir: Path,
    out_dir: Optional[Path] = None,
    *,
    baseline: Optional[Path] = None,
    faults: Optional[Iterable[Any]] = None,
    cluster_before: Optional[Mapping[str, Any]] = None,
    cluster_after: Optional[Mapping[str, Any]] = None,
) -> Summary:
    """Write report.png, report.html and summary.json into `out_dir` (default: RUN_DIR).

    Raises:
        DataError: there is no journal, or the baseline holds no training step.
        UnavailableError: matplotlib is not installed.
        CreateError: `out_dir` cannot be written.
    """
    summary = summarise(
        run_dir,
        baseline=baseline,
        faults=faults,
        cluster_before=cluster_before,
        cluster_after=cluster_after,
    )
    png = _draw(summary)
    folder = run_dir if out_dir is None else out_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.png").write_bytes(png)
        write_whole(folder / "report.html", render_page(summary, png))
        write_whole(folder / "summary.json", json.dumps(summary.as_json(), indent=2) + "\n")
    except OSError as error:
        fix = "name a folder that you may write: --out DIR"
        raise CreateError(str(folder), f"the report cannot be written: {error}", fix) from error
    return summary


def _draw(summary: Summary) -> bytes:
    try:
        from resume.report.picture import draw_png  # noqa: PLC0415  (only a picture needs it)
    except ImportError as error:
        raise UnavailableError(
            "report", f"the picture needs matplotlib ({error})", "pip install matplotlib"
        ) from error
    return draw_png(summary)
