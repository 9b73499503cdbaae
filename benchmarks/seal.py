"""What sealing adds to torch.distributed.checkpoint: size, checksum, manifest, one rename.

Alone it writes and forces to disk; sealed it writes, and the seal forces to disk and takes the
checksums. Both leave the same bytes on the disk, none in the cache only.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.figures import Row

ROOT = Path(__file__).resolve().parents[1]
PROMISED = 0.05
SAVE = ROOT / "benchmarks" / "save.py"


def measure(out: Path, rounds: int, gigabytes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Save the same state both ways, in turns.

    Returns:
        plain data; a row's samples are seconds of a save.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    path = os.pathsep.join([str(ROOT), str(ROOT / "recipes" / "llama2_fsdp")])
    run_dir = str(out / "run")
    environment = {**os.environ, "PYTHONPATH": path, "MUSTER_RUN_DIR": run_dir}
    argv = [sys.executable, str(SAVE), str(out), str(rounds), str(gigabytes)]
    done = subprocess.run(argv, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    samples: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    alone, sealed = (statistics.median(samples[name]) for name in ("alone", "sealed"))
    for name, values in samples.items():
        say(f"{name}: {', '.join(f'{value:.2f}' for value in values)} s")
    limit = alone * (1 + PROMISED)
    rows = [
        Row("torch.distributed.checkpoint alone", "none", samples["alone"]),
        Row("sealed", "none", samples["sealed"], limit, f"alone + {PROMISED:.0%}"),
    ]
    met = "met" if rows[1].met else "NOT met"
    return {
        "gigabytes": gigabytes,
        "ratio": sealed / alone,
        "rows": [row.as_json() for row in rows],
        "text": f"{gigabytes:g} GB: alone {alone:.2f} s, sealed {sealed:.2f} s: "
        f"{sealed / alone - 1:+.1%} (limit {PROMISED:+.0%}, {met}), n={rounds}",
    }
