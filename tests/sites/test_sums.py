"""A site that keeps its rows: what it sends in their place, what the server takes, and what the page says of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scored_study import page_of
from served_sites import Hospitals, trained
from three_sites import SITES, STUDY, write
from wrong_messages import wrong_about, wrong_tensors

from fedshift import study
from fedshift.analysis import score
from fedshift.core.errors import UserError
from fedshift.engine.coordinator import usable
from fedshift.engine.messages import Fault, Message, packed, unpacked
from fedshift.hospitals import study_server
from fedshift.hospitals.hospital import Hospital, leaves
from fedshift.hospitals.rows import groups, opened_rows, opened_sums
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table
from fedshift.jobs import run_files
from fedshift.jobs.run_files import SUMS
from fedshift.page import gallery
from fedshift.page.sections import sums_section

KEEPS = "north"
CHANGED: dict[str, Any] = {
    "model": "mlp",
    "partition": STUDY["partition"] | {"split": {"train": 0.25, "val": 0.25, "test": 0.5}},
    "training": STUDY["training"] | {"lr": 0.002},
    "metrics": ["accuracy", "balanced_accuracy", "auc", "ece"],
    "inferences": ["source", "tsmobn"],
}


def closed(root: Path, site: str) -> Hospital:
    """The side of a site that was prepared, started with --no-rows."""
    with contextlib.chdir(root / site):
        return Hospital(study.load(Path("study.yaml"), "mini"), site, Path("images.csv"), rows=False, offers=False)


class Served:
    """A study of three sites after its last round, of which one or all keep their rows."""

    def __init__(self, root: Path, *keep: str) -> None:
        self.root = root
        write(root, STUDY | CHANGED, images=120)
        self.hospitals = Hospitals(root)
        self.hospitals.sides |= {site: closed(root, site) for site in keep}
        with contextlib.chdir(root / "server"):
            self.plan = study.load(Path("study.yaml"), "mini")
            ((self.key, self.run),) = self.plan.runs.items()
        self.coordinator = trained(self.run, self.hospitals)
        with contextlib.chdir(root / "server"):
            files = Paths().run_files(self.run.id)
            run_files.write_served(self.run, self.coordinator, files, datetime.now(UTC), 1, torch.device("cpu"))
            self.missing = study_server.collect_rows(self.plan, {self.key: self.coordinator}, self.hospitals)
            self.levels = list(score.levels(self.plan, Paths()))
        self.answers = {n: a for n, m, a in self.hospitals.exchanged if m.kind == "rows"}
        self.joined = {about["name"]: about for about in self.coordinator.joined}

    def predicted(self, site: str, inference: str) -> tuple[np.ndarray, np.ndarray]:
        """Label and predicted class of each test image, as the site keeps them at home."""
        (path,) = (self.root / site).glob("results/runs/*/predictions-*.parquet")
        table = read_table(path)
        table = table[(table["split"] == "test") & (table["inference"] == inference)]
        return table["label"].to_numpy(), table[["p0", "p1"]].to_numpy().argmax(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(tmp_path_factory.mktemp("kept"), KEEPS)


@pytest.fixture
def sums(served: Served) -> Message:
    answer = served.answers[KEEPS]
    assert isinstance(answer, Message)
    return answer


def test_a_level_from_sums_is_that_of_the_rows(served: Served) -> None:
    assert served.missing == []
    assert [(level.site, level.inference) for level in served.levels] == [(KEEPS, "source"), (KEEPS, "tsmobn")]
    for level in served.levels:
        label, given = served.predicted(KEEPS, level.inference)
        right = label == given
        found = {metric.name: value for metric, value in level.values.items()}
        assert found.keys() == {"accuracy", "balanced_accuracy"}, "nothing else follows from classes alone"
        assert 0.5 < right.mean() < 1
        assert found["accuracy"].mean == pytest.approx(right.mean())
        recalls = [right[label == k].mean() for k in (0, 1)]
        assert found["balanced_accuracy"].mean == pytest.approx(np.mean(recalls))
        assert level.images == len(label) == 62
        # 31 test patients of two images each: six groups of five or six, so that there is an interval
        assert (level.patients, level.groups) == (31, 6)
        assert found["accuracy"].low < right.mean() < found["accuracy"].high


def test_no_number_of_a_single_image_leaves_a_site_that_keeps_its_rows(served: Served, sums: Message) -> None:
    assert {*sums.tensors} == {"counts"}
    counts = sums.tensors["counts"]
    assert (counts.dtype, tuple(counts.shape)) == (torch.int64, (2, 6, 2, 2))
    assert sums.about == {"texts": {"inference": ["source", "tsmobn"]}, "patients": [6, 5, 5, 5, 5, 5]}
    # patients have two images each, so that a group has at least ten
    assert counts.sum((2, 3)).tolist() == [[12, 10, 10, 10, 10, 10]] * 2
    label, given = served.predicted(KEEPS, "source")
    whole = np.zeros((2, 2), dtype=int)
    np.add.at(whole, (label, given), 1)
    assert counts[0].sum(0).tolist() == whole.tolist()
    assert "scored" not in served.joined[KEEPS]
    everything = [a.about for n, _, a in served.hospitals.exchanged if n == KEEPS and isinstance(a, Message)]
    assert "secret" not in json.dumps(everything)
    assert "Doe" not in json.dumps(everything)


def test_a_site_is_told_that_sums_leave(served: Served) -> None:
    said = "\n".join(leaves(served.hospitals.sides[KEEPS]))
    assert SUMS in said
    assert "rows of single images stay here" in said
    assert "drawn numbers of image" not in said
    assert SUMS not in "\n".join(leaves(served.hospitals.sides["east"]))


@pytest.mark.parametrize(
    ("patients", "number"), [(5, 1), (9, 1), (24, 1), (25, 5), (29, 5), (31, 6), (99, 19), (100, 20), (1000, 20)]
)
def test_groups_have_five_patients_or_more_and_there_are_five_to_twenty_or_one(patients: int, number: int) -> None:
    made = groups(range(patients))
    sizes = [len(group) for group in made]
    assert len(made) == number
    assert min(sizes) >= 5
    assert max(sizes) - min(sizes) <= 1
    assert sorted(person for group in made for person in group) == [*range(patients)]


def test_of_fewer_than_five_patients_nothing_leaves() -> None:
    with pytest.raises(UserError, match="cover 4 test patients, and sums of fewer than 5 never leave"):
        groups(range(4))


def wrong_counts(right: Message) -> Iterator[tuple[str, Message]]:
    """Sums that no images can have, or not these."""
    counts = right.tensors["counts"]

    def changed(by: dict[tuple[int, ...], int]) -> Message:
        other = counts.clone()
        for place, number in by.items():
            other[place] += number
        return right._replace(tensors={"counts": other})

    below = -1 - int(counts[0, 0, 0, 0])
    yield "negative, with the right sum", changed({(0, 0, 0, 0): below, (0, 0, 0, 1): -below})
    yield "an image more", changed({(0, 0, 0, 0): 1, (1, 0, 0, 0): 1})
    yield "an image less of one inference", changed({(1, 0, 0, int(counts[1, 0, 0, 1] > 0)): -1})
    yield "an image of another class in one inference", changed({(0, 0, 0, 0): 1, (0, 0, 1, 0): -1})
    yield "a sum beyond the largest integer", changed({(0, 0, 0, 0): 2**62, (0, 0, 0, 1): 2**62, (0, 0, 1, 0): 2**62})
    yield "fractions", right._replace(tensors={"counts": counts.double()})
    yield "one inference twice", right._replace(about=right.about | {"texts": {"inference": ["source", "source"]}})
    yield "another inference", right._replace(about=right.about | {"texts": {"inference": ["source", "tent"]}})
    yield "groups of four", right._replace(about=right.about | {"patients": [7, 5, 5, 5, 5, 4]})
    yield "more patients than images", right._replace(about=right.about | {"patients": [13, 5, 5, 5, 5, 5]})
    many = counts.new_zeros((2, 21, 2, 2))
    many[:, :6] = counts
    yield "21 groups", Message("rows", right.about | {"patients": [5] * 21}, {"counts": many})


def test_wrong_sums_are_a_missing_answer(served: Served, sums: Message) -> None:
    asked = next(m for n, m, _ in served.hospitals.exchanged if (n, m.kind) == (KEEPS, "rows"))
    images, inferences = served.joined[KEEPS]["summed"], served.plan.predictions(served.key)

    def outcome(wrong: Message) -> Message | Fault:
        def read(_: Message, answer: Message) -> None:
            opened_sums(answer, KEEPS, served.run, inferences, images)

        return usable(asked, unpacked(packed(wrong)), read)

    assert isinstance(outcome(sums), Message)
    rows = served.answers["east"]
    assert isinstance(rows, Message)
    attacks = [*wrong_about(sums), *wrong_tensors(sums), *wrong_counts(sums), ("rows of images", rows)]
    assert [name for name, wrong in attacks if isinstance(outcome(wrong), Message)] == []
    assert len(attacks) > 60


def test_sums_that_were_damaged_end_in_a_line(served: Served) -> None:
    with contextlib.chdir(served.root / "server"):
        file = Paths().run_files(served.run.id).sums
        whole = file.read_bytes()
        try:
            for damaged in (whole[: len(whole) // 2], b"", whole[:40] + b"\xff" + whole[41:]):
                file.write_bytes(damaged)
                with pytest.raises(UserError, match=r"sums\.parquet"):
                    list(score.levels(served.plan, Paths()))
        finally:
            file.write_bytes(whole)
        assert [level.line for level in score.levels(served.plan, Paths())] == [level.line for level in served.levels]


def test_sums_are_no_rows(served: Served, sums: Message) -> None:
    with pytest.raises(UserError, match="rows: have the columns counts"):
        opened_rows(sums, KEEPS, served.run, (), 100)


def test_the_page_says_what_is_missing_at_a_site_that_sent_sums(served: Served) -> None:
    with contextlib.chdir(served.root / "server"):
        score.score(served.plan, Paths())
        page = page_of(served.plan, Paths())
        told = json.loads(Paths().study_files(served.plan.name).headline.read_text(encoding="utf-8"))
        index = gallery.write(Path("studies"), Paths()).read_text(encoding="utf-8")
    assert "Missing at north: AUC and ECE, which need probabilities, with the intervals." in page
    assert "all scores, means and differences of this page are without north" in page
    for shown in (told["lead"], index):
        assert "all that is said here is without north." in shown
    assert "it was tested on 62 patients of east and south" in page, "30 and 32"
    assert f"in their place north sent {SUMS}" in page
    section = page.partition('id="sums"')[2].partition("</section>")[0]
    first = served.levels[0]
    for value in first.values.values():
        assert f"{100 * value.mean:.1f}" in section
        assert f"{100 * value.low:.1f} to {100 * value.high:.1f}" in section
    for words in (">31</td>", ">6</td>", "over groups of patients"):
        assert words in section


def test_with_few_patients_one_sum_leaves_and_has_no_interval(tmp_path: Path) -> None:
    write(tmp_path, STUDY | CHANGED, images=20)
    # all three sites: 20, 24 and 28 images of two a patient, half of the patients for the test
    hospitals = Hospitals(tmp_path)
    hospitals.sides = {site: closed(tmp_path, site) for site in SITES}
    with contextlib.chdir(tmp_path / "server"):
        plan = study.load(Path("study.yaml"), "mini")
        ((key, run),) = plan.runs.items()
    coordinator = trained(run, hospitals)
    with contextlib.chdir(tmp_path / "server"):
        run_files.write_served(run, coordinator, Paths().run_files(run.id), datetime.now(UTC), 1, torch.device("cpu"))
        assert study_server.collect_rows(plan, {key: coordinator}, hospitals) == []
        levels = list(score.levels(plan, Paths()))
        assert not Paths().partition(run.partition_id).exists()
    assert {(level.site, level.patients, level.groups) for level in levels} == {
        *(("east", 5, 1), ("north", 6, 1), ("south", 7, 1))
    }
    values = [value for level in levels for value in level.values.values()]
    assert all(value.known and np.isnan(value.low) for value in values)
    assert all("(–)" in level.line for level in levels)
    said: Any = SimpleNamespace(
        plan=plan,
        summed=levels[:1],
        sites_summed=["east"],
        nouns=SimpleNamespace(units="patients"),
        findings=SimpleNamespace(full=lambda condition: condition.title, name=str),
    )
    shown = sums_section(said)
    assert shown is not None
    assert "No interval: accuracy at east and balanced accuracy at east, with fewer than 5 groups" in str(shown.lines)


def test_of_masks_a_site_that_keeps_its_rows_sends_nothing(tmp_path: Path) -> None:
    dataset = STUDY["dataset"] | {"masks": {0: 0, 255: 1}}
    write(tmp_path, STUDY | {"task": "segmentation", "model": "unet_small", "dataset": dataset})
    side = closed(tmp_path, KEEPS)
    said = "\n".join(leaves(side))
    assert "of test images nothing leaves: the server writes no page of this study" in said
    assert SUMS not in said
    ((key, _),) = side.runs.items()
    answer = side.answer(Message("rows", {"run": key, "since": 2, "round": 2}, {}))
    assert isinstance(answer, Fault)
    assert "may not leave this site" in answer.reason
