"""Reads our Markdown pages: links, headings, bash blocks and the annotated tree, as data.

Pure functions from text to data, so that the tests of the documentation can themselves be tested.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*(\S*)")
HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*$")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
PICTURE_LINK = re.compile(r"\[(!\[.*?\)\s*)\]")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)")
HTML_LINK = re.compile(r"""\b(?:src|srcset|href)=["']([^"']+)["']""")
HTML_ANCHOR = re.compile(r"""\b(?:id|name)=["']([^"']+)["']""")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:", re.IGNORECASE)
NOT_RUN = re.compile(r"<!--\s*not run:\s*(.*?)\s*-->")
AS_ROOT = re.compile(r"<!--\s*as root\s*-->")
TIME_LIMIT = re.compile(r"<!--\s*time limit:\s*(\d+)\s*s\s*-->")
TREE = re.compile(r"<!--\s*tree\s*-->")


@dataclass(frozen=True)
class Block:
    """A fenced block: the line of its fence, its language, its text and the line of text above."""

    line: int
    language: str
    text: str
    above: str

    @property
    def not_run(self) -> str | None:
        """Why the block is not run; None: it is run."""
        found = NOT_RUN.search(self.above)
        return found[1] if found else None


def _can_run(block: Block, *, root: bool) -> bool:
    for_us = root or not AS_ROOT.search(block.above)
    return block.language == "bash" and block.not_run is None and for_us


def files(root: Path) -> list[str]:
    """Every file that git knows or would add, relative to the root."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=root, check=True, capture_output=True, text=True, timeout=60)
    return sorted(name for name in done.stdout.split("\0") if name and (root / name).is_file())


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    above, fence, start, language = "", "", 0, ""
    body: list[str] = []
    for number, line in enumerate(page.splitlines(), start=1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2]:
                found.append(Block(start, language, "\n".join(body) + "\n", above))
                fence, above = "", ""
            else:
                body.append(line)
        elif mark:
            fence, start, language, body = mark[1], number, mark[2].lower(), []
        elif line.strip():
            above = line.strip()
    return found


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Lines outside of fenced blocks, inline code taken out, with their numbers."""
    fence = ""
    for number, line in enumerate(page.splitlines(), start=1):
        mark = FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not mark[2]:
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line


def links(page: str) -> list[tuple[int, str]]:
    """Targets of links and pictures within the repository, with their line numbers."""
    found = []
    for number, line in prose(page):
        bare = re.sub(r"(`+)(?:(?!\1).)+\1", "", line)
        targets = [*LINK.findall(bare), *REFERENCE.findall(bare), *HTML_LINK.findall(bare)]
        # A link around a picture holds a second one.
        targets += [inner for badge in PICTURE_LINK.findall(bare) for inner in LINK.findall(badge)]
        found += [(number, target) for target in targets if not ELSEWHERE.match(target)]
    return found


def anchors(page: str) -> set[str]:
    """The anchors that GitHub gives to the headings of a page, and those written in HTML."""
    seen: dict[str, int] = {}
    found: set[str] = set()
    for _, line in prose(page):
        found.update(HTML_ANCHOR.findall(line))
        heading = HEADING.match(line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
            slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            count = seen.get(slug, 0)
            seen[slug] = count + 1
            found.add(f"{slug}-{count}" if count else slug)
    return found


def broken_links(root: Path, name: str) -> list[str]:
    """Problems of all links of a page, one line each."""
    page = root / name
    text = page.read_text(encoding="utf-8")
    problems = []
    for number, target in links(text):
        path, _, anchor = unquote(target).partition("#")
        goal = (page.parent / path) if path else page
        where = f"{name}:{number}: {target}"
        if path.startswith("/"):
            problems.append(f"{where}: is absolute, works on no reader's machine")
        elif not goal.exists():
            problems.append(f"{where}: no such file")
        elif not goal.resolve().is_relative_to(root.resolve()):
            problems.append(f"{where}: leaves the repository")
        elif anchor and goal.suffix == ".md" and anchor not in anchors(goal.read_text("utf-8")):
            problems.append(f"{where}: no such heading")
    return problems


def script(page: str, *, root: bool) -> str:
    """One bash script of all blocks of a page that are run, in order; empty: nothing is run.

    Each block first says where it is from, so that a failure names its line. Without `root` those
    are left out that only root can run.
    """
    runs = [block for block in blocks(page) if _can_run(block, root=root)]
    if not runs:
        return ""
    parts = [f"echo '## the block at line {block.line}' >&2\n{block.text}" for block in runs]
    return "set -euo pipefail\n" + "\n".join(parts)


def time_limit_s(page: str) -> int:
    """How long the blocks of a page may take together; a comment in the page sets it."""
    found = TIME_LIMIT.search(page)
    return int(found[1]) if found else 300


def tree(page: str) -> list[str] | None:
    """Paths that the block under `<!-- tree -->` lists; None: there is no such block.

    A line is: indentation or box drawing, one or more names, two spaces, what it is. Names below a
    folder are deeper by any amount; a line that starts below the phrase above continues it.
    """
    block = next((block for block in blocks(page) if TREE.search(block.above)), None)
    if block is None:
        return None
    found: list[str] = []
    parents: list[tuple[int, str]] = []
    phrase_column = sys.maxsize
    for line in block.text.splitlines():
        bare = re.sub(r"[│├└─]", " ", line)
        indent = len(bare) - len(bare.lstrip())
        if indent >= phrase_column or not bare.strip():
            continue
        entry, _, phrase = re.split(r"(\s{2,}|$)", bare.strip(), maxsplit=1)
        phrase_column = bare.rindex(phrase) if phrase else sys.maxsize
        while parents and parents[-1][0] >= indent:
            parents.pop()
        prefix = parents[-1][1] if parents else ""
        found += [prefix + name for name in entry.split()]
        if entry.endswith("/"):
            parents.append((indent, prefix + entry.split()[-1]))
    return found
