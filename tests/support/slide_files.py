"""Whole slides for tests: tiled TIFFs with a pyramid, in which equal tiles are stored once, and their annotations."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

TILE = 256
SIDE, RADIUS = 2048, 800
WHITE, PINK = (245, 245, 245), (200, 100, 160)
TILES = Callable[[int, int, int], np.ndarray]
"""A function of a level's downsample and the row and column of a tile in it; returns (TILE, TILE, 3), uint8."""


def write(path: Path, size: tuple[int, int], downs: Sequence[int], tiles: TILES, mpp: float | None, words: str) -> Path:
    """Write a slide of `size` (width, height) with a level for each downsample; `words` is the image description."""
    stored = dict[bytes, tuple[int, int]]()
    with path.open("wb") as file:
        file.write(b"II*\0\0\0\0\0")
        pointer = 4
        for down in downs:
            width, height = size[0] // down, size[1] // down
            across, along = -(-width // TILE), -(-height // TILE)
            places = np.empty((along * across, 2), "<u4")
            for number in range(along * across):
                tile = tiles(down, *divmod(number, across)).tobytes()
                if tile not in stored:
                    packed = zlib.compress(tile)
                    stored[tile] = file.tell(), len(packed)
                    file.write(packed)
                places[number] = stored[tile]
            shorts, text = struct.pack("<3H", 8, 8, 8), words.encode() + b"\0"
            resolution = struct.pack("<2I", round(1e7 / (mpp or 1) / down), 1000)  # pixels in a centimetre
            tags = [(254, 4, 1, int(down > 1)), (256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, shorts)]
            tags += [(259, 3, 1, 8), (262, 3, 1, 2), (270, 2, len(text), text), (277, 3, 1, 3)]
            tags += [(282, 5, 1, resolution), (283, 5, 1, resolution)] if mpp else []
            tags += [(284, 3, 1, 1), (296, 3, 1, 3 if mpp else 1), (322, 3, 1, TILE), (323, 3, 1, TILE)]
            tags += [(324, 4, len(places), places[:, 0].tobytes()), (325, 4, len(places), places[:, 1].tobytes())]
            entries = [struct.pack("<2HI", *tag[:3]) + _value(file, tag[3]) for tag in tags]
            file.seek(0, 2)
            file.write(b"\0" * (file.tell() % 2))
            here = file.tell()
            file.write(struct.pack("<H", len(entries)) + b"".join(entries) + b"\0\0\0\0")
            file.seek(pointer)
            file.write(struct.pack("<I", here))
            file.seek(0, 2)
            pointer = file.tell() - 4
    return path


def _value(file, value: int | bytes) -> bytes:  # type: ignore[no-untyped-def]
    """Return the four bytes of an entry: a number, up to four bytes, or where longer ones were written."""
    if isinstance(value, int):
        return struct.pack("<I", value)
    if len(value) <= 4:
        return value.ljust(4, b"\0")
    file.seek(0, 2)
    file.write(b"\0" * (file.tell() % 2))
    where = file.tell()
    file.write(value)
    return struct.pack("<I", where)


def disc(path: Path, mpp: float | None = 0.25, words: str = "", side: int = SIDE) -> Path:
    """Write a slide with a pink disc in the middle of white, of 0.78 of the side; levels 1, 2, 4 and 8.

    The pixels of a level are means, as in scans: every other pixel instead would shift the picture.
    """
    image = np.where(inside_disc(side)[..., None], PINK, WHITE)

    def tile(down: int, row: int, column: int) -> np.ndarray:
        part = image[TILE * down * row : TILE * down * (row + 1), TILE * down * column : TILE * down * (column + 1)]
        means = part.reshape(len(part) // down, down, -1, down, 3).mean((1, 3)).round().astype(np.uint8)
        return np.pad(means, ((0, TILE - means.shape[0]), (0, TILE - means.shape[1]), (0, 0)))

    return write(path, (side, side), (1, 2, 4, 8), tile, mpp, words)


def inside_disc(side: int = SIDE) -> np.ndarray:
    """Return which pixels of the slide at full resolution the disc covers."""
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    return np.hypot(y, x) < RADIUS * side / SIDE


def square(low: float, high: float) -> list[list[float]]:
    """Return the corners of a square, the same along x and y."""
    return [[low, low], [high, low], [high, high], [low, high]]


def asap(path: Path, *areas: tuple[str, list[list[float]]], groups: str = "") -> Path:
    """Write an annotation of ASAP: polygons, each with the name of its group."""
    polygons = "".join(
        f'<Annotation Name="a{k}" Type="Polygon" PartOfGroup="{group}" Color="#F4FA58"><Coordinates>'
        + "".join(f'<Coordinate Order="{n}" X="{x}" Y="{y}" />' for n, (x, y) in enumerate(points))
        + "</Coordinates></Annotation>"
        for k, (group, points) in enumerate(areas)
    )
    text = f"<Annotations>{polygons}</Annotations><AnnotationGroups>{groups}</AnnotationGroups>"
    path.write_text(f'<?xml version="1.0"?>\n<ASAP_Annotations>{text}</ASAP_Annotations>', encoding="utf-8")
    return path


def geojson(path: Path, *areas: tuple[str | None, dict[str, object]]) -> Path:
    """Write an annotation of QuPath: geometries, each with the name of its class."""
    features = [
        {
            "type": "Feature",
            "geometry": geometry,
            "properties": {"objectType": "annotation"} | ({"classification": {"name": name}} if name else {}),
        }
        for name, geometry in areas
    ]
    path.write_text(json.dumps({"type": "FeatureCollection", "features": features}), encoding="utf-8")
    return path
