"""The page and its figures: words follow the numbers, nothing is loaded, nothing unescaped."""

import itertools
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import fake_study
import numpy as np
import pytest
from fake_study import EVIL, Right

from fedshift import files
from fedshift.figures import _canvas
from fedshift.paths import Paths
from fedshift.report import page, results, score, summary
from fedshift.study import Plan


def made(root: Path, right: Right = fake_study.helps, **changes) -> tuple[Plan, Paths, str]:  # type: ignore[no-untyped-def]
    """A study from predictions to its page."""
    plan, paths = fake_study.build(root, right, **changes)
    score.score(plan, paths)
    summary.summarise(plan, paths)
    for name in plan.study.figures:
        results.draw(plan, paths, name)
    return plan, paths, page.write(plan, paths).read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Tags with attributes, and the text of the page without tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths, str]:
    return made(tmp_path_factory.mktemp("whole"))


def test_page_is_one_small_file(whole: tuple[Plan, Paths, str]) -> None:
    plan, paths, html = whole
    assert paths.page(plan.name).stat().st_size < 2_000_000
    outline = Outline(html)
    for tag, attributes in outline.tags:
        assert tag not in ("script", "iframe", "object", "embed")
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value or (tag == "a" and value.startswith("https://doi.org"))
    assert not re.search(r"@import|url\((?!#)", html)


def test_names_are_text_everywhere(whole: tuple[Plan, Paths, str]) -> None:
    plan, paths, html = whole
    assert "<script" not in html.lower()
    assert "<b>friends" not in html
    assert "<i>markup" not in html
    assert EVIL in Outline(html).text
    for name in plan.study.figures:
        assert "<script" not in (paths.study(plan.name) / "figures" / f"{name}.svg").read_text()


def test_ids_are_unique_and_links_lead_somewhere(whole: tuple[Plan, Paths, str]) -> None:
    outline = Outline(whole[2])
    ids = [a["id"] for _, a in outline.tags if "id" in a]
    assert len(ids) == len(set(ids))
    references = [v[1:] for _, a in outline.tags for k, v in a.items() if k.endswith("href") and v and v[:1] == "#"]
    references += re.findall(r"url\(#([^)]+)\)", whole[2])
    references += [v for _, a in outline.tags for v in (a.get("aria-labelledby") or "").split()]
    assert set(references) <= set(ids)


def test_structure(whole: tuple[Plan, Paths, str]) -> None:
    tags = Outline(whole[2]).tags
    names = [t for t, _ in tags]
    assert all(names.count(t) == 1 for t in ("h1", "main", "header", "nav", "footer"))
    levels = [int(t[1]) for t in names if re.fullmatch(r"h[1-6]", t)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert names.count("table") == names.count("caption")
    assert all(a.get("scope") in ("col", "row") for t, a in tags if t == "th")


def test_synthetic_data_are_said_twice(whole: tuple[Plan, Paths, str], tmp_path: Path) -> None:
    assert Outline(whole[2]).text.count("Synthetic: not a result") == 2
    assert "stand for no hospital" in whole[2]
    html = made(tmp_path, synthetic=False)[2]
    text = Outline(html).text
    assert "not a result" not in text
    assert "stand for no hospital" not in text


def test_help_is_told_in_numbers(whole: tuple[Plan, Paths, str]) -> None:
    text = Outline(whole[2]).text
    assert (
        "FedAvg, aggregated BN: accuracy 90.0 ± 0.0 % at internal sites and 60.0 ± 0.0 % at external sites, with "
        "training statistics. The gap is 30.0 points, but no interval can be given (too few test patients at centre0 "
        "and centre3). TsmoBN recovers 67 % of the external loss: +20.0 points, 95% interval 20.0 to 20.0 over test "
        "patients, trainings fixed."
    ) in text
    assert "Incomplete" not in text


def lead(root: Path, outside: dict[str, float], inside: float = 0.9) -> str:
    def right(run, inference, site, role):  # type: ignore[no-untyped-def]
        return inside if role == "internal" else outside[inference]

    return Outline(made(root, right, seeds=[0], figures=[])[2]).text


@pytest.mark.parametrize(
    ("source", "tsmobn", "words"),
    [
        (0.6, 0.4, "TsmoBN does not help: it costs 20.0 points at external sites (95% interval −20.0 to −20.0 over"),
        (0.6, 0.6, "TsmoBN changes nothing at external sites"),
        (
            0.6,
            1.0,
            "TsmoBN recovers more than the external loss of 30.0 points: +40.0 points, 95% interval 40.0 to 40.0",
        ),
        (1.0, 0.9, "There is no loss outside to recover. TsmoBN does not help: it costs 10.0 points"),
        (0.9, 1.0, "There is no loss outside to recover. TsmoBN adds 10.0 points at external sites"),
    ],
)
def test_words_follow_the_numbers(tmp_path: Path, source: float, tsmobn: float, words: str) -> None:
    text = lead(tmp_path, {"source": source, "tsmobn": tsmobn})
    assert words in text
    assert "One seed: how much the result varies" in text


def test_no_external_site(tmp_path: Path) -> None:
    html = made(tmp_path, partition={"internal": ["centre0", "centre3"]}, figures=["sites"])[2]
    assert "no external site, so it cannot say how the model travels" in Outline(html).text


def test_lower_is_better_is_understood(tmp_path: Path) -> None:
    """Brier scores: right answers cost 0.04 a sample, wrong ones 0.64; a better TsmoBN lowers them."""
    text = Outline(made(tmp_path, headline="brier", figures=[])[2]).text
    assert "Brier score" in text
    assert "brier score 0.100 ± 0.000 at internal sites and 0.280 ± 0.000 at external sites" in text
    assert "TsmoBN recovers 67 % of the external loss: +0.120, 95% interval 0.120 to 0.120 over" in text


def test_missing_runs_are_loud(tmp_path: Path) -> None:
    plan, _, html = made(tmp_path, without={"bn": "local", "seed": 2})
    text = Outline(html).text
    gone = next(name for name, run in plan.runs.items() if (run.bn, run.seed) == ("local", 2))
    assert "Incomplete: 1 entry is missing." in text
    assert f"{gone} FedAvg, local BN 2 all not trained, or failed before the first checkpoint" in text
    assert "snakemake --cores all --config study=fake scale=mini" in text
    assert "(2 of 3 seeds)" in text


def test_a_condition_without_any_run_is_still_there(tmp_path: Path) -> None:
    text = Outline(made(tmp_path, without={"bn": "local"})[2]).text
    assert "Incomplete: 3 entries are missing." in text
    assert "FedAvg, local BN: no run of it has been scored" in text
    assert "FedAvg, local BN Source no run no run" in text


def test_shared_patients_are_a_problem(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, figures=[])
    table = fake_study.samples(plan)
    table.loc[table["site"] == EVIL, "patient"] = "centre0/0"
    files.write_table(paths.data(next(iter(plan.data))) / "samples.parquet", table)
    score.score(plan, paths)
    summary.summarise(plan, paths)
    text = Outline(page.write(plan, paths).read_text()).text
    assert "PROBLEM Patients shared by internal and external sites: 1 shared" in text
    assert "ok Patients shared by training and test: none" in text


def test_unknown_patients_are_a_caveat(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path, figures=[])
    table = fake_study.samples(plan).assign(patient=None)
    files.write_table(paths.data(next(iter(plan.data))) / "samples.parquet", table)
    score.score(plan, paths)
    summary.summarise(plan, paths)
    text = Outline(page.write(plan, paths).read_text()).text
    assert "unknown Patients shared by training and test: patients unknown" in text
    assert "Patients are unknown: intervals treat images as independent" in text


def test_bare_files_do(tmp_path: Path) -> None:
    """A page is written from scores alone: no manifest, rounds, card, samples or figures."""
    plan, paths = fake_study.build(tmp_path)
    score.score(plan, paths)
    summary.summarise(plan, paths)
    for pattern in ("runs/*/manifest.json", "runs/*/rounds.parquet", "data/*/*"):
        for path in (tmp_path / "results").glob(pattern):
            path.unlink()
    text = Outline(page.write(plan, paths).read_text()).text
    assert "This figure has not been drawn." in text
    assert "The samples or the partition of this study are not there." in text


def test_provenance(whole: tuple[Plan, Paths, str]) -> None:
    plan, _, html = whole
    text = Outline(html).text
    for word in (*plan.runs, "a" * 40, "0123456789ab", "python 3.11", "CC0", "raw.zip", "2025-01-01 00:00"):
        assert word in text
    # 2 clients x 1000 floats, down and up, 4 rounds, 4 bytes; 2 clients x 2 splits x 4 rounds of half a second
    assert "FedAvg, aggregated BN 0 4 2,000 2,000 64.0 kB 0:08 100" in text


@pytest.mark.parametrize(("name", "limit"), [("convergence", 150_000), ("sites", 150_000), ("patches", 300_000)])
def test_figures_are_light_well_formed_and_the_same_each_time(
    whole: tuple[Plan, Paths, str], name: str, limit: int
) -> None:
    plan, paths, _ = whole
    text = results.draw(plan, paths, name).read_text()
    assert results.draw(plan, paths, name).read_text() == text
    assert len(text.encode()) < limit
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root[0].tag.endswith("title")
    assert root[0].text
    assert _canvas.INK not in text
    assert "currentColor" in text
    assert "<metadata" not in text
    assert "<style" not in text


def test_patches_are_shrunk_to_a_light_file(tmp_path: Path) -> None:
    plan, paths = fake_study.build(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (len(fake_study.samples(plan)), 96, 96, 3), dtype=np.uint8)
    np.save(paths.data(next(iter(plan.data))) / "images.npy", noise)
    score.score(plan, paths)
    summary.summarise(plan, paths)
    assert results.draw(plan, paths, "patches").stat().st_size < 300_000


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


@pytest.mark.parametrize("colour", _canvas.COLOURS)
@pytest.mark.parametrize("ground", ["#ffffff", "#111111"])
def test_colours_stand_out_on_light_and_dark(colour: str, ground: str) -> None:
    low, high = sorted((luminance(colour), luminance(ground)))
    assert (high + 0.05) / (low + 0.05) >= 3
