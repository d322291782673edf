"""Annotations of ASAP and QuPath: areas, names, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from slide_files import asap, geojson, square

from fedshift.core.errors import UserError
from fedshift.slides.annotations import GROUPS, by_role, read_shapes, require_inside


def counts(path: Path, **groups: str) -> dict[str, int]:
    return {role: len(shapes) for role, shapes in by_role(path, read_shapes(path), GROUPS | groups).items()}


def test_asap_names_its_groups_in_several_ways(tmp_path: Path) -> None:
    names = ("Tumor", "metastases", "_0", "normal", "Exclusion", "None", "")
    path = asap(tmp_path / "a.xml", *((name, square(0, 9)) for name in names))
    assert counts(path) == {"tumour": 3, "hole": 2, "ignore": 2}


def test_asap_decimal_commas_and_order_of_points(tmp_path: Path) -> None:
    path = asap(tmp_path / "a.xml", ("Tumor", square(0.5, 9.5)))
    text = path.read_text().replace(".5", ",5").replace('Order="1"', 'Order="9"')
    path.write_text(text)
    (shape,) = read_shapes(path)
    assert shape.rings[0].tolist() == [[0.5, 0.5], [9.5, 9.5], [0.5, 9.5], [9.5, 0.5]]


def test_points_have_no_area(tmp_path: Path) -> None:
    path = asap(tmp_path / "a.xml", ("Tumor", square(0, 9)), ("fold", square(0, 9)))
    path.write_text(path.read_text().replace('Name="a1" Type="Polygon"', 'Name="a1" Type="PointSet"'))
    assert counts(path) == {"tumour": 1, "hole": 0, "ignore": 0}


def test_a_group_without_a_role_takes_that_of_the_group_around_it(tmp_path: Path) -> None:
    groups = '<Group Name="itc" PartOfGroup="Metastases" /><Group Name="Metastases" PartOfGroup="None" />'
    path = asap(tmp_path / "a.xml", ("itc", square(0, 9)), groups=groups)
    assert counts(path)["tumour"] == 1
    assert counts(path, itc="ignore") == {"tumour": 0, "hole": 0, "ignore": 1}
    loop = asap(tmp_path / "b.xml", ("a", square(0, 9)), groups='<Group Name="a" PartOfGroup="a" />')
    with pytest.raises(UserError, match=r"no role: 'a' \(1\)"):
        counts(loop)


def test_names_without_a_role_are_all_listed(tmp_path: Path) -> None:
    areas = [("Tumor", square(0, 9)), ("Necrosis", square(0, 9)), ("fold", square(0, 9)), ("fold", square(3, 9))]
    path = asap(tmp_path / "a.xml", *areas)
    with pytest.raises(UserError) as error:
        counts(path)
    assert str(error.value) == (
        f"{path}: has areas whose names have no role: 'Necrosis' (1), 'fold' (2); "
        "say what they are: --groups 'Necrosis=ignore' (or tumour, or hole), once for each name"
    )
    assert counts(path, necrosis="hole", FOLD="ignore") == {"tumour": 1, "hole": 1, "ignore": 2}


def test_geojson_of_qupath(tmp_path: Path) -> None:
    ringed = {"type": "Polygon", "coordinates": [square(0, 20), square(5, 10)]}
    several = {"type": "MultiPolygon", "coordinates": [[square(0, 3)], [square(4, 9)]]}
    mixed = {"type": "GeometryCollection", "geometries": [ringed, {"type": "Point", "coordinates": [1, 1]}]}
    line = {"type": "LineString", "coordinates": [[0, 0], [5, 5]]}
    areas = [("Tumor: Positive", ringed), ("Tumor", several), ("Ignore*", mixed), (None, ringed), ("Stroma", line)]
    path = geojson(tmp_path / "a.geojson", *areas)
    assert counts(path) == {"tumour": 3, "hole": 0, "ignore": 2}
    first = read_shapes(path)[0]
    assert first.names == ("Tumor: Positive", "Tumor") and [len(ring) for ring in first.rings] == [4, 4]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.xml", "<ASAP_Annotations>", "not a readable XML file"),
        ("a.xml", "<Annotations/>", "<Annotations>, where ASAP writes <ASAP_Annotations>"),
        ("a.geojson", "[1, 2]", "not a readable GeoJSON file"),
        ("a.json", '{"type": "Feature"}', "not a readable GeoJSON file"),
        ("a.geojson", '{"features": [{"geometry": {"type": "Polygon", "coordinates": [[[1, "x"]]]}}]}', "GeoJSON"),
        ("a.svg", "", "export it as .xml"),
    ],
)
def test_what_is_no_annotation(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=words):
        read_shapes(tmp_path / name)


def test_an_area_outside_of_the_slide_belongs_to_another(tmp_path: Path) -> None:
    path = asap(tmp_path / "a.xml", ("Tumor", square(900, 990)))
    require_inside(path, read_shapes(path), (950, 950))
    with pytest.raises(UserError, match="'Tumor' at x 900, y 900, outside of its slide of 800 x 950 pixels"):
        require_inside(path, read_shapes(path), (800, 950))
