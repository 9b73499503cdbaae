"""Before a run in a container starts: will the container start here, and read its image?

Asked on the batch host only; nodes of one cluster are set up alike. `muster image preflight` asks
the same on any node. Where there is no Enroot nothing is asked: srun itself says what it lacks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from muster.errors import DataError, UnavailableError
from muster.image.preflight import Node, problems, readable
from muster.image.squash import require_whole
from muster.process import RC_NOT_FOUND, run
from resume.container import Container

_LIMIT_S = 60.0


def require_startable(container: Container, node: Node) -> None:
    """Say what may cost, and refuse what cannot start.

    Args:
        container: what was asked for.
        node: this one.

    Raises:
        DataError: the image's file cannot be read, or is not whole.
        UnavailableError: this node starts no container.
    """
    if container.docker:
        _require_docker()
        return
    image = Path(container.image) if container.image.startswith("/") else None
    if image is not None:
        why = readable(image, os.geteuid())
        if why is not None:
            fix = f"chmod a+r {image}, or start the job as a user who may"
            raise DataError(str(image), why, fix)
        require_whole(image)
    for problem in problems(node, image):
        if problem.stops:
            raise UnavailableError(f"--image: {problem.rule}", problem.seen, problem.fix)
        print(f"muster run: {problem}", file=sys.stderr, flush=True)


def _require_docker() -> None:
    answer = run(["docker", "version", "--format", "{{.Server.Version}}"], _LIMIT_S)
    if answer.rc == RC_NOT_FOUND:
        raise UnavailableError("docker", "is not there", "install it, or leave --docker out")
    if not answer.ok:
        fix = "start its daemon; your user must be in the group docker on every node"
        raise UnavailableError("docker", answer.reason, fix)
