"""gres.conf, cgroup.conf, topology.conf and plugstack.conf."""

from __future__ import annotations

from lifecycle.description.host_list import expand
from lifecycle.description.model import Description, Switch
from lifecycle.description.nodes import names_of
from muster.errors import ConfigError
from slurm.conf.host_list import compress
from slurm.conf.machines import compute_groups, need_hardware
from slurm.conf.setting import comment
from slurm.conf.version import BLOCKS

PLUGIN_DIR = "/usr/local/lib/slurm"
PYXIS = "runtime_path=/var/lib/enroot/pyxis container_scope=job execute_entrypoint=0"
"""Options of Pyxis; containers/pyxis.conf says why, and a test compares the two."""


def other_files(description: Description, version: tuple[int, int]) -> dict[str, list[str]]:
    """{file: its lines}; no lines: nothing of ours belongs into it."""
    plain = description.platform == "plain"
    return {
        "gres.conf": gres(description) if plain else [],
        "cgroup.conf": cgroup(description) if plain else [],
        "topology.conf": topology(description, version) if plain else [],
        "plugstack.conf": plugstack(description),
    }


def gres(description: Description) -> list[str]:
    """Which device files are a node's GPUs."""
    lines = []
    for group in compute_groups(description):
        hardware = need_hardware(group)
        if hardware.gpus:
            kind = f" Type={hardware.gpu_type}" if hardware.gpu_type else ""
            last = hardware.gpus - 1
            files = f"/dev/nvidia[0-{last}]" if last else "/dev/nvidia0"
            lines.append(f"NodeName={compress(names_of(group))} Name=gpu{kind} File={files}")
    why = """The files are named, and not found with AutoDetect: a node whose driver shows seven of
        eight GPUs must not register with seven, and no build of Slurm needs NVML for it."""
    return [*comment(why), *lines] if lines else []


def cgroup(description: Description) -> list[str]:
    """What a job is confined to."""
    if not description.slurm.cgroup:
        return []
    return [
        *comment("A job gets the CPUs, the memory and the GPUs that it was given, and no others."),
        "ConstrainCores=yes",
        "ConstrainDevices=yes",
        "ConstrainRAMSpace=yes",
        *comment("No swap: a rank that swaps is slower than one that dies and is restarted."),
        "ConstrainSwapSpace=yes",
        "AllowedSwapSpace=0",
    ]


def topology(description: Description, version: tuple[int, int]) -> list[str]:
    """Which nodes are near each other.

    Raises:
        ConfigError: blocks with a Slurm that has none.
    """
    slurm = description.slurm
    if slurm.topology == "none":
        return []
    if slurm.topology == "block":
        if version < BLOCKS:
            what = f"'block' needs Slurm 23.11, this is {version[0]}.{version[1]:02}"
            raise ConfigError("slurm: topology", what, "topology: tree")
        sizes = [len(_nodes(switch)) for switch in slurm.switches]
        blocks = [f"BlockName={s.name} Nodes={compress(_nodes(s))}" for s in slurm.switches]
        why = "A job fills one block of nodes before it takes from another."
        return [*comment(why), *blocks, f"BlockSizes={min(sizes)}"]
    why = "A job gets nodes below as few switches as can be."
    return [*comment(why), *(_switch_line(switch) for switch in slurm.switches)]


def _nodes(switch: Switch) -> list[str]:
    return [name for text in switch.nodes for name in expand(text, f"switches: {switch.name}")]


def _switch_line(switch: Switch) -> str:
    words = [f"SwitchName={switch.name}"]
    words += [f"Nodes={compress(_nodes(switch))}"] if switch.nodes else []
    words += [f"Switches={compress(switch.switches)}"] if switch.switches else []
    return " ".join(words)


def plugstack(description: Description) -> list[str]:
    """Plugins of srun. One by one: a wildcard is not sent to nodes without files of their own."""
    lines = []
    if description.containers.pyxis:
        lines += comment("srun --container-image")
        lines.append(f"optional {PLUGIN_DIR}/spank_pyxis.so {PYXIS}")
    # HyperPod has an option of this name itself.
    if description.slurm.auto_resume and description.platform != "hyperpod":
        lines += comment("srun --auto-resume=1")
        lines.append(f"optional {PLUGIN_DIR}/auto_resume.so muster=/usr/local/bin/muster")
    why = """optional: while a plugin is missing only the jobs that ask for it fail, not every
        srun of the cluster."""
    return [*comment(why), *lines] if lines else []
