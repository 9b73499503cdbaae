"""The table of a campaign as one HTML file that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from resume.report.words import seconds
from tests.faults.judge import Row

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1400px;margin:2em auto;
padding:0 1em}h1{font-size:1.5em}h2{font-size:1.15em;margin-top:2em}div.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9em;width:100%}
th,td{text-align:left;padding:.3em .7em;border-bottom:1px solid #ddd;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td small{color:#666;display:block;max-width:32em}
.good{color:#00664f}.bad{color:#b34700;font-weight:600}
i{display:inline-block;height:.7em;vertical-align:middle}
"""
PHASES = (
    ("detect_s", "detect", "#d55e00"),
    ("decide_s", "decide", "#e69f00"),
    ("launch_s", "launch", "#56b4e9"),
    ("first_step_s", "first training step", "#0072b2"),
)
HEAD = (
    *("fault", "expected", "what came of it", "back after", "phases", "attempts"),
    *("lost", "losses", "weights", "samples", "attempts of each command"),
)


def render(rows: Sequence[Row], wall_s: float) -> str:
    """The page: a table per recipe and area, with a bar of phases in every row."""
    good = sum(row.good for row in rows)
    title = f"{good} of {len(rows)} faults met as expected"
    legend = "".join(
        f"<i style='width:.7em;background:{colour}'></i> {name} &nbsp; "
        for _, name, colour in PHASES
    )
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{title}</title><style>{_STYLE}</style></head><body>",
        f"<h1 class='{'good' if good == len(rows) else 'bad'}'>{title}</h1>",
        f"<p>{seconds(wall_s)} on a local Slurm cluster. Losses, weights and samples are compared ",
        f"with a run that nothing happened to. {legend}</p>",
    ]
    longest = max((row.recover_s or 0 for row in rows), default=0) or 1
    for recipe, area in dict.fromkeys((row.recipe, row.area) for row in rows):
        mine = [row for row in rows if (row.recipe, row.area) == (recipe, area)]
        names = "".join(f"<th>{name}</th>" for name in HEAD)
        body = "".join(_row(row, longest) for row in mine)
        parts.append(
            f"<h2>{escape(recipe)}: {area}</h2><div class='wide'><table><thead><tr>{names}</tr>"
            f"</thead><tbody>{body}</tbody></table></div>"
        )
    return "\n".join([*parts, "</body></html>", ""])


def _row(row: Row, longest: float) -> str:
    came = ": ".join(filter(None, (row.action, row.cause))) or "went on"
    text = f"{row.end}; {came}" if row.end != "stopped" else f"stopped: {row.why}"
    wrong = "".join(f"<br>{escape(problem)}" for problem in row.problems)
    commands = ", ".join(f"{name} {count}" for name, count in row.commands.items())
    cells = [
        f"<td><b>{escape(row.fault)}</b><small>{escape(row.emulates)}</small></td>",
        f"<td>{escape(row.expected)}</td>",
        f"<td class='{'good' if row.good else 'bad'}'>{escape(text)}{wrong}</td>",
        f"<td class='n'>{'' if row.recover_s is None else seconds(row.recover_s)}</td>",
        f"<td style='min-width:12em'>{_bar(row, longest)}</td>",
        f"<td class='n'>{row.attempts}</td><td class='n'>{row.lost_steps}</td>",
        *(_answer(x) for x in (row.losses_equal, row.weights_equal, row.samples_equal)),
        f"<td>{escape(commands)}</td>",
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _answer(value: bool | None) -> str:
    if value is None:
        return "<td></td>"
    return f"<td class='{'good' if value else 'bad'}'>{'equal' if value else 'differ'}</td>"


def _bar(row: Row, longest: float) -> str:
    parts = [(getattr(row, field) or 0.0, name, colour) for field, name, colour in PHASES]
    return "".join(
        f"<i title='{name} {value:.1f} s' style='width:{11 * value / longest:.2f}em;"
        f"background:{colour}'></i>"
        for value, name, colour in parts
    )
