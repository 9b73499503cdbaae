"""Names of images in a registry, as Docker, Enroot and Pyxis write them.

Docker writes REGISTRY/IMAGE, Enroot REGISTRY#IMAGE. With a '/' Enroot looks for the registry's name
as a folder of Docker Hub, and the answer is a 401 that says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from muster.errors import UsageError

_USER = r"(?:(?P<user>[\w.$~+-]+)@)?"
_LABEL = r"\w(?:[\w-]*\w)?"
_PORT = r"(?::[1-9]\d{0,4})?"
_REGISTRY = rf"(?P<registry>{_LABEL}(?:\.{_LABEL})*{_PORT})"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = rf"(?P<name>(?!sha256:){_PART}(?:/{_PART})*)"
_TAG = r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:[:@](?P<digest>sha256:[0-9a-f]{64}))?"
# Docker's rule: the first part is a registry if it has a dot or a port, or is localhost.
_IS_REGISTRY = r"[^/]*[.:][^/]*/|localhost/"
_FORMS = (
    re.compile(rf"{_USER}{_REGISTRY}#{_NAME}{_TAG}", re.ASCII),
    re.compile(rf"{_USER}(?={_IS_REGISTRY}){_REGISTRY}/{_NAME}{_TAG}", re.ASCII),
    re.compile(rf"{_USER}(?!{_IS_REGISTRY})(?P<registry>){_NAME}{_TAG}", re.ASCII),
)
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class Reference:
    """An image in a registry.

    Attributes:
        registry: host[:port]; None: Docker Hub.
        name: the image's path there.
        tag: None: latest.
        digest: sha256:<64 hex>; rules over the tag.
        user: whose credentials; None: Enroot looks itself.
    """

    registry: Optional[str]
    name: str
    tag: Optional[str] = None
    digest: Optional[str] = None
    user: Optional[str] = None

    @property
    def enroot(self) -> str:
        """For `enroot import`, and for srun --container-image.

        Enroot takes one of the two, and a digest in the place of a tag: '@' ends a user there.
        """
        user = f"{self.user}@" if self.user else ""
        registry = f"{self.registry}#" if self.registry else ""
        version = self.digest or self.tag or "latest"
        return f"docker://{user}{registry}{self.name}:{version}"

    @property
    def docker(self) -> str:
        """For docker and buildah."""
        registry = self.registry or "docker.io"
        name = self.name if self.registry or "/" in self.name else f"library/{self.name}"
        tag = f":{self.tag}" if self.tag else ""
        return f"{registry}/{name}{tag}{f'@{self.digest}' if self.digest else ''}"


def _port(registry: Optional[str]) -> int:
    return int((registry or "").partition(":")[2] or 0)


def parse(text: str) -> Reference:
    """The image that a person means, in any of the three ways of writing it.

    Raises:
        UsageError: it is none, or a file's name.
    """
    bare = text.removeprefix("docker://")
    if bare.endswith((".sqsh", ".squashfs")) or bare.startswith(("/", "./", "../", "~")):
        raise UsageError(text, "is the name of a file, not of an image in a registry", "name both")
    for form in _FORMS:
        found = form.fullmatch(bare)
        if found and _port(found["registry"]) <= _HIGHEST_PORT:
            parts = found.groupdict()
            registry = parts["registry"] or None
            if registry in ("docker.io", "index.docker.io"):
                registry = None
            parts["registry"] = registry
            return Reference(**parts)
    fix = "write docker://REGISTRY#IMAGE:TAG, e.g. docker://nvcr.io#nvidia/pytorch:25.12-py3"
    raise UsageError(text, "is no image of a registry", fix)
