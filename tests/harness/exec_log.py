"""Builds exec_log.c, which writes down every program that is started, and reads what it wrote."""

from __future__ import annotations

from pathlib import Path

from muster import process

SOURCE = Path(__file__).with_suffix(".c")


class ExecLog:
    """The words and environments of all programs that are started with `environment`."""

    def __init__(self, folder: Path) -> None:
        """Build it.

        Raises:
            FileNotFoundError: there is no compiler.
        """
        self.library = folder / "exec_log.so"
        self.file = folder / "exec.log"
        words = ["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(self.library)]
        built = process.run([*words, str(SOURCE), "-ldl"], 60)
        if not built.ok:
            raise FileNotFoundError(built.reason)
        self.file.touch()
        self.file.chmod(0o666)

    @property
    def environment(self) -> dict[str, str]:
        """For the first program; those that it starts inherit it."""
        return {"LD_PRELOAD": str(self.library), "EXEC_LOG": str(self.file)}

    def words(self) -> bytes:
        """All of them, each with a zero byte behind it."""
        return self.file.read_bytes()
