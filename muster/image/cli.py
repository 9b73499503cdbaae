"""`muster image`: build, import, check and list container images, and ask a node about them."""

from __future__ import annotations

import argparse
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Optional

from muster.argument_types import above_zero
from muster.errors import MusterError, UnavailableError
from muster.site import load_site

if TYPE_CHECKING:
    from muster.image.publish import Make

_GIB = 1 << 30
_TIMES = 3  # unpacked, and its layers, and the result


def add_parser(subparsers: Any) -> None:
    """Add `image` with its verbs."""
    text = "container images: build, import, check, list"
    image = subparsers.add_parser("image", help=text, description=text)
    verbs = image.add_subparsers(metavar="VERB", required=True)

    build = verbs.add_parser("build", help="an image of images.yaml, into a .sqsh file")
    build.add_argument("name", metavar="NAME", help="of images.yaml")
    _add_target(build)
    _add_images(build)
    build.add_argument("--base", metavar="IMAGE", help="on this machine, in place of images.yaml's")
    build.add_argument(
        "--wheels", type=Path, metavar="DIR", help="take all packages from here, ask no index"
    )
    build.add_argument("--no-packages", action="store_true", help="the base has all of them")
    build.add_argument("--no-fabric", action="store_true", help="for machines without EFA")
    build.add_argument("--tool", choices=("buildah", "docker"), help="default: the first there")
    build.set_defaults(verb="image build", func=_build)

    fetch = verbs.add_parser("import", help="an image of a registry, into a .sqsh file")
    fetch.add_argument("reference", metavar="IMAGE", help="docker://REGISTRY#IMAGE:TAG")
    _add_target(fetch)
    fetch.add_argument("--size-gib", type=above_zero, default=20.0, help="of the file; default: 20")
    fetch.set_defaults(verb="image import", func=_import)

    check = verbs.add_parser("check", help="will Enroot and Pyxis start it as meant?")
    check.add_argument("files", nargs="+", metavar="FILE", type=Path)
    check.set_defaults(verb="image check", func=_check)

    ready = verbs.add_parser("preflight", help="will a container start on this node?")
    ready.add_argument("file", nargs="?", metavar="FILE", type=Path, help="the .sqsh it is for")
    ready.set_defaults(verb="image preflight", func=_preflight)

    listing = verbs.add_parser("list", help="the images of images.yaml, and what they are for")
    _add_images(listing)
    listing.set_defaults(verb="image list", func=_list)


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="default: containers/images.yaml"
    )


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the .sqsh")
    parser.add_argument(
        "--temp", type=Path, metavar="DIR", help="on local disk; default: the site's scratch_path"
    )


def _build(args: argparse.Namespace) -> int:
    from muster.image import build, catalogue  # noqa: PLC0415  (every start of muster is paid for)
    from muster.image.reference import parse  # noqa: PLC0415

    source, known = catalogue.load(args.images)
    image = known.image(args.name)
    tool = build.find_tool(args.tool)
    arguments = catalogue.build_arguments(image, None if args.no_fabric else known.fabric)
    if args.no_packages:
        arguments["PACKAGES"] = arguments["PROVIDES"] = ""
    tag = f"localhost/muster/{args.name}:latest"
    base = args.base or parse(image.base).docker
    dockerfile = source.absolute().parent / f"{args.name}.Dockerfile"
    wheels = args.wheels.absolute() if args.wheels else None
    argv = build.build_argv(
        tool, dockerfile, tag, base, arguments, local=bool(args.base), wheels=wheels
    )

    def make(made: Path) -> None:
        build.build(argv)
        build.to_squashfs(tool, tag, made)

    return _publish(args, make, 0 if args.base else image.size_gib)


def _import(args: argparse.Namespace) -> int:
    import os  # noqa: PLC0415

    from muster.image import fetch  # noqa: PLC0415
    from muster.image.reference import parse  # noqa: PLC0415

    reference = parse(args.reference)
    fetch.require_credentials(fetch.credentials_path(os.environ), reference)
    return _publish(args, partial(fetch.fetch, reference), args.size_gib)


def _publish(args: argparse.Namespace, make: Make, size_gib: float) -> int:
    from muster.image.fetch import require_local  # noqa: PLC0415
    from muster.image.publish import publish, require_free  # noqa: PLC0415
    from muster.image.squash import require_whole  # noqa: PLC0415

    target = args.output.absolute()
    local = (args.temp or load_site().scratch_path).absolute()

    def proven(made: Path) -> None:
        require_local(local.resolve(), Path("/proc/mounts").read_text(encoding="utf-8"))
        require_free(local, _TIMES * size_gib * _GIB, "name another folder with --temp")
        require_free(target.parent, size_gib * _GIB, "choose another --output")
        make(made)

    signal.signal(signal.SIGTERM, _leave)  # let others take their turn at once
    made_here = publish(target, proven, require_whole, local)
    how = "made" if made_here else "was there"
    print(f"{target}: {how}, {target.stat().st_size / _GIB:.2f} GiB")
    return 0


def _leave(number: int, _frame: Optional[FrameType]) -> None:
    sys.exit(128 + number)


def _check(args: argparse.Namespace) -> int:
    from muster.image import contract  # noqa: PLC0415

    code = 0
    for path in args.files:
        try:
            wrong = list(contract.problems(*contract.read(path)))
        except MusterError as error:  # the other files are looked at all the same
            print(f"muster image check: {error}", file=sys.stderr)
            code = code or error.code
            continue
        for problem in wrong:
            print(f"{path}: {problem}")
        code = code or int(bool(wrong))
    return code


def _preflight(args: argparse.Namespace) -> int:
    from muster.image import preflight  # noqa: PLC0415
    from muster.image.squash import require_whole  # noqa: PLC0415

    node, file = preflight.Node.here(), args.file
    if not node.has("enroot"):
        raise UnavailableError("enroot", f"not found in {preflight.PATH}", "install Enroot there")
    if file is not None:
        require_whole(file)
    wrong = list(preflight.problems(node, file))
    for problem in wrong:
        print(problem)
    return int(bool(wrong))


def _list(args: argparse.Namespace) -> int:
    from muster.image import catalogue  # noqa: PLC0415

    _, known = catalogue.load(args.images)
    for name, image in known.images.items():
        print(f"{name}: for {', '.join(image.recipes)}; on {image.base.partition('@')[0]}")
        packages = {**image.provides, **image.packages}
        print(f"  {', '.join(f'{package} {version}' for package, version in packages.items())}")
    return 0
