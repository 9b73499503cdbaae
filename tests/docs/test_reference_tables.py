"""The tables of the reference pages say what the code says: keys, defaults, events, variables."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import resume
from healthcheck.profile import Profile
from healthcheck.profile import names as profile_names
from lifecycle.description.model import Description
from muster.image import cli as image_cli
from muster.image import preflight
from muster.image.catalogue import Fabric, Image
from muster.image.contract import RULES
from muster.recipe import Recipe
from muster.site import Site
from resume import cli, launch
from resume.report import words
from resume.verdict import CAUSES

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
SOURCES = sorted((ROOT / "resume").glob("*.py"))
NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", Path: "path"}


def rows(page: str, heading: str | None = None) -> list[list[str]]:
    """Cells of all table rows whose first cell is code; of one section, if a heading is given."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    if heading is not None:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def code(cell: str) -> list[str]:
    """All `code` words of a cell."""
    return re.findall(r"`([^`]*)`", cell)


def type_name(hint: Any) -> str:
    """A type as the pages call it."""
    inner = typing.get_args(hint)
    if type(None) in inner:
        return f"{type_name(inner[0])} or null"
    if typing.get_origin(hint) is list:
        return f"list of {type_name(inner[0])}"
    if typing.get_origin(hint) is dict:
        return f"mapping of {type_name(inner[1])}"
    return NAMES[hint]


def default_name(field: dataclasses.Field[Any]) -> str:
    """A default as one writes it in YAML."""
    if field.default_factory is not dataclasses.MISSING:
        return json.dumps(field.default_factory(), default=str)
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, (str, Path)) else json.dumps(value)


def keys(kind: type, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, type, default) of a dataclass, inner ones written out."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name, hint = prefix + field.name, hints[field.name]
        inner = typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            yield from keys(typing.cast("type", hint), f"{name}.")
        elif inner and dataclasses.is_dataclass(inner[0]):
            several = "[]" if typing.get_origin(hint) is list else ""
            yield from keys(typing.cast("type", inner[0]), f"{name}{several}.")
        else:
            yield name, type_name(hint), default_name(field)


@pytest.mark.parametrize(
    ("page", "heading", "kind"),
    [
        ("recipe_yaml.md", None, Recipe),
        ("site_yaml.md", None, Site),
        ("check.md", "Profiles", Profile),
        ("cluster_yaml.md", None, Description),
        ("image.md", "images.yaml: fabric", Fabric),
        ("image.md", "images.yaml: images", Image),
    ],
)
def test_every_key_with_type_and_default(page: str, heading: str | None, kind: type) -> None:
    table = [row for row in rows(page, heading) if len(row) == 4]
    listed = [(code(key)[0], hint, code(default)[0]) for key, hint, default, _ in table]
    assert sorted(listed) == sorted(keys(kind))
    assert all(row[3] for row in table)


def test_every_profile() -> None:
    listed = [
        name for row in rows("check.md", "Profiles") if len(row) == 2 for name in code(row[0])
    ]
    assert sorted(["auto", *listed]) == profile_names()


def literal_keys(scope: ast.AST, name: str) -> set[str]:
    """Keys of the dict literals that a scope assigns to a name."""
    return {
        str(key.value)
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
        if any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    }


def written_events(source: str) -> dict[str, set[str]]:
    """{event: keys} of all `note("event", key=...)` and `append("event", key=...)` calls."""
    found: dict[str, set[str]] = {}
    for scope in ast.walk(ast.parse(source)):
        if not isinstance(scope, ast.FunctionDef):
            continue
        for call in ast.walk(scope):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr not in ("note", "append") or not (call.args and call.keywords):
                continue
            if not isinstance(call.args[0], ast.Constant):
                continue
            event = found.setdefault(str(call.args[0].value), set())
            for keyword in call.keywords:
                if keyword.arg is not None:
                    event.add(keyword.arg)
                elif isinstance(keyword.value, ast.Name):
                    event |= literal_keys(scope, keyword.value.id)
    return found


def test_events_and_their_keys() -> None:
    written: dict[str, set[str]] = {}
    for source in SOURCES:
        for event, names in written_events(source.read_text(encoding="utf-8")).items():
            written.setdefault(event, set()).update(names)
    listed = {code(event)[0]: set(code(names)) for event, names, _ in rows("journal.md", "Events")}
    assert listed == written


def test_an_event_in_the_source_is_found() -> None:
    source = 'def f(s):\n    facts = {"b": 1}\n    s.note("x", a=1, **facts)\n    [].append("y")\n'
    assert written_events(source) == {"x": {"a", "b"}}


def given_causes() -> set[str]:
    """The causes that verdicts are made with."""
    calls = [
        node
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Verdict"
    ]
    second = [call.args[1] for call in calls if len(call.args) > 1]
    return {str(c.value) for c in second if isinstance(c, ast.Constant) and c.value is not None}


def test_every_cause_has_its_row() -> None:
    listed = {cause for row in rows("journal.md", "Causes") for cause in code(row[0])}
    assert listed == set(words._NAMES)
    assert given_causes() <= listed


def test_kinds_of_causes() -> None:
    listed = {code(cause)[0]: (kind, action) for cause, kind, action in rows("journal.md", "Kinds")}
    assert listed == CAUSES


def test_every_variable_of_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    here = Path("/run")
    plan = launch.LaunchPlan(
        here, here, 1, 1, "true", ["n1"], 1, None, None, here, "10.0.0.1", 29500
    )
    exported = re.findall(r"(\w+)=\$SLURM", launch._RANK_SH)
    listed = [name for row in rows("train_contract.md", "Variables") for name in code(row[0])]
    assert sorted(listed) == sorted([*launch.environment(plan), *exported])


def test_every_option_of_the_verbs() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    cli.add_parser(verbs)
    for verb in ("run", "verify", "restore", "audit", "report"):
        actions = verbs.choices[verb]._actions
        options = {o for a in actions for o in a.option_strings if o not in ("-h", "--help")}
        listed = {o for row in rows("run.md", f"muster {verb}") for o in code(row[0])}
        assert options == {option.split()[0] for option in listed if option.startswith("--")}


def test_every_member_of_run() -> None:
    fields = {field.name for field in dataclasses.fields(resume.Run)}
    public = fields | {name for name in vars(resume.Run) if not name.startswith("_")}
    members = [name for row in rows("train_contract.md", "The library") for name in code(row[0])]
    assert {re.split(r"[.(]", name)[1] for name in members} == public


def test_every_option_of_muster_image() -> None:
    parser = argparse.ArgumentParser()
    verbs = parser.add_subparsers()
    image_cli.add_parser(verbs)
    (inner,) = (a for a in verbs.choices["image"]._actions if isinstance(a.choices, dict))
    assert isinstance(inner.choices, dict)
    real = {
        option: {
            verb for verb, one in inner.choices.items() if option in one._option_string_actions
        }
        for one in inner.choices.values()
        for option in one._option_string_actions
        if option not in ("-h", "--help")
    }
    table = [row for row in rows("image.md", "Verbs") if len(row) == 3]
    assert {code(option)[0]: set(of.split(", ")) for option, of, _ in table} == real
    listed = [code(row[0])[0] for row in rows("image.md", "Verbs") if len(row) == 2]
    assert {words.split()[2] for words in listed} == set(inner.choices)


def test_every_rule_of_muster_image_check() -> None:
    assert {code(rule)[0]: text for rule, text in rows("image.md", "Rules of check")} == RULES
    asked = {code(rule)[0]: text for rule, text in rows("image.md", "Rules of preflight")}
    assert asked == preflight.RULES
