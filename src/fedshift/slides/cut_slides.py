"""Slides cut into patches: images, a table of them, contact sheets, and an account of how they were made."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy import ndimage

from ..core.console import Progress, say
from ..core.errors import UserError, require_none
from ..core.spelling import folded
from ..io.disk import atomic_folder
from ..io.pseudonyms import Pseudonyms
from ..io.text import write_json
from .annotations import ROLES, Mask, Shape, area, by_role, read_shapes, require_inside
from .pyramid import Pixels, Pyramid, opened, require_openslide
from .slide_table import WRITTEN, Slide, read_slides
from .squares import (
    FAINT,
    MUCH,
    THUMBNAIL,
    Chosen,
    Grid,
    Labelled,
    Settings,
    Survey,
    choose,
    label,
    otsu,
    survey,
    tissue,
)

LINE = 15
GAP = 8
ACROSS = 5
"""Pixels of a line of text and between slides, and slides side by side."""
TUMOUR = (213, 94, 0)
TISSUE = (0, 114, 178)
"""Orange and blue, which colour-blind readers can tell apart."""
LEGEND = "orange: annotated tumour; blue line: rim of the tissue; dots: patches, orange tumour, blue normal"
TABLE = "images.csv"
ACCOUNT = "patches.json"
"""The table of patches, and the account of how they were made, in the folder that is written."""
DIFFERS = 0.05
"""The relative difference of pixel sizes that is overlooked: a slide may be this much coarser than its patches."""
SHEET = 40
"""The most slides on a contact sheet."""


@dataclass(frozen=True)
class Tile:
    """A slide on a contact sheet: its thumbnail with what was found, and lines of text below it."""

    picture: Pixels
    lines: tuple[str, ...]


def overlay(survey: Survey, grid: Grid, tumour: Mask, tissue: Mask, chosen: Iterable[Chosen]) -> Pixels:
    """Return the thumbnail of a slide with its tumour, the rim of its tissue and the places of its patches."""
    # the middle pixel of each block stands for it
    every = slice(survey.reduction // 2, None, survey.reduction)
    picture = survey.thumbnail.copy()
    height, width = picture.shape[:2]
    for mask, colour, strength in ((tumour[every, every], TUMOUR, 0.35), (_rim(tissue[every, every]), TISSUE, 1.0)):
        part = picture[: mask.shape[0], : mask.shape[1]]
        part[mask] = part[mask] * (1 - strength) + np.array(colour) * strength
    for squares in chosen:
        middle = ((squares.places + 0.5) * grid.settings.cells / survey.reduction).astype(int)
        rows, columns = np.minimum(middle, [height - 1, width - 1]).T
        picture[rows, columns] = TUMOUR if squares.label == "tumour" else TISSUE
    return picture


def _rim(mask: Mask) -> Mask:
    return mask & ~ndimage.binary_erosion(mask)


def sheet(tiles: Sequence[Tile]) -> Image.Image:
    """Return the contact sheet of the slides of a site."""
    lines = max(len(tile.lines) for tile in tiles)
    wide = THUMBNAIL + GAP
    high = THUMBNAIL + GAP + lines * LINE
    across = max(min(ACROSS, len(tiles)), 2)
    image = Image.new("RGB", (across * wide + GAP, math.ceil(len(tiles) / across) * high + GAP + LINE), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(11)
    draw.text((GAP, GAP // 2), LEGEND, "black", font)
    for number, tile in enumerate(tiles):
        left = GAP + number % across * wide
        top = GAP + LINE + number // across * high
        image.paste(Image.fromarray(tile.picture), (left, top))
        for line, text in enumerate(tile.lines):
            draw.text((left, top + tile.picture.shape[0] + line * LINE), text, "black", font)
    return image


@dataclass(frozen=True)
class Written:
    """What was written: the table of patches, how many it lists, and the contact sheets."""

    table: Path
    patches: dict[str, int]
    sheets: tuple[Path, ...]


@dataclass(frozen=True)
class _Names:
    """The names under which the patches of a slide are written."""

    site: str
    patient: str
    slide: str

    def path(self, x: int, y: int) -> Path:
        """Return the path of a patch in the folder that is written."""
        return Path(self.site, self.patient, f"{self.slide}_{x}_{y}.png")


@dataclass(frozen=True)
class _Cut:
    """A slide that has been cut: rows of the table of patches, its part of the account, its place on the sheet."""

    rows: list[dict[str, Any]]
    account: dict[str, Any]
    tile: Tile


def cut(
    table: Path, out: Path, settings: Settings, *, version: str, key: Path | None = None, threads: int = 1
) -> Written:
    """Cut all slides of a table, and write `out`, whole or not at all.

    `version` is that of this package, for the account. As many slides as there are `threads` are cut at a time.
    `key` is the file with the secret of pseudonyms for patients and slides; without it they keep their names. Raises
    UserErrors for all faults of settings, table, slides and annotations before anything is written, and UserError for a
    folder that is there already.
    """
    settings.require()
    require_openslide()
    if out.exists() or out.is_symlink():
        raise UserError(out, "is there already", "name a folder that is not there, or remove this one")
    if key is not None and key.resolve().is_relative_to(out.resolve()):
        raise UserError(key, "is inside the folder that is written", "keep the key apart from what you share")
    slides = sorted(_sound(table, settings), key=lambda slide: slide.site)
    names = _names(slides, Pseudonyms.read(key) if key is not None else None)
    with atomic_folder(out) as new:
        written, accounts = _write(list(zip(slides, names, strict=True)), new, out, settings, threads)
        write_json(new / ACCOUNT, _account(version, settings, accounts))
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
    """Return the grid of a slide. Raises UserError for a slide that is too coarse or too small."""
    grid = Grid(settings, settings.mpp / pyramid.mpp, pyramid.size)
    if grid.scale < 1 - DIFFERS:
        problem = f"has {pyramid.mpp:.4g} micrometres per pixel, which is coarser than --mpp {settings.mpp:g}"
        raise UserError(pyramid.path, problem, "choose an --mpp that all slides of the table reach, or remove its row")
    if not grid.whole().any():
        raise UserError(pyramid.path, f"is smaller than a patch: {pyramid.size[0]} x {pyramid.size[1]} pixels")
    return grid


def _shapes(slide: Slide, pyramid: Pyramid, settings: Settings) -> dict[str, list[Shape]]:
    """Return the annotated areas of a slide by role. Raises UserError where they contradict its label."""
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


def _names(slides: Sequence[Slide], pseudonyms: Pseudonyms | None) -> list[_Names]:
    """Return the names under which slides are written."""
    if pseudonyms is None:
        return [_Names(slide.site, slide.patient, slide.name) for slide in slides]
    return [
        _Names(slide.site, pseudonyms("patient", folded(slide.patient)), pseudonyms("slide", slide.key))
        for slide in slides
    ]


def _write(
    slides: Sequence[tuple[Slide, _Names]], new: Path, out: Path, settings: Settings, threads: int
) -> tuple[Written, list[dict[str, Any]]]:
    """Write patches, table and contact sheets into the empty folder `new`, which is to become `out`.

    Returns what was written, and the account of each slide.
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
                for done in itertools.islice(cuts, min(SHEET, many - start)):
                    _append(new / TABLE, done.rows)
                    numbers.update(row["label"] for row in done.rows)
                    accounts.append(done.account)
                    tiles.append(done.tile)
                    bar.update()
                name = f"contact-{site}{f'-{start // SHEET + 1}' if start else ''}.png"
                sheet(tiles).save(new / name)
                sheets.append(out / name)
    if not numbers:
        raise UserError(out, "no slide has a single square for a patch", "lower --tissue-share, or set --tissue 20")
    return Written(out / TABLE, dict(numbers), tuple(sheets)), accounts


def _append(table: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Append rows to the table of patches, which gets its header with the first of them."""
    import pandas as pd

    if rows:
        pd.DataFrame(rows).to_csv(table, mode="a", header=not table.exists(), index=False, lineterminator="\n")


def _account(version: str, settings: Settings, slides: list[dict[str, Any]]) -> dict[str, Any]:
    import openslide

    versions = {
        "fedshift": version,
        "openslide": openslide.__library_version__,
        "openslide-python": openslide.__version__,
    }
    return {"versions": versions, "settings": asdict(settings), "slides": slides}


def _cut(slide: Slide, names: _Names, folder: Path, settings: Settings) -> _Cut:
    """Cut one slide: write its patches, and return what is to be known about them."""
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
            "site": names.site,
            "patient": names.patient,
            "slide": names.slide,
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
        rows = [row for part in chosen for row in _patches(pyramid, grid, squares, part, names, folder)]
        picture = overlay(surveyed, grid, tumour, on_tissue, chosen)
    words = ", ".join(f"{number} {name}" for name, number in numbers.items()) or "no patches"
    say(f"{slide.key}: {words}")
    for warning in warnings:
        say(f"{slide.where}: warning: {warning}")
    texts = f"{names.patient} {names.slide}", f"{words}; threshold {threshold:g}", *warnings
    return _Cut([row | slide.further for row in rows], account, Tile(picture, texts))


def _patches(
    pyramid: Pyramid, grid: Grid, squares: Labelled, chosen: Chosen, names: _Names, folder: Path
) -> list[dict[str, Any]]:
    """Write patches of one label, and return their rows of the table."""
    settings = grid.settings
    rows = list[dict[str, Any]]()
    (folder / names.site / names.patient).mkdir(parents=True, exist_ok=True)
    for place, (x, y) in zip(map(tuple, chosen.places), grid.corners(chosen.places).tolist(), strict=True):
        path = names.path(x, y)
        pixels = pyramid.read(x, y, settings.size, settings.size, grid.scale, Image.Resampling.LANCZOS)
        Image.fromarray(pixels).save(folder / path)
        cells = (
            *(path.as_posix(), chosen.label, names.site, names.patient, names.slide, x, y, settings.mpp),
            *(squares.tumour_share[place], squares.tissue_share[place], chosen.weight),
        )
        rows.append(dict(zip(WRITTEN, cells, strict=True)))
    return rows


def _warnings(pyramid: Pyramid, threshold: float, share: float, numbers: dict[str, int]) -> list[str]:
    """Return what a person should look at on the contact sheet, each in a few words."""
    stated = pyramid.mpp
    read = pyramid.mpp_of_file
    cases = [
        (
            read is not None and abs(read - stated) > DIFFERS * stated,
            f"mpp {stated:g} in the table, {read} in the file",
        ),
        (threshold < FAINT, f"saturation threshold {threshold:g}: blank, or not stained in colour"),
        (share > MUCH, f"tissue on {share:.0%} of the slide: look at its rim"),
        (not numbers, "no square for a patch"),
    ]
    return [words for holds, words in cases if holds]
