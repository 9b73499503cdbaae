"""The report as one HTML file that needs nothing from outside: the picture and the tables."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any, Optional

from resume.report.headline import headline, subline, verdict_on_losses
from resume.report.summary import Summary
from resume.report.words import answer, count, name_incident, seconds

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;
max-width:1200px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;line-height:1.25}h2{font-size:1.15em;margin-top:2em}
img{width:100%;height:auto}table{border-collapse:collapse;font-size:.92em}
th,td{text-align:left;padding:.25em .8em;border-bottom:1px solid #ddd;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}div.wide{overflow-x:auto}
pre{background:#f6f6f6;padding:.8em;overflow-x:auto;font-size:.85em}.bad{color:#b34700;font-weight:600}
"""
_FIRST, _LAST = 20, 180  # journal lines shown when there are more than both together


def render_page(summary: Summary, png: Optional[bytes]) -> str:
    """The page; without a picture when there is none. All text of the run is escaped."""
    title = escape(headline(summary))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{title}</h1><p>{escape(subline(summary))}</p>",
    ]
    if summary.why:
        parts.append(f"<p class='bad'>Stopped because {escape(summary.why)}</p>")
    if png is not None:
        source = base64.b64encode(png).decode()
        parts.append(f"<img alt='{title}' src='data:image/png;base64,{source}'>")
    sections = (_incidents, _losses, _faults, _attempts, _changes, _commands, _nodes)
    parts += [section(summary) for section in (*sections, _set_aside, _notes)]
    parts += [_formula(summary), _journal(summary), "</body></html>\n"]
    return "\n".join(part for part in parts if part)


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    if not body:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    return (
        f"<h2>{escape(title)}</h2><div class='wide'><table><thead><tr>{names}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"<td class='n'>{value}</td>"
    return f"<td>{'' if value is None else escape(str(value))}</td>"


def _incidents(summary: Summary) -> str:
    rows = []
    for incident in summary.incidents:
        p = incident.phases
        times = (p.detect_s, p.decide_s, p.launch_s, p.first_step_s, p.total_s) if p else ()
        cells = [seconds(time) for time in times] or [None] * 4 + [
            "not recovered" if not incident.recovered else ""
        ]
        rows.append(
            [
                incident.number,
                name_incident(incident),
                incident.detail or incident.why,
                answer(incident),
                *cells,
                incident.lost_steps,
            ]
        )
    head = ["", "incident", "detail", "answer", "detect", "decide", "launch", "first training step"]
    return _table("Incidents", [*head, "back after", "training steps lost"], rows)


def _losses(summary: Summary) -> str:
    text, good = verdict_on_losses(summary)
    lines = [text]
    base, again = summary.baseline, summary.repeated
    if base is not None and again.losses_identical is not None:
        same = "equal bit for bit" if again.losses_identical else f"{again.first_difference}"
        lines.append(f"{count(again.num_compared, 'training step')} done again: {same}")
    for name, compared in (("the uninterrupted run", base), ("repeated training steps", again)):
        if compared is not None and compared.samples_identical is not None:
            differ = f"{compared.num_samples_different} of {compared.num_samples_compared} differ"
            same = (
                "the same samples in every training step" if compared.samples_identical else differ
            )
            lines.append(f"Samples, against {name}: {same}")
    style = " class='bad'" if good is False else ""
    return "<h2>Losses</h2>" + "".join(f"<p{style}>{escape(line)}</p>" for line in lines)


def _faults(summary: Summary) -> str:
    rows = [
        [
            row["name"],
            row["node"],
            row["verdict"] or "no incident was seen",
            None if row["detect_s"] is None else seconds(row["detect_s"]),
            None if row["recover_s"] is None else seconds(row["recover_s"]),
        ]
        for row in summary.fault_rows()
    ]
    head = ["fault", "node", "verdict", "detected after", "back after"]
    return _table("Faults injected on purpose", head, rows)


def _attempts(summary: Summary) -> str:
    rows = [
        [
            a.number,
            seconds(a.started - summary.start),
            " ".join(a.nodes),
            a.resume_step,
            a.last_step,
            a.lost_before,
            a.action or ("running or cut off" if a is summary.attempts[-1] else "cut off"),
            a.cause,
            a.why,
        ]
        for a in summary.attempts
    ]
    head = ["attempt", "started after", "nodes", "resumed from", "last training step"]
    return _table("Attempts", [*head, "done again", "verdict", "cause", "why"], rows)


def _changes(summary: Summary) -> str:
    rows = [
        [seconds(max(0.0, change.time - summary.start)), change.user, change.step, change.text]
        for change in summary.changes
    ]
    return _table("Changed by a person", ["after", "who", "training step", "what"], rows)


def _commands(summary: Summary) -> str:
    rows = [
        [
            seconds(max(0.0, e.time - summary.start)),
            e.kind.replace("command_", ""),
            e.text("command"),
        ]
        for e in summary.records.events
        if e.kind in ("command_started", "command_done")
    ]
    return _table("Commands", ["after", "", "command"], rows)


def _nodes(summary: Summary) -> str:
    rows = [
        [lane.node, lane.before, lane.after, "replaced" if lane.replaced else None]
        for lane in summary.lanes
        if lane.before is not None or lane.after is not None
    ]
    return _table("Nodes in Slurm", ["node", "before the run", "after the run", ""], rows)


def _set_aside(summary: Summary) -> str:
    rows = [
        [event.text("checkpoint"), "; ".join(event.names("problems"))]
        for event in summary.records.events
        if event.kind == "set_aside"
    ]
    return _table("Checkpoints set aside", ["checkpoint", "problems"], rows)


def _notes(summary: Summary) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in summary.records.notes)
    return f"<h2>Notes on the records</h2><ul>{items}</ul>" if items else ""


def _formula(summary: Summary) -> str:
    ettr = "unknown" if summary.ettr is None else f"{summary.ettr:.4f}"
    return (
        "<h2>ETTR</h2><p>Productive training time / wall-clock time = "
        f"{summary.productive_s:.1f} s / {summary.wall_s:.1f} s = {ettr}. Productive: the "
        "durations of all training steps that were not lost. Wall clock: from the start "
        "of the first attempt to the end of the run, queueing included.</p>"
    )


def _journal(summary: Summary) -> str:
    lines = [_journal_line(line) for line in summary.records.journal]
    if len(lines) > _FIRST + _LAST:
        hidden = len(lines) - _FIRST - _LAST
        lines = [*lines[:_FIRST], f"... {hidden} lines left out ...", *lines[-_LAST:]]
    return f"<h2>Journal</h2><pre>{escape(chr(10).join(lines))}</pre>"


def _journal_line(line: Any) -> str:
    rest = {key: value for key, value in line.items() if key not in ("time", "event", "token")}
    try:
        when = datetime.fromtimestamp(line["time"], tz=timezone.utc).strftime("%F %T")
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        when = "?"
    facts = json.dumps(rest, ensure_ascii=False)
    return f"{when} UTC  token {line.get('token')}  {line.get('event')}  {facts}"
