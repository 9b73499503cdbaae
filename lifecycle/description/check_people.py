"""Users, groups and secrets of a description: do the values go together?"""

from __future__ import annotations

import re

from lifecycle.description.model import Secret, Users
from lifecycle.description.rules import absolute
from muster.errors import ConfigError, did_you_mean

_LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,30}")
_KEY = re.compile(r"(ssh-(ed25519|rsa|dss)|ecdsa-sha2-\S+|sk-\S+) [A-Za-z0-9+/=]+( [^\n]*)?")
_SYSTEM = ("root", "nobody", "nogroup", "munge", "mysql")
_FIRST_ID, _LAST_ID = 1000, 60000
"""Below are the system's own users, above are those of network services."""


def check_secret(secret: Secret, where: str) -> None:
    """Raise unless it says exactly one way to read it. The secret itself is never looked at."""
    if (secret.file is None) == (not secret.command):
        fix = "write {file: /etc/muster/secrets/NAME} or {command: [program, ...]}"
        raise ConfigError(where, "needs exactly one of 'file' and 'command'", fix)
    program = secret.file if secret.file is not None else secret.command[0]
    if not str(program).startswith("/"):
        raise ConfigError(where, f"'{program}' is no absolute path", "write the whole path")


def check_users(users: Users, where: str) -> None:
    """Raise at a name, id or key that cannot work.

    Raises:
        ConfigError: with the name it concerns.
    """
    absolute(users.home, f"{where}: home")
    _check_ids([(group.name, group.gid) for group in users.groups], "gid", f"{where}: groups")
    _check_ids([(user.name, user.uid) for user in users.users], "uid", f"{where}: users")
    groups = [group.name for group in users.groups]
    for user in users.users:
        here = f"{where}: users: {user.name}"
        if user.group not in groups:
            what = f"'{user.group}' is not in users.groups.{did_you_mean(user.group, groups)}"
            raise ConfigError(f"{here}: group", what, "add the group with its gid")
        for group in user.groups:
            if not _LOGIN.fullmatch(group):
                raise ConfigError(f"{here}: groups", f"'{group}' is no group", "use a-z 0-9 _ -")
        absolute(user.shell, f"{here}: shell")
        for key in user.ssh_keys:
            if "PRIVATE KEY" in key or not _KEY.fullmatch(key.strip()):
                what = "one is no public key"  # and is not shown: it may be the private one
                raise ConfigError(f"{here}: ssh_keys", what, "paste the line of the .pub file")


def _check_ids(pairs: list[tuple[str, int]], kind: str, where: str) -> None:
    names: dict[str, int] = {}
    owners: dict[int, str] = {}
    for name, number in pairs:
        if not _LOGIN.fullmatch(name):
            raise ConfigError(where, f"'{name}' is no name", "use a-z 0-9 _ -, a letter first")
        if name in _SYSTEM:
            raise ConfigError(where, f"'{name}' is the system's", "give it another name")
        if not _FIRST_ID <= number <= _LAST_ID:
            what = f"{number} is the system's"
            fix = f"give {_FIRST_ID} to {_LAST_ID}"
            raise ConfigError(f"{where}: {name}: {kind}", what, fix)
        if name in names:
            raise ConfigError(where, f"'{name}' twice", "give each its own")
        if number in owners:
            what = f"{number} is that of '{owners[number]}' already"
            raise ConfigError(f"{where}: {name}: {kind}", what, "give each its own")
        names[name], owners[number] = number, name
