"""How much a health check costs: processor time and time on the clock, as a node would run it.

The fit node of the tests, eight GPUs with their fabric and a long kernel log, as real folders and
replay programs that answer at once; `muster` as the one file that is installed on nodes. The best
of all rounds counts: a busy machine makes the others longer.
"""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.harness.fake_tools import good
from tests.harness.fake_tools.install import install
from tests.sessions.archive import pack

ROOT = Path(__file__).resolve().parents[1]
KERNEL_LINES = 5000  # of a node that has been up for weeks
# What is promised: (CPU, clock), seconds; None: only the mode's own limit.
PROMISED: dict[str, tuple[float, float] | None] = {
    "start": (0.15, 0.15),
    "prolog": (0.3, 0.5),
    "epilog": None,
    "gate": None,
    "suspect": None,
    "periodic": None,
}


@dataclass(frozen=True)
class Cost:
    """Seconds, and how many programs were started."""

    cpu: float
    wall: float
    programs: int = 0


def measure(work: Path, rounds: int, say: Callable[[str], None]) -> dict[str, Any]:
    """All modes, one after the other.

    Returns:
        plain data; a row has seconds of CPU and on the clock, and how many programs were started.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    rows, lines = [], [f"{'':10}{'CPU':>8}{'clock':>9}{'programs':>10}   promised"]
    for name, cost in costs(work, rounds):
        promised = PROMISED[name]
        met = None if promised is None else cost.cpu <= promised[0] and cost.wall <= promised[1]
        rows.append({"mode": name, **asdict(cost), "promised_s": promised, "met": met})
        limit = f"{promised[0]:g} s, {promised[1]:g} s" if promised else ""
        lines.append(
            f"{name:10}{cost.cpu:7.3f}s{cost.wall:8.3f}s{cost.programs:10}   {limit}"
            f"{' NOT met' if met is False else ''}"
        )
        say(lines[-1])
    return {"rounds": rounds, "rows": rows, "text": "\n".join(lines)}


def costs(folder: Path, rounds: int) -> Iterator[tuple[str, Cost]]:
    """The best of some runs of every mode."""
    node = good.node()
    for number in range(KERNEL_LINES):
        node.log(f"veth{number}: entered promiscuous mode", number / 100)
    at = install(node, folder)
    (folder / "site.yaml").write_text("profile: h100_sxm\n")
    environ = {
        "PATH": f"{at.bin}:/usr/bin:/bin",
        "MUSTER_SITE": str(folder / "site.yaml"),
        "MUSTER_STATE_DIR": str(at.state),
        "SLURMD_NODENAME": "n3",
    }
    muster = [sys.executable, "-I", str(archive(folder))]
    for name in PROMISED:
        words = ["--when", name, "--node-root", str(at.root)] if name != "start" else ["--help"]
        before = sum(len(at.calls(program)) for program in node.tools)
        found = [run([*muster, "check", *words], environ) for _ in range(rounds)]
        asked = sum(len(at.calls(program)) for program in node.tools) - before
        cpu, wall = min(one.cpu for one in found), min(one.wall for one in found)
        yield name, Cost(cpu, wall, round(asked / rounds))


def run(argv: Sequence[str], environ: dict[str, str]) -> Cost:
    """One run, with all that it starts."""
    before, began = used(), time.monotonic()
    subprocess.run(argv, env=environ, capture_output=True, check=False, cwd="/")
    return Cost(used() - before, time.monotonic() - began)


def used() -> float:
    """CPU seconds of all children so far."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def archive(folder: Path) -> Path:
    """The one file, without what only some verbs need."""
    import yaml  # noqa: PLC0415  (packed, not used)

    parts, file = folder / "parts", folder / "muster.pyz"
    for package in ("muster", "healthcheck", "resume"):
        shutil.copytree(ROOT / package, parts / package)
    shutil.copytree(Path(yaml.__file__).parent, parts / "muster" / "_vendor" / "yaml")
    (parts / "__main__.py").write_text(
        "import sys\nfrom muster.cli import main\nsys.exit(main())\n"
    )
    pack(parts, file)
    return file
