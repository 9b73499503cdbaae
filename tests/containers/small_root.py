"""A root file system of this machine's own programs, small enough to be made for a test.

In place of the frameworks it has modules that only have a name.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    *("bash", "sh", "env", "cat", "rm", "mv", "mkdir", "mktemp", "ls", "id"),
    *("sleep", "date", "python3"),
)
STUBS = (
    *("torch/__init__", "torch/distributed/__init__", "torch/distributed/checkpoint", "numpy"),
    *("yaml", "tokenizers", "sentencepiece", "pyarrow", "psutil", "lightning/__init__"),
    *("lightning/pytorch", "megatron/core/dist_checkpointing", "nemo/collections/llm"),
)


def make_root(root: Path) -> None:
    """Write it."""
    for folder in ("usr/bin", "usr/lib", "usr/lib64", "etc", "tmp", "proc", "sys", "dev", "opt"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    for name in PROGRAMS:
        program = Path(f"/usr/bin/{name}")
        _copy_with_libraries(program.resolve(), root)
        if program.resolve() != program:
            (root / "usr/bin" / name).symlink_to(program.resolve())
    system = Path(f"/usr/lib/{Path('/usr/bin/python3').resolve().name}")
    left_out = shutil.ignore_patterns("test", "idlelib", "__pycache__", "config-*", "ensurepip")
    shutil.copytree(system, root / str(system).lstrip("/"), ignore=left_out, dirs_exist_ok=True)
    for extension in system.glob("lib-dynload/*.so"):
        _copy_with_libraries(extension, root)
    for stub in STUBS:
        module = root / f"usr/lib/python3/dist-packages/{stub}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("")


def _copy_with_libraries(program: Path, root: Path) -> None:
    """A program and every library that it loads, at their own places."""
    listing = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False)
    libraries = [word for word in listing.stdout.split() if word.startswith("/")]
    for name in (str(program), *libraries):
        target = root / name.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(name, target)
