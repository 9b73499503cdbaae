"""The options of sbatch and srun: which there are, and which of them take a value.

From the manual pages of Slurm 22.05 to 25.05, with the options of pyxis. getopt also takes any
beginning of a long name that means one option only.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

# NAME[:letter][= takes a value][? may take one]
_BOTH = """
account:A= acctg-freq= bb= bbf= begin:b= chdir:D= cluster-constraint= clusters:M= comment=
constraint:C= container= container-id= contiguous core-spec:S= cores-per-socket= cpu-freq=
cpus-per-gpu= cpus-per-task:c= deadline= delay-boot= dependency:d= distribution:m= error:e=
exclude:x= exclusive? export= extra= extra-node-info:B= gid= gpu-bind= gpu-freq= gpus:G=
gpus-per-node= gpus-per-socket= gpus-per-task= gres= gres-flags= help:h hint= hold:H input:i=
job-name:J= licenses:L= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu=
mincpus= network= nice? no-kill:k? nodefile:F= nodelist:w= nodes:N= ntasks:n= ntasks-per-core=
ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= oom-kill-step? output:o= overcommit:O
oversubscribe:s partition:p= power= prefer= priority= profile= propagate? qos:q= quiet:Q reboot
reservation= resv-ports? segment= signal= sockets-per-node= spread-job stepmgr switches= test-only
thread-spec= threads-per-core= time:t= time-min= tmp= tres-bind= tres-per-task= uid= usage
use-min-nodes verbose:v version:V wckey=
container-image= container-mounts= container-workdir= container-name= container-save=
container-mount-home no-container-mount-home container-remap-root no-container-remap-root
container-entrypoint no-container-entrypoint container-entrypoint-log container-writable
container-readonly container-env=
"""
_SBATCH = (
    "array:a= batch= export-file= get-user-env? ignore-pbs kill-on-invalid-dep= "
    "no-requeue open-mode= parsable requeue? umask= wait:W wrap="
)
_SRUN = (
    "accel-bind= allocation= auto-resume= bcast? bcast-exclude= compress? cpu-bind= debugger-test "
    "disable-status:X epilog= exact external-launcher het-group= immediate:I? jobid= "
    "kill-on-bad-exit:K? label:l launch-cmd mpi= msg-timeout= multi-prog no-allocate:Z "
    "open-mode= overlap prolog= pty? quit-on-interrupt relative:r= send-libs? slurmd-debug= "
    "task-epilog= task-prolog= threads:T= preserve-env:E treewidth= unbuffered:u wait:W="
)


@dataclass(frozen=True)
class Table:
    """Options of one program: {long name: "no" | "yes" | "maybe"} and {letter: long name}."""

    takes: dict[str, str]
    letters: dict[str, str]

    def full_name(self, name: str) -> Optional[str]:
        """The option that a long name, or the only option that its beginning, means."""
        if name in self.takes:
            return name
        longer = [known for known in self.takes if known.startswith(name)]
        return longer[0] if len(longer) == 1 else None


@dataclass(frozen=True)
class Option:
    """One option as it was given; `name` is the long one, `known`: the program has it."""

    name: str
    value: str
    known: bool = True


def _table(text: str) -> Table:
    takes, letters = {}, {}
    for name, letter, sign in re.findall(r"([a-z-]+)(?::(\w))?([=?]?)(?:\s|$)", text):
        takes[name] = {"": "no", "=": "yes", "?": "maybe"}[sign]
        if letter:
            letters[letter] = name
    return Table(takes, letters)


SBATCH = _table(_BOTH + _SBATCH)
SRUN = _table(_BOTH + _SRUN)


def parse(words: Sequence[str], table: Table) -> tuple[list[Option], list[str]]:
    """The options at the start of `words`, and what follows them."""
    found: list[Option] = []
    rest = deque(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.popleft()
        if word == "--":
            break
        if word.startswith("--"):
            found.append(_long(word[2:], rest, table))
        else:
            found += _short(word[1:], rest, table)
    return found, list(rest)


def _long(word: str, rest: deque[str], table: Table) -> Option:
    name, equals, value = word.partition("=")
    full = table.full_name(name)
    if full and table.takes[full] == "yes" and not equals and rest:
        value = rest.popleft()
    return Option(full or name, value, full is not None)


def _short(letters: str, rest: deque[str], table: Table) -> list[Option]:
    found = []
    while letters:
        letter, letters = letters[0], letters[1:]
        name = table.letters.get(letter)
        takes = table.takes[name] if name else "no"
        value = ""
        if takes != "no":
            value, letters = letters, ""
            if takes == "yes" and not value and rest:
                value = rest.popleft()
        found.append(Option(name or letter, value, name is not None))
    return found
