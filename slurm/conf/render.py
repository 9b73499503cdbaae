"""All of Slurm's files for a description, beside what an operator has in them: text to text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from lifecycle.description.host_list import expand
from lifecycle.description.model import Description
from lifecycle.description.nodes import names_of
from muster.errors import ConfigError
from slurm.conf.keys import sections
from slurm.conf.machines import compute_groups, node_lines, partition_lines
from slurm.conf.other_files import other_files
from slurm.conf.owned import INCLUDE, Foreign, foreign, with_block, with_include
from slurm.conf.setting import Section, Setting
from slurm.conf.version import parse

_HEAD = """\
# Written by 'muster slurm-conf render' from cluster.yaml; it will be written again. Change
# cluster.yaml, or write your line into slurm.conf: a key that stands there is left out here.
"""


def render(
    description: Description, version: str, present: Mapping[str, Optional[str]]
) -> dict[str, Optional[str]]:
    """The files as they should be.

    Args:
        description: the cluster.
        version: the release of Slurm, such as "23.11".
        present: the files as they are, by name; a name that is missing or None: no such file.

    Returns:
        {name: text}; None: the file is not needed and was not there.

    Raises:
        ConfigError: the description and this Slurm, or an operator's lines, do not go together.
    """
    release = parse(version)
    own = foreign(present.get("slurm.conf") or "", present.get)
    _check_nodes(description, own)
    _check_suspend(description)
    files: dict[str, Optional[str]] = {
        "slurm.conf": with_include(present.get("slurm.conf")),
        INCLUDE: _muster_conf(description, release, own),
    }
    for name, lines in other_files(description, release).items():
        files[name] = with_block(present.get(name), lines, name)
    return files


def _muster_conf(description: Description, version: tuple[int, int], own: Foreign) -> str:
    told = _with_settings(sections(description, version), description)
    parts = [_HEAD, *("\n".join([f"### {s.title}", *_section_lines(s, own)]) for s in told)]
    topology = description.slurm.topology
    if topology != "none" and description.platform == "plain" and "topologyplugin" not in own.keys:
        parts.append(f"### Where nodes are: topology.conf\nTopologyPlugin=topology/{topology}")
    if description.platform == "plain":
        parts.append("\n".join(["### Nodes", *node_lines(description)]))
    lines = ["### Partitions"]
    for name, mine in partition_lines(description):
        lines += [f"# {name}: slurm.conf has its own"] if name in own.partitions else mine
    parts.append("\n".join(lines))
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _section_lines(section: Section, own: Foreign) -> list[str]:
    lines: list[str] = []
    for setting in section.settings:
        listed = setting.key == "SlurmctldHost" and own.controllers
        if listed or setting.key.lower() in own.keys:
            lines.append(f"# {setting.key}: slurm.conf has its own")
        else:
            lines += setting.lines()
    return lines


def _with_settings(found: list[Section], description: Description) -> list[Section]:
    """`slurm.settings` of cluster.yaml in the place of ours, what is new at the end."""
    given = {key.lower(): (key, value) for key, value in description.slurm.settings.items()}
    why = "From slurm.settings of cluster.yaml."
    used: set[str] = set()
    replaced = []
    for section in found:
        settings = []
        for setting in section.settings:
            key = setting.key.lower()
            if key in given:
                used.add(key)
                settings.append(Setting(setting.key, given[key][1], why, setting.default))
            else:
                settings.append(setting)
        replaced.append(Section(section.title, settings))
    new = [Setting(key, value, why) for name, (key, value) in given.items() if name not in used]
    return [*replaced, Section("Further settings", new)] if new else replaced


def _check_nodes(description: Description, own: Foreign) -> None:
    """A node that two lines define is fatal to slurmctld."""
    if description.platform != "plain" or not own.nodes:
        return
    ours = {name for group in compute_groups(description) for name in names_of(group)}
    for text in own.nodes:
        theirs = set(expand(text, "slurm.conf: NodeName"))
        if both := sorted(ours & theirs):
            what = f"node '{both[0]}' is in cluster.yaml as well"
            raise ConfigError(f"slurm.conf: NodeName={text}", what, "remove it from one of them")


def _check_suspend(description: Description) -> None:
    gpus = any(
        group.hardware is not None and group.hardware.gpus for group in compute_groups(description)
    )
    for partition in description.partitions:
        if partition.preempt == "suspend" and gpus:
            what = "a suspended job keeps its GPUs, so nobody could take its nodes"
            raise ConfigError(f"partitions: {partition.name}: preempt", what, "preempt: requeue")
