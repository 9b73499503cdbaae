"""A fake node as real folders: `root/` for /proc, /sys and /dev, `bin/` for PATH.

Which questions the programs must answer is found out by asking them once in memory, in every mode;
so an installed node answers whatever a check asks, and nothing else.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from healthcheck import registry
from tests.harness.fake_tools.node import BOOT_ID, Answer, FakeNode, kmsg

REPLAY = Path(__file__).with_name("replay.sh")


@dataclass(frozen=True)
class Installed:
    """Where it is; `bin` goes first on PATH, `root` to --node-root, `state` to MUSTER_STATE_DIR."""

    folder: Path

    @property
    def bin(self) -> Path:
        """The programs."""
        return self.folder / "bin"

    @property
    def root(self) -> Path:
        """The files."""
        return self.folder / "root"

    @property
    def state(self) -> Path:
        """An empty folder for what checks remember."""
        return self.folder / "state"

    def order(self, program: str, faults: str) -> None:
        """Faults from now on, as replay.sh describes them; empty: none."""
        (self.folder / "answers" / program / "faults").write_text(faults, encoding="utf-8")

    def calls(self, program: str) -> list[str]:
        """The arguments of all calls so far."""
        path = self.folder / "answers" / program / "calls"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def install(node: FakeNode, folder: Path) -> Installed:
    """Write everything down; nothing of an earlier node in the same folder stays."""
    for name in ("root", "bin", "answers"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    installed = Installed(folder)
    installed.state.mkdir(exist_ok=True)
    _files(node, installed.root)
    asked = _questions(node)
    for program in node.tools:
        (installed.bin / program).symlink_to(REPLAY)
        at = folder / "answers" / program
        at.mkdir()
        for number, words in enumerate(asked.get(program, [])):
            _answer(at, number, words, node.tools[program](words))
    return installed


def _files(node: FakeNode, root: Path) -> None:
    files = {"/proc/sys/kernel/random/boot_id": BOOT_ID, **node.files}
    if node.kernel_readable:
        files["/dev/kmsg"] = kmsg(node)
    for name, content in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.symlink_to("nowhere")  # it has a name, but cannot be read, not even by root
        elif isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(str(content), encoding="utf-8")
    for name, seen in node.volumes.items():
        if seen is not None and "error" not in seen:
            (root / name.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for name, target in node.links.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def _questions(node: FakeNode) -> dict[str, list[list[str]]]:
    """All arguments with which the checks call each program, in any mode."""
    asked: dict[str, list[list[str]]] = {}
    for when in registry.MODES:
        facts = node.facts(when, limit_s=registry.LIMIT_S[when])
        registry.run_checks(registry.discover(), facts)
        for program, *words in facts.env.asked:  # type: ignore[attr-defined]
            known = asked.setdefault(program, [])
            if words not in known:
                known.append(words)
    # "a b" fits "a b c" too: the longer question is tried first.
    return {program: sorted(all_, key=len, reverse=True) for program, all_ in asked.items()}


def _answer(at: Path, number: int, words: list[str], answer: Answer) -> None:
    stem = at / f"{number:03}"
    if answer.hangs:
        answer = replace(answer, rc=0)
        (at / "faults").write_text("trap,sleep=60", encoding="utf-8")
    stem.with_suffix(".words").write_text(" ".join(words), encoding="utf-8")
    stem.with_suffix(".out").write_text(answer.out, encoding="utf-8")
    stem.with_suffix(".err").write_text(answer.err, encoding="utf-8")
    stem.with_suffix(".rc").write_text(str(answer.rc), encoding="utf-8")
