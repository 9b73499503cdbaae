"""Every rule, from the code itself: `muster lint --list`, and the reference page.

python3 -m slurm.lint.catalogue > docs/reference/lint_rules.md
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm.lint.linter import rules

_HEAD = """\
# Rules of muster lint

Written from the code by `python3 -m slurm.lint.catalogue`. An **error** is something that does not
do what is written, or loses work; a **warning** costs something as soon as anything fails.
[How to use it](../how-to/lint_batch_scripts.md), [options and exit codes](lint.md).

"""


def lines() -> Iterator[str]:
    """For people: two lines a rule."""
    for one in rules():
        yield f"{one.name} ({one.severity}): {one.holds}"
        yield f"    {one.why}"


def page() -> str:
    """The reference page."""
    rows = [
        f"| `{one.name}` | {one.severity} | {_cell(one.holds)} | {_cell(one.why)} "
        f"| {_cell(one.fix)} |\n"
        for one in rules()
    ]
    head = "| rule | severity | holds when | otherwise | fix |\n|---|---|---|---|---|\n"
    return "".join([_HEAD, head, *rows])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    print(page(), end="")
