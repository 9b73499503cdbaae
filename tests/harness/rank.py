"""What a rank that is forked from warm.py's server does: be a process that was started."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path


def become(command: list[str], cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """In the fork: be that process."""
    for stream, path in ((1, out), (2, err)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, stream)
        os.close(file)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    script, *words = command
    paths = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(Path(script).parent), *paths, *installed]
    sys.argv = [script, *words]
    runpy.run_path(script, run_name="__main__")


if __name__ == "rank":
    become(*globals()["FACTS"])
