"""Slides of a table cut into patches: images, a table of them, contact sheets, and an account of how they were made."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from ..core.console import Progress, say
from ..core.errors import UserError, require_none
from ..core.spelling import folded
from ..datasets._own_rows import empty_cells, read_rows
from ..io.disk import atomic_folder
from ..io.identity import Pseudonyms
from ..io.shipped import extra
from ..io.text import write_json
from .annotations import ROLES, Mask, Shape, area, by_role, read_shapes, require_inside
from .squares import (
    CLASSES,
    FAINT,
    LEAST,
    MOST,
    MUCH,
    THUMBNAIL,
    Chosen,
    Grid,
    Labelled,
    Pixels,
    Pyramid,
    Settings,
    Survey,
    choose,
    label,
    opened,
    otsu,
    survey,
    tissue,
)

LINE = 15
GAP = 8
ACROSS = 5
"""Of a contact sheet: pixels of a line of text, pixels between slides, and the number of slides in a row."""
TUMOUR = (213, 94, 0)
TISSUE = (0, 114, 178)
"""Orange and blue, which colour-blind readers can tell apart."""
LEGEND = "orange: annotated tumour; blue line: rim of the tissue; dots: patches, orange tumour, blue normal"
TABLE = "images.csv"
ACCOUNT = "patches.json"
"""File names in the folder that is written: the table of patches, and the record of how they were made."""
DIFFERS = 0.05
"""The relative difference of pixel sizes that is tolerated: a slide may be this much coarser than its patches."""
SHEET = 40
"""The most slides on a contact sheet."""
Tile = tuple[Pixels, Sequence[str]]
"""A slide on a contact sheet: its thumbnail with tumour, tissue and patches marked, and lines of text below it."""
NEEDED = ("slide", "site", "patient")
KNOWN = (*NEEDED, "annotation", "mpp", "label")
WRITTEN = ("path", "label", "site", "patient", "slide", "x", "y", "mpp", "tumour_fraction", "tissue_fraction", "weight")
"""Columns of the table of patches, before the further columns of the table of slides."""
RESERVED = (*WRITTEN, "sample", "base")
"""Names that a further column cannot have: the table of patches, or the dataset that reads it, has such a column."""


@dataclass(frozen=True)
class Slide:
    """A row of the table of slides.

    `where` is the file and line of the row, for messages; `name` the name of the slide's file without its ending; `mpp`
    the micrometres per pixel, None to take those of the file; and `further` the cells of further columns, by column.
    """

    where: str
    path: Path
    name: str
    annotation: Path | None
    site: str
    patient: str
    mpp: float | None
    label: str
    further: dict[str, str]

    @property
    def key(self) -> str:
        """The name of the slide that no other slide of the table has: SITE/PATIENT/NAME."""
        return f"{self.site}/{self.patient}/{self.name}"


def read_slides(table: Path) -> tuple[list[Slide], list[UserError]]:
    """Return the slides of all valid rows of a table, and an error for each fault of the other rows.

    Raises UserErrors for an unreadable file, and one without rows or without a column that it needs.
    """
    rows = read_rows(table, NEEDED, "list each slide in a row")
    further = [name for name in map(str, rows) if name not in KNOWN]
    require_none(
        UserError(table, f"the column {name!r} has a name that the table of patches needs", "rename it")
        for name in further
        if name in RESERVED
    )
    faults = [fault for name in NEEDED for fault in empty_cells(table, rows[name])]
    slides = list[Slide]()
    complete = rows[rows[list(NEEDED)].notna().all(axis=1)].fillna("")
    for line, found in zip(complete.index, complete.to_dict("records"), strict=True):
        cells = {str(name): str(cell) for name, cell in found.items()}
        where = f"{table}, {rows.index.name} {line}"
        wrong = list(_faults(where, cells))
        faults += wrong
        if wrong:
            continue
        path, annotation, mpp = table.parent / cells["slide"], cells.get("annotation"), cells.get("mpp")
        slides.append(
            Slide(
                where,
                path,
                path.stem,
                table.parent / annotation if annotation else None,
                cells["site"],
                cells["patient"],
                float(mpp) if mpp else None,
                cells.get("label", ""),
                {name: cells[name] for name in further},
            )
        )
    return slides, [*faults, *_repeated(slides)]


def _faults(where: str, cells: dict[str, str]) -> Iterator[UserError]:
    for column in ("site", "patient"):
        if any(mark in cells[column] for mark in "/\\\0") or cells[column].startswith("."):
            problem = f"{column} {cells[column]!r} cannot be the name of a folder"
            yield UserError(where, problem, "leave out / and \\, and dots in front")
    size = cells.get("mpp", "")
    if size and not LEAST <= _number(size) <= MOST:
        problem = f"mpp {size!r} is not a number of micrometres between {LEAST} and {MOST:.0f}"
        yield UserError(
            where, problem, "write micrometres a pixel, such as 0.25, or nothing if the slide's file has them"
        )
    label = cells.get("label", "")
    if label not in ("", *CLASSES):
        yield UserError(where, f"label {label!r} is none of {', '.join(CLASSES)}", "write one of them, or nothing")
    elif label != "normal" and not cells.get("annotation"):
        problem = "has no annotation, and no label normal: nobody knows which of its tissue is tumour"
        yield UserError(where, problem, "name its annotation, or write label normal if it is free of tumour")


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan


def _repeated(slides: Sequence[Slide]) -> Iterator[UserError]:
    """Yield an error for each slide that has the file, or the site, patient and file name, of an earlier row."""
    files = dict[Path, str]()
    keys = dict[str, str]()
    for slide in slides:
        first = files.setdefault(slide.path.resolve(), slide.where)
        if first != slide.where:
            yield UserError(slide.where, f"{slide.path} is the slide of {first}", "list it once")
        elif (first := keys.setdefault(slide.key.casefold(), slide.where)) != slide.where:
            yield UserError(slide.where, f"site, patient and file name {slide.key} are those of {first}", "rename one")


def overlay(survey: Survey, grid: Grid, tumour: Mask, tissue: Mask, chosen: Iterable[Chosen]) -> Pixels:
    """Return the thumbnail of a slide with its tumour, the rim of its tissue and the middles of its patches marked.

    `tumour` and `tissue` are masks of the shape `grid.mask`; `chosen` are the squares that become patches.
    """
    # the middle pixel of each block stands for it
    every = slice(survey.reduction // 2, None, survey.reduction)
    picture = survey.thumbnail.copy()
    height, width = picture.shape[:2]
    tumour, tissue = tumour[every, every], tissue[every, every]
    rim = tissue & ~ndimage.binary_erosion(tissue)
    for mask, colour, strength in ((tumour, TUMOUR, 0.35), (rim, TISSUE, 1.0)):
        part = picture[: mask.shape[0], : mask.shape[1]]
        part[mask] = part[mask] * (1 - strength) + np.array(colour) * strength
    for squares in chosen:
        middle = ((squares.places + 0.5) * grid.settings.cells / survey.reduction).astype(int)
        rows, columns = np.minimum(middle, [height - 1, width - 1]).T
        picture[rows, columns] = TUMOUR if squares.label == "tumour" else TISSUE
    return picture


def sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Return the contact sheet of a site: one picture with the thumbnails of its slides and their lines of text."""
    lines = max(len(words) for _, words in tiles)
    wide = THUMBNAIL + GAP
    high = THUMBNAIL + GAP + lines * LINE
    across = max(min(ACROSS, len(tiles)), 2)
    image = Image.new("RGB", (across * wide + GAP, math.ceil(len(tiles) / across) * high + GAP + LINE), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(11)
    draw.text((GAP, GAP // 2), LEGEND, "black", font)
    for number, (picture, words) in enumerate(tiles):
        left = GAP + number % across * wide
        top = GAP + LINE + number // across * high
        image.paste(Image.fromarray(picture), (left, top))
        for line, text in enumerate(words):
            draw.text((left, top + picture.shape[0] + line * LINE), text, "black", font)
    return image


@dataclass(frozen=True)
class Written:
    """What `cut` wrote: the table of patches, the number of patches of each label, and the contact sheets."""

    table: Path
    patches: dict[str, int]
    sheets: tuple[Path, ...]


def cut(
    table: Path, out: Path, settings: Settings, *, version: str, key: Path | None = None, threads: int = 1
) -> Written:
    """Cut all slides of a table into patches, and write them into the new folder `out`, whole or not at all.

    `version` is that of this package, for the record. As many slides as there are `threads` are cut at a time. `key` is
    the file with the secret of pseudonyms for patients and slides; without it they keep their names. Raises UserErrors
    for all faults of settings, table, slides and annotations before anything is written, and UserError if `out` exists
    already.
    """
    settings.require()
    with extra("slides", "fedshift patches"):
        import openslide
    if out.exists() or out.is_symlink():
        raise UserError(out, "is there already", "name a folder that is not there, or remove this one")
    if key is not None and key.resolve().is_relative_to(out.resolve()):
        raise UserError(key, "is inside the folder that is written", "keep the key apart from what you share")
    slides = sorted(_sound(table, settings), key=lambda slide: slide.site)
    shown = slides
    if key is not None:
        hidden = Pseudonyms.read(key)
        shown = [
            replace(slide, patient=hidden("patient", folded(slide.patient)), name=hidden("slide", slide.key))
            for slide in slides
        ]
    with atomic_folder(out) as new:
        written, accounts = _write(list(zip(slides, shown, strict=True)), new, out, settings, threads)
        versions = {
            "fedshift": version,
            "openslide": openslide.__library_version__,
            "openslide-python": openslide.__version__,
        }
        write_json(new / ACCOUNT, {"versions": versions, "settings": asdict(settings), "slides": accounts})
    return written


def _sound(table: Path, settings: Settings) -> list[Slide]:
    """Return the slides of a table. Raises UserErrors for the faults of all rows, of their slides and annotations."""
    slides, faults = read_slides(table)
    for slide in slides:
        try:
            with opened(slide.path, slide.mpp) as pyramid:
                _grid(pyramid, settings)
                _shapes(slide, pyramid, settings)
        except UserError as error:
            faults.append(UserError(slide.where, f"{error.where}: {error.what}", error.remedy))
    require_none(faults)
    further = list(slides[0].further)
    if further:
        say(f"{table}: further columns, which {TABLE} will have too: {', '.join(further)}")
    return slides


def _grid(pyramid: Pyramid, settings: Settings) -> Grid:
    """Return the grid of squares of a slide. Raises UserError for a slide that is too coarse or too small."""
    grid = Grid(settings, settings.mpp / pyramid.mpp, pyramid.size)
    if grid.scale < 1 - DIFFERS:
        problem = f"has {pyramid.mpp:.4g} micrometres per pixel, which is coarser than --mpp {settings.mpp:g}"
        raise UserError(pyramid.path, problem, "choose a larger --mpp, or remove the row of this slide")
    if not grid.whole().any():
        raise UserError(pyramid.path, f"is smaller than a patch: {pyramid.size[0]} x {pyramid.size[1]} pixels")
    return grid


def _shapes(slide: Slide, pyramid: Pyramid, settings: Settings) -> dict[str, list[Shape]]:
    """Return the annotated areas of a slide by role. Raises UserError if they contradict the label of the slide."""
    if slide.annotation is None:
        return {role: [] for role in ROLES}
    shapes = read_shapes(slide.annotation)
    require_inside(slide.annotation, shapes, pyramid.size)
    roles = by_role(slide.annotation, shapes, settings.groups)
    if slide.label == "normal" and roles["tumour"]:
        raise UserError(slide.annotation, "has tumour, but the label of its slide is normal", "correct one of them")
    if slide.label != "normal" and not roles["tumour"]:
        problem = "has no area of tumour"
        raise UserError(slide.annotation, problem, "write label normal in its row if the slide is free of tumour")
    return roles


def _write(
    slides: Sequence[tuple[Slide, Slide]], new: Path, out: Path, settings: Settings, threads: int
) -> tuple[Written, list[dict[str, Any]]]:
    """Write patches, table and contact sheets into the empty folder `new`, which is to become `out`.

    `slides` are pairs: the slide, and the slide under the names to write (pseudonyms, if any). Returns what was
    written, and the record of each slide for patches.json.
    """
    numbers = Counter[str]()
    accounts = list[dict[str, Any]]()
    sheets = list[Path]()
    # `map` hands the slides back in their order, whatever the threads do: the table is the same for any number of them
    with ThreadPoolExecutor(threads) as pool, Progress("cut", len(slides), "slides") as bar:
        cuts = pool.map(lambda pair: _cut(pair[0], pair[1], new, settings), slides)
        for site, of_site in itertools.groupby(slides, key=lambda pair: pair[0].site):
            many = len(list(of_site))
            for start in range(0, many, SHEET):
                tiles = list[Tile]()
                for rows, account, tile in itertools.islice(cuts, min(SHEET, many - start)):
                    if rows:
                        begun = (new / TABLE).exists()
                        patches = pd.DataFrame(rows)
                        patches.to_csv(new / TABLE, mode="a", header=not begun, index=False, lineterminator="\n")
                    numbers.update(row["label"] for row in rows)
                    accounts.append(account)
                    tiles.append(tile)
                    bar.update()
                name = f"contact-{site}{f'-{start // SHEET + 1}' if start else ''}.png"
                sheet(tiles).save(new / name)
                sheets.append(out / name)
    if not numbers:
        raise UserError(out, "no slide has a single square for a patch", "lower --tissue-share, or set --tissue 20")
    return Written(out / TABLE, dict(numbers), tuple(sheets)), accounts


def _cut(
    slide: Slide, shown: Slide, folder: Path, settings: Settings
) -> tuple[list[dict[str, Any]], dict[str, Any], Tile]:
    """Cut a slide into patches in `folder`; return its rows of the table of patches, its record, and its tile.

    `shown` is the slide under the names to write. The record is for patches.json, the tile for the contact sheet.
    """
    with opened(slide.path, slide.mpp) as pyramid:
        grid = _grid(pyramid, settings)
        shapes = _shapes(slide, pyramid, settings)
        surveyed = survey(pyramid, grid)
        threshold = otsu(surveyed.histogram) if settings.tissue == "otsu" else float(settings.tissue)
        on_tissue = tissue(surveyed.saturation, threshold, settings.core * settings.mpp / settings.cells)
        tumour = area(shapes["tumour"], shapes["hole"], grid.pixel, grid.mask)
        ignored = area(shapes["ignore"], (), grid.pixel, grid.mask) if shapes["ignore"] else None
        squares = label(grid, tumour, on_tissue, ignored)
        chosen = choose(squares, settings, slide.key)
        numbers = {squares.label: len(squares.places) for squares in chosen}
        warnings = _warnings(pyramid, threshold, float(on_tissue.mean()), numbers)
        account = {
            "site": shown.site,
            "patient": shown.patient,
            "slide": shown.name,
            "vendor": pyramid.vendor,
            "size": pyramid.size,
            "mpp": pyramid.mpp,
            "mpp_of_file": pyramid.mpp_of_file,
            "level": pyramid.level(grid.scale),
            "threshold": threshold,
            "tissue": round(float(on_tissue.mean()), 6),
            "areas": {role: len(members) for role, members in shapes.items()},
            "squares": {"tumour": int(squares.tumour.sum()), "normal": int(squares.normal.sum())},
            "patches": numbers,
            "warnings": warnings,
        }
        rows = [row for part in chosen for row in _patches(pyramid, grid, squares, part, shown, folder)]
        picture = overlay(surveyed, grid, tumour, on_tissue, chosen)
    words = ", ".join(f"{number} {name}" for name, number in numbers.items()) or "no patches"
    say(f"{slide.key}: {words}")
    for warning in warnings:
        say(f"{slide.where}: warning: {warning}")
    texts = f"{shown.patient} {shown.name}", f"{words}; threshold {threshold:g}", *warnings
    return [row | slide.further for row in rows], account, (picture, texts)


def _patches(
    pyramid: Pyramid, grid: Grid, squares: Labelled, chosen: Chosen, shown: Slide, folder: Path
) -> list[dict[str, Any]]:
    """Write the patches of one label of a slide as PNG files, and return their rows of the table of patches."""
    settings = grid.settings
    rows = list[dict[str, Any]]()
    (folder / shown.site / shown.patient).mkdir(parents=True, exist_ok=True)
    for place, (x, y) in zip(map(tuple, chosen.places), grid.corners(chosen.places).tolist(), strict=True):
        path = Path(shown.site, shown.patient, f"{shown.name}_{x}_{y}.png")
        pixels = pyramid.read(x, y, settings.size, settings.size, grid.scale, Image.Resampling.LANCZOS)
        Image.fromarray(pixels).save(folder / path)
        cells = (
            *(path.as_posix(), chosen.label, shown.site, shown.patient, shown.name, x, y, settings.mpp),
            *(squares.tumour_share[place], squares.tissue_share[place], chosen.weight),
        )
        rows.append(dict(zip(WRITTEN, cells, strict=True)))
    return rows


def _warnings(pyramid: Pyramid, threshold: float, share: float, numbers: dict[str, int]) -> list[str]:
    """Return short warnings about a slide: pixel size, saturation threshold, share of tissue, missing patches.

    `share` is the share of tissue on the slide, and `numbers` counts its patches by label.
    """
    stated, read = pyramid.mpp, pyramid.mpp_of_file
    differs = read is not None and abs(read - stated) > DIFFERS * stated
    cases = [
        (differs, f"mpp {stated:g} in the table, {read} in the file"),
        (threshold < FAINT, f"saturation threshold {threshold:g}: blank, or not stained in colour"),
        (share > MUCH, f"tissue on {share:.0%} of the slide: look at its rim"),
        (not numbers, "no square for a patch"),
    ]
    return [words for holds, words in cases if holds]
