"""Every relative link of every page leads somewhere, headings included."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", [name for name in pages.files(ROOT) if name.endswith(".md")])
def test_relative_links_lead_somewhere(name: str) -> None:
    assert pages.broken_links(ROOT, name) == []


BROKEN = [
    ("[a](missing.md)", "missing.md: no such file"),
    ("![a picture](missing.png)", "missing.png: no such file"),
    ("[![badge](missing.svg)](other.md)", "missing.svg: no such file"),
    ('<img src="missing.svg">', "missing.svg: no such file"),
    ("[a](other.md#nowhere)", "other.md#nowhere: no such heading"),
    ("[a](#nowhere)", "#nowhere: no such heading"),
    ("[a]\n\n[a]: missing.md", "missing.md: no such file"),
    ("[a](/other.md)", "/other.md: is absolute"),
    ("[a](../outside.md)", "../outside.md: leaves the repository"),
    ("```text\n[in a block](missing.md)\n```\n[a](missing.md)", "page.md:4: missing.md"),
]


@pytest.mark.parametrize(("text", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
def test_broken_link_is_found(tmp_path: Path, text: str, problem: str) -> None:
    root = tmp_path / "repo"
    root.mkdir()
    (tmp_path / "outside.md").write_text("outside")
    (root / "other.md").write_text("# Other\n")
    (root / "page.md").write_text(text)
    problems = pages.broken_links(root, "page.md")
    assert len(problems) == 1
    assert problem in problems[0]


GOOD = [
    "[a](other.md)",
    "[a](<other.md>)",
    '[a](other.md "title")',
    "[a](other.md#a-heading-with-code)",
    "[a](other.md#twice-1)",
    "[a](other.md#by-hand)",
    "[a](#here)\n## Here",
    "[a](.)",
    "[a](https://example.org/x.md) <me@example.org> [b](mailto:me@example.org)",
    "`[not a link](missing.md)`",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_link_is_accepted(tmp_path: Path, text: str) -> None:
    other = '# A heading, with `code`!\n## Twice\n## Twice\n<a id="by-hand"></a>\n'
    (tmp_path / "other.md").write_text(other)
    (tmp_path / "page.md").write_text(text)
    assert pages.broken_links(tmp_path, "page.md") == []
