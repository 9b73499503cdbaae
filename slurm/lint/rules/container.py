"""Steps in a container of Enroot and Pyxis: what users report of them, before the job starts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slurm.lint.finding import ERROR, WARNING, Spot, rule
from slurm.lint.programs import Srun
from slurm.lint.script import Script

_IMAGE_FILE = re.compile(r"[^/].*\.(sqsh|squashfs)")
_HOST = re.compile(
    r"(?:docker://)?(?:[^@/#]+@)?([\w-]+(?:\.[\w-]+)+(?::\d+)?|localhost(?::\d+)?)/[^#]*"
)
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_OF_IMAGES = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "TORCH_CUDA_ARCH_LIST")
"""Variables that images set, so that the job's own value is gone."""


def _given(script: Script, name: str) -> Iterator[tuple[str, int]]:
    """(value, line) of every time that an option is given; of a variable what the script sets."""
    places = [(one.option.value, one.line) for one in script.given if one.option.name == name]
    places += [(one.options[name].value, one.line) for one in script.sruns if name in one.options]
    for value, line in places:
        variable = _VARIABLE.fullmatch(value)
        yield (script.variables.get(variable[1], value) if variable else value), line


def _plain(value: str) -> bool:
    return bool(value) and "$" not in value and " " not in value


def _inside(script: Script) -> Iterator[Srun]:
    """Every srun whose program runs in a container."""
    whole = "container-image" in script.options
    for one in script.sruns:
        if whole or {"container-image", "container-name"} & set(one.options):
            yield one


@rule(
    ERROR,
    why="""Pyxis takes whatever begins with neither / nor ./ for an image of a registry: the step
    waits for Docker Hub, and ends with a 401 that says nothing of a file.""",
    fix="the whole path: --container-image=/shared/images/NAME.sqsh",
)
def image_file(script: Script) -> Iterator[Spot]:
    """The file of an image is named by a path."""
    for value, line in _given(script, "container-image"):
        if _plain(value) and _IMAGE_FILE.fullmatch(value) and not value.startswith(("./", "../")):
            yield Spot(line, f"'{value}' is taken for an image of a registry")


@rule(
    ERROR,
    why="""With a / Enroot looks for the registry's name as a folder of Docker Hub: 401.""",
    fix="REGISTRY#IMAGE:TAG, in quotes in an #SBATCH line: nvcr.io#nvidia/pytorch:25.12-py3",
)
def image_registry(script: Script) -> Iterator[Spot]:
    """A # stands behind the registry of an image."""
    for value, line in _given(script, "container-image"):
        found = (
            _HOST.fullmatch(value) if _plain(value) and not _IMAGE_FILE.fullmatch(value) else None
        )
        if found:
            yield Spot(line, f"'{found[1]}/' is looked for on Docker Hub")


@rule(
    WARNING,
    why="""A node that joins after a requeue pulls what the tag means by then: ranks of one run with
    different libraries, or a run that cannot be repeated.""",
    fix="name a version (better a digest), or a .sqsh file that was imported once",
)
def image_tag(script: Script) -> Iterator[Spot]:
    """A container image has a version."""
    for value, line in _given(script, "container-image"):
        if not _plain(value) or value.startswith(("/", "./", "../")):
            continue
        if _IMAGE_FILE.fullmatch(value) or _HOST.fullmatch(value):
            continue  # named already
        tail = value.replace("#", "/").rpartition("/")[2]
        if "@sha256:" not in value and (":" not in tail or tail.endswith(":latest")):
            yield Spot(line, f"'{value}' may be another image tomorrow")


@rule(
    ERROR,
    why="""There is no scontrol in the image ('scontrol: not found'), so the requeue that should
    save the run never happens.""",
    fix="requeue from the batch script, outside of the container",
)
def container_scontrol(script: Script) -> Iterator[Spot]:
    """What talks to Slurm runs outside of the container."""
    for one in _inside(script):
        if re.search(r"\b(scontrol|sbatch|scancel|squeue)\b", " ".join(one.rest)):
            yield Spot(one.line, "a command of Slurm within the container")


@rule(
    ERROR,
    why="""The MPI of the image knows neither the other nodes nor Slurm: every task starts a world
    of its own, or waits.""",
    fix="let srun start them: srun --mpi=pmix, with Enroot's hook 50-slurm-pmi.sh on the nodes",
)
def container_mpirun(script: Script) -> Iterator[Spot]:
    """No mpirun within a container."""
    for one in _inside(script):
        if re.search(r"(^|[\s;&|/'\"])(mpirun|mpiexec)\b", " ".join(one.rest)):
            yield Spot(one.line, "mpirun within the container")


@rule(
    ERROR,
    why="""Steps that run at once and may all make the container of one name do so at once: all but
    the first end with 'File already exists'.""",
    fix="make it once: a first srun, one task for each node, with --container-name=NAME and the "
    "image; the others --container-name=NAME:no_exec without it. Or leave the name out",
)
def container_name(script: Script) -> Iterator[Spot]:
    """Of steps that run at once only one makes the container of a name."""
    running: set[str] = set()
    for one in script.sruns:
        given = one.options["container-name"].value if "container-name" in one.options else ""
        name, _, flag = given.partition(":")
        if not name or "container-image" not in one.options or flag in ("exec", "no_exec"):
            continue
        if name in running:
            yield Spot(one.line, f"'{name}' is made while another step may still be making it")
        if one.program.command.in_background:
            running.add(name)


@rule(
    WARNING,
    why="""On a node with GPUs NVIDIA's hook puts the driver of that day into the container, and
    saves it too: after an update of the driver the image breaks, on every node.""",
    fix="build the image: `muster image build`",
)
def container_save(script: Script) -> Iterator[Spot]:
    """No container is saved as an image."""
    for _, line in _given(script, "container-save"):
        yield Spot(line, "the container is saved with what the node has put into it")


@rule(
    WARNING,
    why="""Packages in ~/.local take the place of the image's, for one person and not for the
    next.""",
    fix="--no-container-mount-home; what is needed from there: --container-mounts",
)
def container_home(script: Script) -> Iterator[Spot]:
    """The home is not mounted into the container."""
    for _, line in _given(script, "container-mount-home"):
        yield Spot(line, "--container-mount-home")


@rule(
    WARNING,
    why="""Where both set a variable the image's value is the one that the ranks see.""",
    fix="name it: --container-env=NAME; or leave it to the image",
)
def container_env(script: Script) -> Iterator[Spot]:
    """A variable that images set too is named in --container-env."""
    inside = list(_inside(script))
    named = [one.options["container-env"].value for one in inside if "container-env" in one.options]
    known = {name for value in named for name in value.split(",")}
    exported, lines = _exported(script) if inside else (set[str](), set[int]())
    for name, _, line in script.assigned:
        goes_on = name in exported or line in lines
        if goes_on and name in _OF_IMAGES and name not in known:
            yield Spot(line, f"{name} of the image wins over this one")


def _exported(script: Script) -> tuple[set[str], set[int]]:
    """Names that go to all that the script starts, and lines whose variables go to an srun."""
    names, lines = set[str](), set[int]()
    for command in script.commands:
        words = command.texts
        if words[:1] == ["export"]:
            names |= {word.partition("=")[0] for word in words[1:]}
        if "srun" in words:
            lines.add(command.line)
    return names, lines
