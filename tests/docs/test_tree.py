"""The tree in the README shows the real one, and the table of exit codes the real codes."""

from __future__ import annotations

import re
from pathlib import Path

import muster.errors
from tests.docs import pages

ROOT = Path(__file__).resolve().parents[2]


def tree_problems(root: Path, names: list[str], page: str) -> list[str]:
    """What is listed and missing, and which top-level folder is there and not listed."""
    listed = pages.tree(page)
    if listed is None:
        return ["no block under a line <!-- tree -->"]
    missing = [f"{path}: no such path" for path in listed if not any(root.glob(path))]
    tops = {name.split("/")[0] for name in names if "/" in name and not name.startswith(".")}
    shown = {path.split("/")[0] for path in listed}
    return missing + [f"{top}/: not in the tree" for top in sorted(tops - shown)]


def test_readme_shows_the_real_tree() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert tree_problems(ROOT, pages.files(ROOT), page) == []


TREE = """<!-- tree -->
```text
run            starts it
recipes/       one folder is
               one experiment
  one/         README.md and so on
    a.py b.py  two files
  two/*.py     more
docs/          pages
```
"""


def test_tree_is_read() -> None:
    assert pages.tree(TREE) == [
        *("run", "recipes/", "recipes/one/", "recipes/one/a.py", "recipes/one/b.py"),
        *("recipes/two/*.py", "docs/"),
    ]
    drawn = (
        "<!-- tree -->\n```\n├── a/       first\n│   └── b/   second\n│       └── c\n└── d\n```\n"
    )
    assert pages.tree(drawn) == ["a/", "a/b/", "a/b/c", "d"]


def test_differences_are_found(tmp_path: Path) -> None:
    names = ["run", "recipes/one/a.py", "recipes/two/c.py", "tests/t.py", ".ci/run"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    assert tree_problems(tmp_path, names, TREE) == [
        "recipes/one/b.py: no such path",
        "docs/: no such path",
        "tests/: not in the tree",
    ]
    assert tree_problems(tmp_path, names, "no tree") == ["no block under a line <!-- tree -->"]


def test_exit_codes_page_lists_the_codes_of_errors_py() -> None:
    page = (ROOT / "docs/reference/exit_codes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    classes = [
        thing
        for thing in vars(muster.errors).values()
        if isinstance(thing, type) and issubclass(thing, muster.errors.MusterError)
    ]
    assert {(int(code), name) for code, name in rows} == {
        (error.code, error.__name__) for error in classes
    }
