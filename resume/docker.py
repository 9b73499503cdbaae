"""Docker in place of Enroot and Pyxis: the line with which each rank starts its program.

The rank's shell stays on the host and becomes `docker run`. The container has the process numbers,
the network and the shared memory of the host: a guard finds its ranks by their variables in /proc
and signals them by the numbers in their beats, in a container too.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

RANK_NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURMD_NODENAME")  # by these a guard knows its ranks
_PERSON = ("USER", "LOGNAME")  # his number has no name in the image
_NOT_INSIDE = frozenset({"MUSTER_COMMAND", "MUSTER_LOG_DIR"})
FABRIC = "/etc/enroot/hooks.d/20-muster-fabric.sh"
"""Where a site has it, it prints the variables of the fabric; without Enroot nobody else does."""
_OPTIONS = (
    "--rm",
    *("--network=host", "--ipc=host", "--pid=host"),
    *("--ulimit=memlock=-1", "--ulimit=stack=-1"),  # as RDMA needs
    "--env=HOME=/tmp",  # no home is mounted: packages in it would take the place of the image's
)
_HERE = (  # of the rank, known when it starts
    '--user="$(id -u):$(id -g)"',
    '--name="muster-$SLURM_JOB_ID-$MUSTER_TOKEN-$MUSTER_ATTEMPT-$RANK"',
    '--label=muster.job="$SLURM_JOB_ID"',  # for the epilog
    f"--env-file <({FABRIC} print 2>/dev/null)",
    "$([ ! -e /dev/infiniband ] || echo --device=/dev/infiniband)",
)


def command(
    image: str,
    mounts: Sequence[str],
    folder: str,
    names: Sequence[str],
    inner: str,
    *,
    gpus: bool,
) -> str:
    """For `bash -c` of a rank.

    Args:
        image: as Docker writes it.
        mounts: SOURCE:TARGET or SOURCE:TARGET:ro.
        folder: where the program starts, absolute.
        names: variables that it gets, with the rank's values.
        inner: the program's line, for bash in the container.
        gpus: give it all of them.
    """
    inside = dict.fromkeys([*names, *RANK_NAMES, *_SLURM, *_PERSON])
    words = [
        *_OPTIONS,
        *(["--gpus=all"] if gpus else []),
        *(f"--mount={_mount(mount)}" for mount in mounts),
        f"--workdir={folder}",
        *(f"--env={name}" for name in inside if name not in _NOT_INSIDE),
    ]
    start = " ".join(["exec docker run", *map(shlex.quote, words), *_HERE])
    return f"{start} --entrypoint=bash {shlex.quote(image)} -c {shlex.quote(inner)}"


def _mount(text: str) -> str:
    source, target, flags = [*text.split(":"), ""][:3]
    read_only = ",readonly" if flags == "ro" else ""
    return f"type=bind,source={source},target={target}{read_only}"
