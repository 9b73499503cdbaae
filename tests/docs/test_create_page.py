"""docs/reference/create.md says what the steps' files and the command line say."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from lifecycle import cli
from lifecycle.description.model import ROLES
from lifecycle.runner import step as steps
from lifecycle.runner.order import in_order

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "create.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_step_with_what_its_head_says() -> None:
    expected = [
        [
            f"`{step.name}`",
            "all" if step.roles == ROLES else " ".join(step.roles),
            " ".join(f"`{word}`" for word in step.when) or "always",
            " ".join(f"`{need}`" for need in step.needs) or "-",
            step.summary + (f"; optional: {step.optional}" if step.optional else ""),
        ]
        for step in in_order(steps.read_steps(ROOT / "lifecycle" / "steps"))
    ]
    assert rows("Steps") == expected


def test_every_key_of_a_head() -> None:
    assert [row[0].strip("`") for row in rows("The head of a step")] == list(steps._KEYS)


def test_every_option() -> None:
    verbs = argparse.ArgumentParser().add_subparsers()
    cli.add_parser(verbs)
    options = {
        verb: {o for a in verbs.choices[verb]._actions for o in a.option_strings} - {"-h", "--help"}
        for verb in ("create", "describe")
    }
    described = (ROOT / "docs" / "reference" / "cluster_yaml.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `(--[a-z-]+)", described, re.MULTILINE))
    assert listed == options["describe"]
    own = {row[0].strip("`").split()[0] for row in rows("Options")}
    assert own | (listed - {"--json"}) == options["create"]


def test_every_entry() -> None:
    scripts = {path.name for path in (ROOT / "lifecycle").glob("*.sh")}
    assert {row[0].strip("`") for row in rows("Entries")} == scripts
