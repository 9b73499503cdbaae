"""containers/images.yaml, typed: which images there are, what is in them, for which recipes."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from muster.config import build, read_yaml
from muster.errors import ConfigError, UsageError, did_you_mean
from muster.image.reference import parse

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")
_WORD = r"[A-Za-z0-9][\w.-]*"
_RECIPE = re.compile(_WORD, re.ASCII)
_PACKAGE = re.compile(rf"{_WORD}(?:\[{_WORD}(?:,{_WORD})*\])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][\w.+!-]*", re.ASCII)
IMAGES_YAML = Path("containers/images.yaml")


@dataclass(frozen=True)
class Fabric:
    """Versions of what EFA needs within an image."""

    efa_installer: str
    aws_ofi_nccl: str  # the one that comes with that installer
    gdrcopy: str


@dataclass(frozen=True)
class Image:
    """One image; NAME.Dockerfile beside images.yaml builds it."""

    base: str  # registry/image:version@sha256:digest
    size_gib: float  # of the .sqsh, about
    recipes: list[str]
    provides: dict[str, str] = field(default_factory=dict)  # package: version, in the base
    packages: dict[str, str] = field(default_factory=dict)  # package: version, put on top


@dataclass(frozen=True)
class Catalogue:
    """The whole file."""

    fabric: Fabric
    images: dict[str, Image]

    def image(self, name: str) -> Image:
        """The image of that name.

        Raises:
            UsageError: there is none.
        """
        if name not in self.images:
            hint = did_you_mean(name, self.images)
            fix = f"use one of {', '.join(self.images)}"
            raise UsageError(name, f"no such image.{hint}", fix)
        return self.images[name]


def load(path: Optional[Path] = None) -> tuple[Path, Catalogue]:
    """Where the file is, and what it says; None: that of the repository, or of this folder.

    Raises:
        ConfigError: missing, a wrong key or value.
    """
    beside = Path(__file__).resolve().parents[2] / IMAGES_YAML
    source = path or (beside if beside.is_file() else IMAGES_YAML)
    catalogue = build(Catalogue, read_yaml(source), str(source))
    for key, version in vars(catalogue.fabric).items():
        _check_version(version, f"{source}: fabric.{key}")
    owner: dict[str, str] = {}
    for name, image in catalogue.images.items():
        where = f"{source}: {name}"
        _check(image, name, where)
        for recipe in image.recipes:
            if owner.setdefault(recipe, name) != name:
                what = f"'{recipe}' is in {owner[recipe]} already"
                raise ConfigError(f"{where}.recipes", what, "name it once")
    return source, catalogue


def _check(image: Image, name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(where, "is no name", "use a-z 0-9 _ -")
    _check_base(image.base, f"{where}.base")
    if image.size_gib <= 0:
        raise ConfigError(f"{where}.size_gib", "must be above 0", "size_gib: 20")
    if not image.recipes or not all(map(_RECIPE.fullmatch, image.recipes)):
        raise ConfigError(f"{where}.recipes", "must be names of recipes", "recipes: [llama2_fsdp]")
    if len(set(image.recipes)) < len(image.recipes):
        raise ConfigError(f"{where}.recipes", "has a recipe twice", "name it once")
    for key, packages in (("provides", image.provides), ("packages", image.packages)):
        for package, version in packages.items():
            if not _PACKAGE.fullmatch(package):
                what = f"'{package}' is no name of a package"
                raise ConfigError(f"{where}.{key}", what, "write 'package: 1.2.3'")
            _check_version(version, f"{where}.{key}.{package}")


def _check_base(base: str, where: str) -> None:
    fix = "write registry/image:version@sha256:..."
    try:
        digest = parse(base).digest
    except UsageError as error:
        raise ConfigError(where, f"'{base}' {error.what}", fix) from None
    if digest is None:
        raise ConfigError(where, f"'{base}' has no digest", fix)


def _check_version(version: str, where: str) -> None:
    if not _VERSION.fullmatch(version):
        raise ConfigError(where, f"'{version}' is no version", "write a version, such as 1.2.3")


def build_arguments(image: Image, fabric: Optional[Fabric]) -> dict[str, str]:
    """What the Dockerfile's ARG lines get, but for BASE_IMAGE; no fabric: an image without EFA."""
    torch = {**image.provides, **image.packages}.get("torch", "")
    return {
        "EFA_INSTALLER_VERSION": fabric.efa_installer if fabric else "",
        "AWS_OFI_NCCL_VERSION": fabric.aws_ofi_nccl if fabric else "",
        "GDRCOPY_VERSION": fabric.gdrcopy if fabric else "",
        "PROVIDES": _words(image.provides),
        "PACKAGES": _words(image.packages),
        "PYTORCH_VERSION": torch,
    }


def _words(packages: dict[str, str]) -> str:
    return " ".join(f"{name}=={version}" for name, version in packages.items())
