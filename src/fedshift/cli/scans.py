"""The command that lists a hospital's scans in a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..core.console import say
from .group import Group

KEY = Path("pseudonyms.key")


def add(group: Group) -> None:
    """Add the command table."""
    command = group.add(table, work="reading the headers of its files")
    command.add_argument("folder", type=Path, help="a folder of DICOM, NIfTI or image files, with all folders in it")
    command.add_argument("--site", required=True, metavar="NAME", help="the hospital or scanner, as the study names it")
    command.add_argument(
        "--out", type=Path, default=Path("images.csv"), help="table to write, which must not be there yet"
    )
    command.add_argument(
        "--labels", type=Path, metavar="CSV", help="labels, in the columns label and patient, or label and study"
    )
    command.add_argument(
        "--key",
        type=Path,
        default=KEY,
        help="secret of the pseudonyms, which is made if needed and stays with you (default: %(default)s)",
    )


def table(args: argparse.Namespace) -> None:
    """Write the table of a folder of scans that own_images reads, with pseudonyms for patients."""
    from ..jobs.scan_table import write_scan_table

    listed = write_scan_table(args.folder, args.site, args.out, args.key, args.labels)
    for line in listed.report():
        say(f"{args.out}: {line}")
    say(f"wrote {args.out}; {args.key} makes the same pseudonyms again: keep it here, and apart from what you share")
