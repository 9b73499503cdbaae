"""`muster image`: which images there are."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add `image` with its verbs."""
    text = "container images: which there are"
    image = subparsers.add_parser("image", help=text, description=text)
    verbs = image.add_subparsers(metavar="VERB", required=True)

    listing = verbs.add_parser("list", help="the images of images.yaml, and what they are for")
    _add_images(listing)
    listing.set_defaults(verb="image list", func=_list)


def _add_images(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--images", type=Path, metavar="FILE", help="default: containers/images.yaml"
    )


def _list(args: argparse.Namespace) -> int:
    from muster.image import catalogue  # noqa: PLC0415  (every start of muster is paid for)

    _, known = catalogue.load(args.images)
    for name, image in known.images.items():
        print(f"{name}: for {', '.join(image.recipes)}; on {image.base.partition('@')[0]}")
        packages = {**image.provides, **image.packages}
        print(f"  {', '.join(f'{package} {version}' for package, version in packages.items())}")
    return 0
