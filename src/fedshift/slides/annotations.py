"""Annotations of slides: polygons with their names, from ASAP (XML) or QuPath (GeoJSON), and their pixels."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from ..core.errors import UserError
from ..core.spelling import folded
from ..io.text import read_json, readable

Points = npt.NDArray[np.float64]

ROLES = ("tumour", "hole", "ignore")
"""The roles of an annotated area: tumour; a hole in tumour, which is normal tissue; an area that no patch is taken
from."""
NAMELESS = "None"
"""The name of a polygon that has none, as ASAP writes it."""
GROUPS: dict[str, str] = {
    "metastases": "tumour",
    "tumor": "tumour",
    "tumour": "tumour",
    "_0": "tumour",
    "_1": "tumour",
    "normal": "hole",
    "_2": "hole",
    "exclusion": "hole",
    "ignore*": "ignore",
    NAMELESS: "ignore",
}
"""The role of each usual name of an area or group: CAMELYON16 (`Tumor`, `_0`, ...), CAMELYON17 (`metastases`,
`normal`), QuPath (`Ignore*`)."""
AREAS = ("Polygon", "Spline", "Rectangle")
"""Types of annotations of ASAP that have an area; a spline counts as the polygon of its points."""
LARGEST = 1 << 28
"""The most bytes of an XML file that is read."""
Mask = npt.NDArray[np.bool_]
Window = tuple[slice, slice]


@dataclass(frozen=True)
class Shape:
    """An annotated area of a slide.

    `names` are the names of its group and of the groups around it (ASAP), or of its class and the classes above
    (QuPath), the closest first. `rings` are closed curves, each an array (points, 2) of x and y in pixels at full
    resolution: a point is inside the area if it is inside an odd number of rings.
    """

    names: tuple[str, ...]
    rings: tuple[Points, ...]


def read_shapes(path: Path) -> list[Shape]:
    """Return the areas of an annotation file. Annotations without area, such as points, are left out.

    Raises UserError for a file that is neither ASAP's XML nor GeoJSON, or that is damaged.
    """
    readers: dict[str, Callable[[Path], Iterable[Shape]]] = {".xml": _asap, ".geojson": _geojson, ".json": _geojson}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise UserError(path, "is neither .xml nor .geojson", "export it as .xml (ASAP) or .geojson (QuPath)")
    shapes = [Shape(shape.names, tuple(ring for ring in shape.rings if len(ring) > 2)) for shape in reader(path)]
    return [shape for shape in shapes if shape.rings]


def _asap(path: Path) -> Iterator[Shape]:
    with readable(path, "XML"):
        size = path.stat().st_size
        if size > LARGEST:
            raise ValueError(f"{size} bytes are too many (limit {LARGEST})")
        root = ElementTree.parse(path).getroot()
        if root.tag != "ASAP_Annotations":
            raise ValueError(f"it begins with <{root.tag}>, where ASAP writes <ASAP_Annotations>")
        parents = {group.get("Name", ""): group.get("PartOfGroup", "") for group in root.iter("Group")}
        shapes = [
            Shape(_lineage(annotation.get("PartOfGroup", ""), parents), (_corners(annotation),))
            for annotation in root.iter("Annotation")
            if annotation.get("Type", AREAS[0]) in AREAS
        ]
    yield from shapes


def _lineage(group: str, parents: Mapping[str, str]) -> tuple[str, ...]:
    """Return the name of a group of ASAP and of the groups that contain it, the closest first; NAMELESS for none.

    `parents` maps each group to the group that contains it, or to ''.
    """
    names = list[str]()
    while group not in ("", NAMELESS, *names):
        names.append(group)
        group = parents.get(group, "")
    return tuple(names) or (NAMELESS,)


def _corners(annotation: ElementTree.Element) -> Points:
    """Return the points (n, 2) of an ASAP annotation in their order. Some versions of ASAP write a decimal comma."""
    nodes = sorted(annotation.iter("Coordinate"), key=lambda node: float(node.get("Order", "0").replace(",", ".")))
    return _points([[node.attrib[axis].replace(",", ".") for axis in "XY"] for node in nodes])


def _points(pairs: Sequence[Sequence[Any]]) -> Points:
    points = np.array([[float(number) for number in pair[:2]] for pair in pairs], np.float64).reshape(-1, 2)
    if not np.isfinite(points).all():
        raise ValueError("a coordinate is not a number")
    return points


def _geojson(path: Path) -> Iterator[Shape]:
    content = read_json(path)
    with readable(path, "GeoJSON"):
        whole = content.get("features", [content]) if isinstance(content, dict) else content
        shapes = [
            Shape(_classes(feature), tuple(map(_points, polygon)))
            for feature in whole
            for polygon in _polygons(feature["geometry"])
        ]
    yield from shapes


def _classes(feature: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the class of a QuPath feature and those above it: `Tumor: Positive`, then `Tumor`; NAMELESS for none."""
    classification = (feature.get("properties") or {}).get("classification") or {}
    parts = str(classification.get("name") or NAMELESS).split(": ")
    return tuple(": ".join(parts[:end]) for end in range(len(parts), 0, -1))


def _polygons(geometry: Mapping[str, Any]) -> list[Any]:
    """Return the polygons of a GeoJSON geometry, each a list of rings: the outline, then its holes."""
    if geometry["type"] == "GeometryCollection":
        return [polygon for inner in geometry["geometries"] for polygon in _polygons(inner)]
    if geometry["type"] == "MultiPolygon":
        return list(geometry["coordinates"])
    if geometry["type"] == "Polygon":
        return [geometry["coordinates"]]
    return []


def by_role(path: Path, shapes: Iterable[Shape], groups: Mapping[str, str]) -> dict[str, list[Shape]]:
    """Return the shapes of each role: tumour, hole and ignore.

    `groups` maps names to roles, without regard to case. The closest name of a shape that has a role decides. Raises
    UserError, located at `path`, that lists the names without a role.
    """
    roles = {folded(name): role for name, role in groups.items()}
    sorted_shapes = {role: list[Shape]() for role in ROLES}
    unknown = Counter[str]()
    for shape in shapes:
        role = next((roles[folded(name)] for name in shape.names if folded(name) in roles), "")
        if role:
            sorted_shapes[role].append(shape)
        else:
            unknown[shape.names[0]] += 1
    if unknown:
        names = ", ".join(f"{name!r} ({count})" for name, count in sorted(unknown.items()))
        remedy = f"say what they are: --groups '{min(unknown)}=ignore' (or tumour, or hole), once for each name"
        raise UserError(path, f"has areas whose names have no role: {names}", remedy)
    return sorted_shapes


def require_inside(path: Path, shapes: Iterable[Shape], size: tuple[int, int]) -> None:
    """Raise UserError for a shape that lies wholly outside of a slide of `size` (width, height).

    `path` is the annotation file.
    """
    for shape in shapes:
        points = np.concatenate(shape.rings)
        if (points.max(0) < 0).any() or (points.min(0) > size).any():
            x, y = (math.floor(number) for number in points[0])
            problem = (
                f"has an area {shape.names[0]!r} at x {x}, y {y}, outside of its slide of {size[0]} x {size[1]} pixels"
            )
            remedy = "is it the annotation of another slide? coordinates must be pixels at full resolution"
            raise UserError(path, problem, remedy)


def inside(rings: Sequence[Points], scale: float, shape: tuple[int, int]) -> tuple[Window, Mask]:
    """Return a window of a pixel grid, and a mask of the pixels in it whose centre is inside an odd number of rings.

    The window holds all such pixels. `scale` is the side of a pixel in the units of the rings, `shape` the rows and
    columns of the grid. A centre on the left or upper edge is inside, one on the right or lower edge is not: areas that
    share an edge share no pixel.
    """
    # the centres of pixels are whole numbers
    start = np.concatenate(rings) / scale - 0.5
    end = np.concatenate([np.roll(ring, -1, axis=0) for ring in rings]) / scale - 0.5
    first, last = np.sort(np.ceil([start[:, 1], end[:, 1]]).clip(0, shape[0]), axis=0).astype(np.int64)
    # number of rows whose centres an edge passes
    count = last - first
    edge = np.repeat(np.arange(len(start)), count)
    row = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    (x, y) = start[edge].T
    (dx, dy) = (end - start)[edge].T
    # an edge along a row passes no centre, so that dy is never 0 here
    column = np.ceil(x + (row - y) * dx / dy).clip(0, shape[1]).astype(np.int64)
    if not len(row):
        return (slice(0, 0), slice(0, 0)), np.zeros((0, 0), bool)
    top = int(row.min())
    left = int(column.min())
    crossed = np.zeros((int(row.max()) + 1 - top, int(column.max()) + 1 - left), np.uint8)
    # even-odd: a pixel is inside if an odd number of edges lies to its left
    np.bitwise_xor.at(crossed, (row - top, column - left), 1)
    np.bitwise_xor.accumulate(crossed, axis=1, out=crossed)
    # right of the last crossing nothing is inside
    height = crossed.shape[0]
    width = crossed.shape[1] - 1
    return (slice(top, top + height), slice(left, left + width)), crossed[:, :width].view(bool)


def area(shapes: Iterable[Shape], holes: Iterable[Shape], scale: float, shape: tuple[int, int]) -> Mask:
    """Return a mask (rows, columns) of the pixels of a grid that lie in any of the shapes and in none of the holes.

    `scale` is the side of a pixel in the units of the shapes, `shape` the rows and columns of the grid.
    """
    mask = np.zeros(shape, bool)
    for value, group in ((True, shapes), (False, holes)):
        for member in group:
            window, pixels = inside(member.rings, scale, shape)
            mask[window][pixels] = value
    return mask
