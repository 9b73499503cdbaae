"""One `srun` line as its user typed it, taken apart: what is his, and what muster must decide.

Nodes are muster's to choose, so their number, the tasks on each and the program are read from the
line. Every other option is handed on as it stands, those of other plugins too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.errors import UsageError

_SHORT = re.compile(r"-([EHIklOQsuvXZ]*)([A-Za-z])(.*)", re.DOTALL)
_LONG = {
    "N": "nodes",
    "n": "ntasks",
    "D": "chdir",
    "w": "nodelist",
    "x": "exclude",
    "r": "relative",
    "Z": "no-allocate",
}
_OURS = frozenset({"nodes", "ntasks", "ntasks-per-node", "chdir", "nodelist", "auto-resume"})
_IMPOSSIBLE = {
    "exclude": "leave it out: muster uses the fit nodes of the job",
    "relative": "leave it out: muster uses the fit nodes of the job",
    "jobid": "run it in that job",
    "multi-prog": "start one program that looks at SLURM_PROCID",
    "no-allocate": "leave it out",
    "pty": "use plain srun, a terminal cannot be moved to another node",
    "het-group": "use plain srun: a heterogeneous step cannot be moved",
    "ntasks-per-gpu": "give --ntasks or --ntasks-per-node",
}


@dataclass(frozen=True)
class Step:
    """What `srun OPTIONS -- PROGRAM` asks for.

    Attributes:
        options: for srun, as typed, without those that muster decides.
        program: a line for bash.
        nodes: nodes that it runs on.
        ranks_per_node: tasks on each.
        folder: where it runs.
        export: value of --export; None: the whole environment.
    """

    options: tuple[str, ...]
    program: str
    nodes: int
    ranks_per_node: int
    folder: Path
    export: Optional[str] = None

    def export_option(self, names: Sequence[str]) -> list[str]:
        """--export such that our variables, too, reach the ranks."""
        if self.export is None:
            return []
        if "ALL" in self.export.split(","):
            return [f"--export={self.export}"]
        kept = [] if self.export in ("NONE", "NIL") else [self.export]
        return [f"--export={','.join([*kept, *names])}"]


def parse(words: Sequence[str], environment: Mapping[str, str], allocated: int, here: Path) -> Step:
    """Take apart OPTIONS -- PROGRAM ARGUMENTS.

    Args:
        words: of the command line, without `srun` itself.
        environment: of the batch script; #SBATCH lines arrive there as SLURM_NTASKS_PER_NODE etc.
        allocated: nodes of the job.
        here: the present folder.

    Raises:
        UsageError: a step that cannot be moved to other nodes, or of which the shape is not clear.
    """
    if "--" not in words or not words[words.index("--") + 1 :]:
        raise UsageError("srun", "names no program", "muster srun OPTIONS -- PROGRAM ARGUMENTS")
    split = list(words).index("--")
    options, program = words[:split], words[split + 1 :]
    found, kept = _sort(options)
    if ":" in words:
        found["het-group"] = ":"
    for name, fix in _IMPOSSIBLE.items():
        if name in found:
            raise UsageError(f"srun --{name}", "such a step cannot be moved", fix)
    nodes = _number("nodes", found.get("nodes"), allocated)
    if nodes > allocated:
        fix = f"sbatch --nodes={nodes} or more"
        raise UsageError(f"srun --nodes={nodes}", f"the job has {allocated} nodes", fix)
    return Step(
        options=tuple(kept),
        program=shlex.join(program),
        nodes=nodes,
        ranks_per_node=_ranks_per_node(found, environment, nodes, allocated),
        folder=(here / found.get("chdir", ".")).resolve(),
        export=found.get("export", environment.get("SLURM_EXPORT_ENV")),
    )


def _sort(options: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """({long name: value}, the words to hand on).

    Before `--` there are only options and their values, so a word without a dash belongs to the
    option before it, and no table of all of srun's options is needed.
    """
    found: dict[str, str] = {}
    kept: list[str] = []
    rest = list(options)
    while rest:
        word = rest.pop(0)
        values = [rest.pop(0)] if rest and not rest[0].startswith("-") and "=" not in word else []
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            flags = ""
        else:
            match = _SHORT.fullmatch(word)
            flags, letter, value = match.groups() if match else ("", "", "")
            name = _LONG.get(letter, letter)
        name = "auto-resume" if name.startswith("au") else name
        found[name] = value or (values[0] if values else "")
        if name in _OURS:
            kept += [f"-{flags}"] if flags else []
        elif name != "export":
            kept += [word, *values]
    return found, kept


def _ranks_per_node(
    found: Mapping[str, str], environment: Mapping[str, str], nodes: int, allocated: int
) -> int:
    """As srun counts: --ntasks, --ntasks-per-node, what #SBATCH said in the same order, else one.

    #SBATCH --ntasks counts the spares too, so it is the number on each node that holds.
    """
    per_node = found.get("ntasks-per-node") or environment.get("SLURM_NTASKS_PER_NODE")
    ntasks, on_nodes = found.get("ntasks"), nodes
    if ntasks is None and per_node is None:
        ntasks, on_nodes = environment.get("SLURM_NTASKS"), allocated
    if ntasks is None:
        return _number("ntasks-per-node", per_node, 1)
    number = _number("ntasks", ntasks, on_nodes)
    if number % on_nodes:
        what = f"{number} tasks on {on_nodes} nodes are not the same number on each"
        raise UsageError("srun --ntasks", what, f"use a multiple of {on_nodes}")
    return number // on_nodes


def _number(name: str, text: Optional[str], default: int) -> int:
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        raise UsageError(f"srun --{name}={text}", "is no number above 0", f"srun --{name}=2")
    return int(text)
