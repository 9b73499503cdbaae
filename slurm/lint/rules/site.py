"""Facts of one cluster or one person that a batch script should not know."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm.lint.finding import ERROR, WARNING, Spot, rule
from slurm.lint.script import Script

_PATH = re.compile(r"(?:^|(?<=[:,\s(\"'])|(?<=[^:]=))/([A-Za-z0-9_.+-]+)(/[^\s:,\"'()]*)?")
_SYSTEM_NAMES = "bin sbin usr lib lib64 etc opt dev proc sys run tmp var workspace app boot root"
_SYSTEM = frozenset(_SYSTEM_NAMES.split())
_NO_PATHS = frozenset({"sed", "awk", "grep", "egrep", "tr", "perl", "echo", "printf"})
_SECRET_NAME = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY)(_ID)?$", re.IGNORECASE
)
_SECRET = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{30,}|\bsk-[A-Za-z0-9_-]{20,}"
)
_LITERAL = re.compile(r"(?![/.])[A-Za-z0-9+/=_.-]{8,}")
_FABRIC = re.compile(
    r"NCCL_(SOCKET_IFNAME|IB_\w+|NET(_PLUGIN)?|PROTO|ALGO|TOPO_FILE|CROSS_NIC)"
    r"|FI_\w+|GLOO_SOCKET_IFNAME|UCX_NET_DEVICES|LD_PRELOAD|OFI_\w+|RDMAV_\w+"
)
_COMMAND_ENDS = re.compile(r"[;|&]")
_FOLDER_OF = re.compile(r"(dirname|realpath|readlink)\b")
_ITSELF = re.compile(r"\$\{?0|BASH_SOURCE")
_WITHOUT_NAME = re.compile(r"\$\{(0|BASH_SOURCE(\[0\])?)%")


@rule(
    WARNING,
    why="""The script works for one person on one cluster. 51 of 59 batch scripts of a well-known
    collection name /fsx.""",
    fix="a path beside the script, or a variable with this as its default: ${DATA:-/fsx/data}",
)
def hard_coded_path(script: Script) -> Iterator[Spot]:
    """No path of one cluster or one home is written into the file."""
    seen: set[str] = set()
    for text, line in _texts(script):
        for match in _PATH.finditer(text):
            if match[1] not in _SYSTEM and match[1] not in seen:
                seen.add(match[1])
                yield Spot(line, f"'{match[0]}' exists on one cluster only")


def _texts(script: Script) -> Iterator[tuple[str, int]]:
    for given in script.given:
        yield given.option.value, given.line
    for one in script.programs:
        command = one.command
        words = () if one.name in _NO_PATHS else command.words
        for word in (*words, *command.targets):
            yield word.text, command.line
        for _, value in command.assignments:
            yield value, command.line


@rule(
    WARNING,
    why="""They are right for one machine and wrong for the next: NCCL_SOCKET_IFNAME=eth0 finds no
    interface there, and FI_PROVIDER or an old LD_PRELOAD sends the traffic through sockets at a
    tenth of the speed, without an error.""",
    fix="let the cluster set them (TaskProlog, /etc/nccl.conf, enroot's environ.d), and test them",
)
def fabric_variable(script: Script) -> Iterator[Spot]:
    """The variables of the fabric are the cluster's."""
    for name, _, line in script.assigned:
        if _FABRIC.fullmatch(name):
            yield Spot(line, f"{name} is a fact of the cluster")


@rule(
    ERROR,
    why="""Slurm keeps a copy of the script, 'scontrol write batch_script' and the accounting
    database give it to others, and it ends in git.""",
    fix="read it from a file that only you can read: TOKEN=$(<~/.config/token)",
)
def secret(script: Script) -> Iterator[Spot]:
    """No password, token or key is in the file."""
    lines = set()
    for name, value, line in script.assigned:
        if _SECRET_NAME.search(name) and _LITERAL.fullmatch(value) and line not in lines:
            lines.add(line)
            yield Spot(line, f"the value of {name} stands in the file")
    for number, text in enumerate(script.lines, start=1):
        if number not in lines and _SECRET.search(text):
            yield Spot(number, "a token or key stands in the file")


@rule(
    ERROR,
    why="""Slurm runs a copy of the script in its own folder: $0 is .../slurm_script, and the files
    beside the script are not beside it.""",
    fix="$SLURM_SUBMIT_DIR, or the Command of 'scontrol show job \"$SLURM_JOB_ID\"'",
)
def own_folder(script: Script) -> Iterator[Spot]:
    """The script does not look for its own folder in $0."""
    if not script.is_shell:
        return
    for number, line in enumerate(script.lines, start=1):
        if not line.lstrip().startswith("#") and _looks_beside(line):
            yield Spot(number, "$0 is Slurm's copy of the script")


def _looks_beside(line: str) -> bool:
    """Whether a command asks for the folder of the script; reads each character twice at most."""
    for part in _COMMAND_ENDS.split(line):
        folder = _FOLDER_OF.search(part)
        if folder and _ITSELF.search(part, folder.end()):
            return True
    return bool(_WITHOUT_NAME.search(line))
