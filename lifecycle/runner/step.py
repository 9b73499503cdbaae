"""A step: one bash file, which says in its first comment lines what it needs and where it runs.

    # Sets the clock by the cluster's time servers.
    #
    # needs: packages
    # roles: head compute
    # when: platform=plain node.gpus
    # optional: a clock that drifts is no reason not to compute
    # limit_s: 120
    # tries: 5

Nothing is registered: a file in the folder is a step. `needs` gives the order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from lifecycle.description.model import ROLES
from muster.errors import ConfigError, did_you_mean

_KEYS = ("needs", "roles", "when", "optional", "limit_s", "tries")
_LINE = re.compile(r"# ([a-z_]+): (.+)")
_CONDITION = re.compile(r"([a-z_.]+)(?:(!?=)(\S+))?")


@dataclass(frozen=True)
class Step:
    """What the head of a step's file says."""

    name: str
    path: Path
    summary: str
    needs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ROLES
    when: tuple[str, ...] = ()  # all must hold
    optional: Optional[str] = None  # why creation goes on without it; None: it does not
    limit_s: int = 600  # of one check or apply
    tries: int = 3

    def applies(self, role: str, values: Mapping[str, object]) -> bool:
        """Whether a node of this role, in a cluster with these values, has this step."""
        return role in self.roles and all(_holds(text, values) for text in self.when)


def read_steps(folder: Path) -> list[Step]:
    """All steps of a folder, by name.

    Raises:
        ConfigError: no step there, or one whose head is wrong.
    """
    paths = sorted(folder.glob("*.sh"))
    if not paths:
        raise ConfigError(str(folder), "holds no step", "name the folder lifecycle/steps")
    return [parse(path, path.read_text(encoding="utf-8")) for path in paths]


def parse(path: Path, text: str) -> Step:
    """The step in a file.

    Raises:
        ConfigError: no sentence that says what it does, an unknown key, or a wrong value.
    """
    head = []
    for line in text.splitlines()[1:]:
        if not line.startswith("#"):
            break
        head.append(line)
    if not head or not head[0].strip("# "):
        raise ConfigError(str(path), "does not say what it does", "write a sentence in line 2")
    values: dict[str, str] = {}
    for line in head[1:]:
        match = _LINE.fullmatch(line)
        if match and match[1] in _KEYS:
            values[match[1]] = match[2]
        elif match and did_you_mean(match[1], _KEYS):
            hint = did_you_mean(match[1], _KEYS)
            fix = f"use some of {', '.join(_KEYS)}"
            raise ConfigError(str(path), f"unknown key '{match[1]}'.{hint}", fix)
    return Step(
        name=path.stem,
        path=path,
        summary=head[0].strip("# "),
        needs=tuple(values.get("needs", "").split()),
        roles=_roles(values.get("roles"), path),
        when=_conditions(values.get("when", ""), path),
        optional=values.get("optional"),
        limit_s=_number(values.get("limit_s", "600"), f"{path}: limit_s"),
        tries=_number(values.get("tries", "3"), f"{path}: tries"),
    )


def _roles(text: Optional[str], path: Path) -> tuple[str, ...]:
    roles = tuple(text.split()) if text is not None else ROLES
    for role in roles:
        if role not in ROLES:
            hint = did_you_mean(role, ROLES)
            fix = f"use some of {', '.join(ROLES)}"
            raise ConfigError(f"{path}: roles", f"'{role}' is unknown.{hint}", fix)
    return roles


def _conditions(text: str, path: Path) -> tuple[str, ...]:
    for word in text.split():
        if not _CONDITION.fullmatch(word):
            fix = "write key, key=value or key!=value"
            raise ConfigError(f"{path}: when", f"'{word}' is no condition", fix)
    return tuple(text.split())


def _number(text: str, where: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(where, f"'{text}' is no number above 0", "write 600")
    return int(text)


def _holds(text: str, values: Mapping[str, object]) -> bool:
    match = _CONDITION.fullmatch(text)
    key, sign, wanted = match.groups() if match else (text, None, None)
    if key not in values:
        hint = did_you_mean(key, values)
        raise ConfigError(f"when: {text}", f"there is no key '{key}'.{hint}", "name a key")
    value = values[key]
    if sign is None:
        return bool(value)
    return (str(value) in str(wanted).split("|")) == (sign == "=")
