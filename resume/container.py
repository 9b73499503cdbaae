"""The container that ranks run in: the options of srun that Pyxis understands, and what must go in.

The supervisor and the guards stay on the host: an image has no Slurm programs. The container is
unnamed, so each launch makes a fresh one, and two jobs on a node never meet in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from muster.errors import ConfigError, DataError, UsageError
from muster.image.reference import parse as parse_reference
from muster.slurm import PYXIS

OPTIONS = ("image", "mounts", "workdir", "env")
"""Options of Pyxis that we give, all of which 0.20 to 0.24 know: --container-NAME=VALUE."""
_LISTS = ("--container-mounts", "--container-env")
_ASKING = ("--container-image", "--container-name")
HOME = "--no-container-mount-home"  # packages in somebody's home take the place of the image's


@dataclass(frozen=True)
class Container:
    """What `muster run --image` asks for.

    Attributes:
        image: an absolute path, or an image of a registry as Enroot writes it.
        mounts: SOURCE:TARGET or SOURCE:TARGET:FLAGS, besides what a run needs anyway.
        wins: names of variables whose value of the job replaces the image's.
        gpus: False: NVIDIA's hook must not look for a driver.
        docker: started by Docker, not by Pyxis.
    """

    image: str
    mounts: tuple[str, ...] = ()
    wins: tuple[str, ...] = ()
    gpus: bool = True
    docker: bool = False


def wanted(
    image: Optional[str],
    mounts: Sequence[str],
    wins: Sequence[str],
    environment: Mapping[str, str],
    here: Path,
    *,
    docker: bool = False,
) -> Optional[Container]:
    """The container that the command line asks for; None: none.

    Args:
        image: a file, or an image of a registry.
        mounts: as typed: SOURCE, SOURCE:TARGET or SOURCE:TARGET:FLAGS.
        wins: names of variables.
        environment: of the batch script.
        here: what relative names begin at.
        docker: let Docker start it.

    Raises:
        ConfigError: mounts, variables or Docker without an image; one that only Pyxis is told.
        DataError: a file or folder is not there.
        UsageError: no image at all.
    """
    if image is None:
        if mounts or wins or docker:
            what, fix = "need a container", "name one with --image"
            raise ConfigError("--mount, --env and --docker", what, fix)
        if asked((), environment):
            what = "would start ranks in a container without the run's folders"
            raise ConfigError("PYXIS_CONTAINER_IMAGE or _NAME", what, "--image IMAGE, or unset it")
        return None
    # Without a slash Pyxis takes the name of a file for an image of a registry.
    is_file = image.startswith(("/", ".", "~")) or image.endswith((".sqsh", ".squashfs"))
    if is_file and docker:
        raise UsageError(image, "is no image for Docker", "docker load it, and give its name")
    if is_file:
        path = (here / Path(image).expanduser()).absolute()
        if not path.is_file():
            fix = f"muster image import or build, --output {path}"
            raise DataError(str(path), "no such image on the batch host", fix)
        named = str(path)
    else:
        reference = parse_reference(image)
        named = reference.docker if docker else reference.enroot
    # Slurm sets none of the two on a node where the job has no GPU.
    gpus = any(environment.get(name) for name in ("SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"))
    found = tuple(_mount(m, here) for m in mounts)
    if docker:
        for mount in found:
            if mount.count(":") > 1 and mount.rpartition(":")[2] != "ro":
                raise ConfigError(f"--mount {mount}", "Docker knows 'ro' alone", "leave it out")
    return Container(named, found, tuple(wins), gpus, docker)


def require_mountable(*folders: Path) -> None:
    """Raises ConfigError for a folder that Pyxis cannot be told of."""
    for folder in folders:
        _pair(folder, str(folder))


def _mount(text: str, here: Path) -> str:
    source, _, rest = text.partition(":")
    path = (here / Path(source).expanduser()).absolute()
    if not source or not path.exists():
        raise DataError(f"--mount {text}", f"{path} is not there", "name an existing folder")
    return _pair(path, rest or str(path))


def _pair(source: Path, rest: str) -> str:
    if set(":,") & set(str(source)) or "," in rest:
        what = "':' or ',' in a path that is mounted into a container"
        raise ConfigError(str(source), what, "rename it, or mount a folder above it")
    return f"{source}:{rest}"


def srun_options(
    container: Container,
    run_dir: Path,
    recipe_dir: Path,
    pythonpath: str,
    names: Sequence[str],
) -> list[str]:
    """Options for srun.

    Args:
        container: what was asked for.
        run_dir: RUN_DIR; the ranks start in the recipe's copy there.
        recipe_dir: the recipe's own folder: its data is there.
        pythonpath: where `resume` is, a folder or muster.pyz.
        names: variables of the contract: they must not lose against the image's.
    """
    values = {
        "image": container.image,
        "mounts": ",".join(all_mounts(container, run_dir, recipe_dir, pythonpath)),
        "workdir": str(run_dir / "recipe"),
        "env": ",".join(dict.fromkeys([*names, *container.wins])),
    }
    return [*(f"--container-{name}={values[name]}" for name in OPTIONS), HOME]


def all_mounts(container: Container, run_dir: Path, recipe_dir: Path, pythonpath: str) -> list[str]:
    """What is mounted; a later one lies over an earlier: what a person asks for comes last."""
    needed = [_pair(recipe_dir, str(recipe_dir)), _pair(run_dir, str(run_dir))]
    code = _pair(Path(pythonpath), f"{pythonpath}:ro")
    return list(dict.fromkeys([code, *needed, *container.mounts]))


def asked(options: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether somebody's own srun line has a container; Pyxis takes defaults from variables."""
    typed = any(word.partition("=")[0] in _ASKING for word in options)
    return typed or any(environment.get(_variable(name)) for name in _ASKING)


def own_options(
    options: Sequence[str],
    run_dir: Path,
    pythonpath: str,
    names: Sequence[str],
    environment: Mapping[str, str],
) -> list[str]:
    """Options of somebody's own srun line, with what ranks need if they run in his container.

    His mounts and variables and ours go into one option each: of two equal options the nodes see
    the last one only. Ours come last, since a mount of his over RUN_DIR may be read-only.

    Args:
        options: as typed.
        run_dir: RUN_DIR.
        pythonpath: where `resume` is, a folder or muster.pyz.
        names: variables of the contract: they must not lose against the image's.
        environment: of the batch script.
    """
    if not asked(options, environment):
        return list(options)
    kept, rest = [], list(options)
    given = {name: environment.get(_variable(name), "") for name in _LISTS}
    while rest:
        word = rest.pop(0)
        name, sign, value = word.partition("=")
        if name in _LISTS:
            given[name] = value if sign or not rest else rest.pop(0)
        else:
            kept.append(word)
    mounts = (_pair(run_dir, str(run_dir)), _pair(Path(pythonpath), f"{pythonpath}:ro"))
    for name, ours in zip(_LISTS, (mounts, names)):
        his = filter(None, given[name].split(","))
        kept.append(f"{name}={','.join(dict.fromkeys([*his, *ours]))}")
    return kept


def _variable(option: str) -> str:
    """PYXIS_CONTAINER_IMAGE of --container-image: its default."""
    return PYXIS + option[len("--container-") :].upper()


def environment(container: Container, pythonpath: str) -> dict[str, str]:
    """Variables for the ranks: of the host's Python nothing but the folder of `resume`."""
    void = {} if container.gpus else {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"PYTHONPATH": pythonpath, **void}
