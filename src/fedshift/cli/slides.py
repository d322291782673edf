"""The command that cuts whole slides into patches."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from .. import __version__
from ..core.console import say
from ..core.errors import UserError, did_you_mean
from .group import Group

SETTINGS = {
    "mpp": (1.0, "micrometres per pixel of a patch"),
    "size": (96, "pixels along a side of a patch"),
    "core": (32, "pixels along a side of the central square, of which the label speaks"),
    "tissue": ("otsu", "otsu, or the saturation (0 to 254) above which a pixel is tissue"),
    "tissue-share": (0.2, "a square without tumour is normal if more than this share of it is tissue"),
    "tumour-share": (0.0, "a square is tumour with this share of it or more; squares with less are left out"),
    "per-slide": (2000, "the most patches of a slide"),
    "seed": (0, "seed of the choice of patches"),
    "mask-mpp": (4.0, "micrometres per pixel of the masks of tissue and tumour, about"),
}
"""Options with their defaults and help. An option has the type of its default."""


def add(group: Group) -> None:
    """Add the command patches."""
    command = group.add(patches, work="reading the table of slides")
    command.add_argument("slides", type=Path, help="a CSV with the columns slide, annotation, site and patient")
    command.add_argument("out", type=Path, metavar="OUT", help="folder to write, which must not be there yet")
    for name, (default, text) in SETTINGS.items():
        command.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: %(default)s)")
    command.add_argument(
        "--groups",
        action="append",
        default=[],
        metavar="NAME=ROLE",
        help="role of a name in the annotations: tumour, hole or ignore; once for each name",
    )
    command.add_argument(
        "--pseudonyms",
        type=Path,
        metavar="KEY",
        help="write digests in place of patients and slides, under the secret in this file, which is made if needed",
    )


def patches(args: argparse.Namespace) -> None:
    """Cut whole slides into patches, and write the table that own_images reads."""
    from ..slides.annotations import GROUPS
    from ..slides.cut_slides import cut
    from ..slides.squares import Settings

    names = [field.name for field in dataclasses.fields(Settings) if field.name != "groups"]
    settings = Settings(**{name: getattr(args, name) for name in names}, groups=GROUPS | _roles(args.groups))
    written = cut(args.slides, args.out, settings, version=__version__, key=args.pseudonyms, threads=args.threads)
    counts = ", ".join(f"{number:,} {label}" for label, number in sorted(written.patches.items()))
    say(f"wrote {written.table}: {counts}; before you go on, look at {', '.join(map(str, written.sheets))}")


def _roles(texts: list[str]) -> dict[str, str]:
    """Return the roles of names that `NAME=ROLE` gives. Raises UserError for an unknown role."""
    from ..slides.annotations import ROLES

    roles = dict[str, str]()
    for text in texts:
        name, _, role = text.rpartition("=")
        if not name or role not in ROLES:
            raise UserError("--groups", f"{text!r} is not NAME=ROLE", did_you_mean(role, ROLES))
        roles[name] = role
    return roles
