"""The tables of `muster check` and `muster watch` say what the code says."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path
from typing import get_args

from healthcheck import cli, last_run, orders, registry, suspect, watch_records
from healthcheck.finding import Status

ROOT = Path(__file__).resolve().parents[2]


def page(name: str) -> str:
    return (ROOT / "docs/reference" / name).read_text(encoding="utf-8")


def first_cells(text: str, heading: str | None = None) -> list[str]:
    """The code of the first cell of every row, of one section if a heading is given."""
    if heading is not None:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


def options(verb: str) -> set[str]:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    cli.add_parser(verbs)
    found = {o for action in verbs.choices[verb]._actions for o in action.option_strings}
    return found - {"-h", "--help"}


def test_every_option() -> None:
    for verb in ("check", "watch", "burn-in"):
        name = verb.replace("-", "_")
        listed = [cell for cell in first_cells(page(f"{name}.md")) if cell.startswith("--")]
        assert sorted(listed) == sorted(options(verb))
        usage = page(f"{name}.md").split("\n| ")[0]
        assert set(re.findall(r"--[a-z-]+", usage)) == options(verb)


def test_every_mode_and_its_limit() -> None:
    text = page("check.md")
    row = next(line for line in text.splitlines() if line.startswith("| `--when`"))
    assert set(re.findall(r"`([a-z]+)`", row)) == set(registry.MODES)
    assert registry.MODES == cli.MODES


def test_every_status_and_verdict() -> None:
    text = page("check.md")
    for status in get_args(Status):
        assert f"`{status}`" in text
    assert set(first_cells(text, "Who is at fault")) == set(get_args(suspect.Verdict))


def test_every_file_that_is_remembered() -> None:
    listed = first_cells(page("check.md"), "What is remembered")
    assert {last_run.RUN, last_run.PROLOG, "gpus.json", "strikes/"} <= set(listed)


def test_every_phase_and_order() -> None:
    text = page("watch.md")
    assert first_cells(text, "Phases of a node") == list(get_args(watch_records.Phase))
    assert first_cells(text, "Orders and HyperPod") == list(orders.ORDERS)


def written(source: str) -> set[str]:
    """The event of every `_say(...)`, `write(...)` and `write_once(...)` that names one."""
    found = set()
    for call in ast.walk(ast.parse(source)):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        first = call.args[0] if call.args else None
        if call.func.attr in ("_say", "write", "write_once") and isinstance(first, ast.Constant):
            found.add(str(first.value))
    return found


def test_every_event_of_the_log() -> None:
    sources = [ROOT / "healthcheck" / f"{name}.py" for name in ("watch", "drain", "act", "burn_in")]
    events = set().union(*(written(path.read_text("utf-8")) for path in sources if path.exists()))
    section = page("watch.md").partition("\n## Events in the log\n")[2]
    listed = set(re.findall(r"`([a-z_]+)`", section))
    assert events <= listed, events - listed


def test_an_event_in_the_source_is_found() -> None:
    assert written('self._say("a", n)\nlog.write_once("b", n)\nlog.write(f"{x}")') == {"a", "b"}
