"""The worst outlines: the lines around masks, the figure, and which images it shows."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from xml.etree import ElementTree

import disc_study
import numpy as np
import pytest
from fake_study import predictions_of
from invented import made
from PIL import Image

from fedshift import UserError
from fedshift.analysis import study_results
from fedshift.core import registry
from fedshift.data.prepared import Prepared
from fedshift.figures import OutlinedImage, Results, SiteOutlines
from fedshift.figures._canvas import COLOURS
from fedshift.figures.outlines import HEAVIEST, outline
from fedshift.io.images import decoded, encoded
from fedshift.io.tables import read_table


def corners(path: str) -> list[np.ndarray]:
    """The corners (n, 2) of each closed line of a path."""
    lines = []
    for text in re.findall(r"M([^z]*)z", path):
        first, moves = text.split("l")
        start = np.array([float(n) for n in first.split()])
        steps = np.array([float(n) for n in moves.split()]).reshape(-1, 2)
        lines.append(np.vstack([start, start + steps.cumsum(0)]))
    return lines


def area(line: np.ndarray) -> float:
    """The signed area inside a closed line, by the shoelace formula."""
    x, y = line.T
    return float((x * np.roll(y, -1) - y * np.roll(x, -1)).sum() / 2)


def test_the_outline_of_a_box_cuts_half_a_pixel_off_at_its_corners() -> None:
    """Each of four corners loses a triangle with sides of half a pixel: 1/8. All else is the box."""
    mask = np.zeros((9, 12), dtype=bool)
    mask[2:6, 3:10] = True
    (line,) = corners(outline(mask))
    assert abs(area(line)) == pytest.approx(4 * 7 - 4 / 8)
    assert [*line.min(0), *line.max(0)] == [3, 2, 10, 6], "in pixels of the image, whose first one is 0 to 1"
    assert len(line) == 8, "points within a straight piece are left out"


def test_a_hole_has_a_line_of_its_own_and_a_mask_at_the_rim_is_closed() -> None:
    ring = np.ones((7, 7), dtype=bool)
    ring[3, 3] = False
    lines = corners(outline(ring))
    assert sorted(abs(area(line)) for line in lines) == pytest.approx([1 / 2, 49 - 1 / 2])
    assert sum(map(area, lines)) == pytest.approx(np.sign(area(max(lines, key=len))) * (49 - 1 / 2 - 1 / 2), abs=1)
    assert outline(np.zeros((4, 4), dtype=bool)) == ""


def image(reference: np.ndarray, predicted: np.ndarray, dice: float) -> OutlinedImage:
    return OutlinedImage(np.full((*reference.shape, 1), 90, np.uint8), reference[None], predicted[None], dice)


def shown(*images: OutlinedImage, site: str = "far") -> Results:
    sites = SiteOutlines(site, "external", "FedAvg", "Source", 3, 40, images)
    return dataclasses.replace(made(), outlines=lambda each: [sites])


BOX = np.zeros((16, 16), dtype=bool)
BOX[4:9, 4:9] = True
NONE = np.zeros_like(BOX)


def test_two_styles_of_lines_and_words_tell_reference_and_prediction_apart() -> None:
    svg = registry.build("figure", "outlines").draw(
        shown(image(BOX, NONE, 0), image(NONE, BOX, 0), image(BOX, BOX, 0.987))
    )
    root = ElementTree.fromstring(svg)
    texts = ["".join(e.itertext()) for e in root.iter() if e.tag.endswith("text")]
    heading = "far (external): the worst of 40 images (FedAvg, Source, seed 3)"
    words = ["Dice 0.0 %", "missed", "Dice 0.0 %", "false alarm", "Dice 98.7 %"]
    assert texts == ["reference", "prediction", heading, *words]
    lines = [e.attrib for e in root.iter() if e.get("stroke") in (COLOURS[0], COLOURS[1])]
    looks = {(line["stroke"], "stroke-dasharray" in line) for line in lines}
    assert len(looks) == 2, "one colour is solid, the other dashed"
    key, drawn = lines[:2], lines[2:]
    assert [line["stroke"] for line in drawn] == [key[k]["stroke"] for k in (0, 1, 0, 1)]
    caption = registry.build("figure", "outlines").caption(made())
    assert "solid blue" in caption
    assert "dashed orange" in caption


def test_long_outlines_leave_fewer_images_so_that_the_page_stays_light() -> None:
    dots = np.random.default_rng(0).random((2, 128, 128)) < 0.1
    one = registry.build("figure", "outlines").draw(shown(image(*dots, 0)))
    six = registry.build("figure", "outlines").draw(shown(*[image(*dots, 0)] * 6))
    assert 6 * len(one) > HEAVIEST >= len(six)
    assert six.count("<image") < 6


def test_without_masks_nothing_is_drawn() -> None:
    assert "Nothing to draw." in registry.build("figure", "outlines").draw(made())


# ---- which images


def test_the_images_with_the_lowest_dice_are_shown_with_their_masks(tmp_path: Path) -> None:
    """Dice, order and masks follow from predictions.parquet and masks.npy, read here by themselves."""
    plan, paths = disc_study.finished(tmp_path)
    sites = list(study_results.load(plan, paths).for_figures.outlines(4))
    assert [(site.site, site.role) for site in sites] == [
        ("east", "external"),
        ("north", "internal"),
        ("south", "internal"),
    ]
    (run,) = plan.runs.values()
    table = read_table(predictions_of(plan, paths, run.id))
    table = table[table["inference"] == "source"]
    prepared = Prepared(paths.data(run.data.id))
    row = {name: k for k, name in enumerate(prepared.samples["sample"])}
    for site in sites:
        rows = table[table["site"] == site.site]
        dice = 2 * rows["tp_disc"] / (2 * rows["tp_disc"] + rows["fp_disc"] + rows["fn_disc"])
        assert site.total == dice.notna().sum()
        assert [one.dice for one in site.worst] == pytest.approx(sorted(dice.dropna())[:4])
        assert rows["mask"].notna().sum() == 6
        kept = [
            (decoded(png, (16, 16), "x"), name) for png, name in zip(rows["mask"], rows["sample"], strict=True) if png
        ]
        for one in site.worst:
            names = [name for mask, name in kept if (mask == one.predicted[0]).all()]
            matching = [name for name in names if (prepared.images[row[name]] == one.image).all()]
            assert len(matching) == 1
            assert (prepared.masks[row[matching[0]]] == one.reference[0]).all()
            overlap = 2 * (one.predicted & one.reference).sum() / (one.predicted.sum() + one.reference.sum())
            assert one.dice == pytest.approx(overlap), "the mask is that of the image, whatever the test order"


def test_all_masks_are_kept_where_a_study_asks_for_them(tmp_path: Path) -> None:
    plan, paths = disc_study.finished(tmp_path, task={"name": "segmentation", "keep": "masks"})
    (run,) = plan.runs.values()
    table = read_table(predictions_of(plan, paths, run.id))
    test = table[table["split"] == "test"] if "split" in table else table
    for png, tp, fp in zip(test["mask"], test["tp_disc"], test["fp_disc"], strict=True):
        assert np.asarray(Image.open(io.BytesIO(png))).sum() == tp + fp


def test_a_study_that_keeps_numbers_has_the_ids_that_it_had_before_masks_could_be_kept() -> None:
    task = registry.build("task", "segmentation")
    assert "keep" not in task.identity()


@pytest.mark.parametrize("content", [b"", b"GIF89a", encoded(np.zeros((5, 4), np.uint8)), 3])
def test_a_mask_that_is_none_is_named(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^a\.parquet: holds a mask that cannot be read"):
        decoded(content, (4, 5), "a.parquet")


def test_masks_come_back_as_they_were() -> None:
    mask = np.random.default_rng(0).integers(0, 200, (7, 5)).astype(np.uint8)
    assert (decoded(encoded(mask), (7, 5), "x") == mask).all()


def test_a_page_without_the_figure_has_no_pixel_of_an_image(tmp_path: Path) -> None:
    plan, paths = disc_study.finished(tmp_path / "with")
    assert "data:image/png" in paths.page(plan.name).read_text(encoding="utf-8")
    plan, paths = disc_study.finished(tmp_path / "without", figures=["convergence"])
    assert "data:image/png" not in paths.page(plan.name).read_text(encoding="utf-8")
