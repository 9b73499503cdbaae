"""Takes secrets out of what steps print, should one slip through.

No step prints one. But programs quote their input in error messages, and a log is for many eyes.
Secrets are the files of one folder that only root reads.
"""

from __future__ import annotations

from pathlib import Path

_SHORTEST = 4
"""Shorter lines would blacken half the log, and are no secrets."""


def known(folder: Path) -> list[str]:
    """Every line of every file of the folder, longest first."""
    lines: set[str] = set()
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            lines.update(line for line in text.splitlines() if len(line) >= _SHORTEST)
    return sorted(lines, key=len, reverse=True)


def without(text: str, secrets: list[str]) -> str:
    """The text with *** for each secret."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
