"""What clients exchange once, before the first round: counted, forecast, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake_study
import pytest
from toy import CLASSES, SIZES, clients, network

from fedshift import Federation
from fedshift.algorithms import Collaboration, Traffic
from fedshift.algorithms._collaboration import NoCollaboration
from fedshift.analysis import communication
from fedshift.analysis.communication import SampleCounts, forecast
from fedshift.page.history import Trained, costs

AMPLITUDE = {"name": "amplitude", "fraction": 0.2, "bank": 10}
WINDOW = 2 * 3**2
"""Amplitudes of an image: two channels, and b = floor(0.2 * 6) = 1, so that the window is 3 x 3."""


def federation(algorithm: str = "fedavg", addon: Any = None, **training: Any) -> Federation:
    settings = {"rounds": 2, "batch_size": 4, **training}
    return Federation(network(), clients(), algorithm=algorithm, addon=addon, training=settings)


def test_numbers_that_are_passed_on_or_summed_up() -> None:
    sizes = {"a": 5, "b": 7, "c": 0}
    assert Traffic.passed_on(sizes, Collaboration()) == Traffic(down=7 + 5 + 12, down_broadcast=12, up=12)
    assert Traffic.summed_up(3, sizes, Collaboration()) == Traffic(down=9, down_broadcast=3, up=9)
    for alone, together in ((sizes, NoCollaboration()), ({"pooled": 12}, Collaboration())):
        assert Traffic.passed_on(alone, together) == Traffic.summed_up(3, alone, together) == Traffic()
    total = Traffic.passed_on(sizes, Collaboration()) + Traffic.summed_up(3, sizes, Collaboration())
    assert total == Traffic(33, 15, 21)
    assert (total.messages, Traffic().messages) == (1, 0), "all can be sent together"
    assert (total.floats(broadcast=True), total.floats(broadcast=False)) == (36, 54)


def test_offers_and_class_counts_are_in_the_ledger() -> None:
    """A client offers as many images as it has, at most the bank: 10 of 13, 10 of 22, 9 of 9."""
    offered = WINDOW * sum(min(10, n) for n in SIZES.values())
    plain = federation().run(1).ledger()
    trained = federation(addon=AMPLITUDE, class_weights="balanced")
    sent = {"down": 2 * offered + 3 * CLASSES, "down_broadcast": offered + CLASSES, "up": offered + 3 * CLASSES}
    assert trained.ledger() == {**sent, "messages": 1}, "before the first round"
    whole = trained.run(1).ledger()
    assert {key: whole[key] - plain[key] for key in whole} == {**sent, "messages": 1}
    after_two = trained.run(2).ledger()
    assert {key: after_two[key] - whole[key] for key in whole} == plain, "once, and not in every round"


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("local", {"addon": AMPLITUDE, "class_weights": "balanced"}),
        ("pooled", {"addon": AMPLITUDE, "class_weights": "balanced"}),
        ("fedavg", {"addon": "mixup", "class_weights": [1.0, 2.0, 3.0]}),
    ],
)
def test_who_hears_of_nobody_sends_nothing(algorithm: str, options: dict[str, Any]) -> None:
    assert federation(algorithm, **options).beforehand == Traffic()


# ---- forecast and shown


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A study of colour images 8x8 at two clients, whose window has b = 1, whose bank no client fills."""
    training = {"rounds": 2, "batch_size": 2, "class_weights": "balanced"}
    runs = [{"algorithm": "fedavg", "addon": [None, {**AMPLITUDE, "fraction": 0.125, "bank": 10**5}]}]
    folder: Path = tmp_path_factory.mktemp("before")
    return fake_study.build(folder, lambda *_: 0.9, runs=runs, training=training, seeds=[0], figures=[])


def test_a_forecast_knows_how_many_images_clients_have(study: Any) -> None:
    plan, paths = study
    counts = SampleCounts(paths)
    for run in plan.runs.values():
        images = counts.training(run)
        assert set(images) == set(run.partition.internal)
        assert min(images.values()) > 0
        n, classes = len(images), len(run.data.dataset.classes)
        offers = 3 * 3**2 * sum(images.values()) if run.addon else 0
        said = forecast(run, counts.shape(run), classes, images)
        up = offers + n * classes
        assert said.beforehand == Traffic((n - 1) * offers + n * classes, offers + classes, up)
        before = 4 * (up + offers + classes)
        floats = said.phases[0].floats(broadcast=True)
        assert said.bytes(broadcast=True) == before + 2 * 4 * floats
        assert said.extra_bytes(broadcast=True) == before
        assert said.messages == 3
        assert forecast(run, counts.shape(run), classes).beforehand.up >= up, "unknown numbers are large ones"


def test_the_tables_have_a_row_for_it(study: Any) -> None:
    plan, paths = study
    known = SampleCounts(paths)
    images = [sum(known.training(run).values()) for run in plan.runs.values()]
    a_round, *_ = communication.tables(plan, paths)
    rows = [dict(zip(a_round.header, row, strict=True)) for row in a_round.rows]
    early = [row for row in rows if row["Rounds"] == "before 1"]
    assert len(early) == 2
    assert len(rows) == 4
    n = int(early[0]["Clients"])
    classes = len(next(iter(plan.runs.values())).data.dataset.classes)
    assert early[0]["Floats up"] == early[0]["Floats down"] == f"{classes}"
    per_client = 27 * images[1] / n
    assert early[1]["Floats up"] == f"{round(per_client + classes):,}"
    assert early[1]["Floats down"] == f"{round((n - 1) * per_client + classes):,}"
    assert early[1]["MB, broadcast"] == f"{4 * (2 * 27 * images[1] + (n + 1) * classes) / 2**20:.4f}"
    assert "before round 1" in a_round.caption


def test_the_page_counts_it_in_what_a_run_sent() -> None:
    without, with_offers = (
        Trained("fedavg-0", "FedAvg", 0, manifest, 2, 1e6, 1e6, 3.0) for manifest in ({}, {"floats_before": 250_000})
    )
    table = costs([without, with_offers])
    column, total = (table.header.index(name) for name in ("Before round 1", "Sent in all"))
    assert [row[column] for row in table.rows] == ["0.0 kB", "1.0 MB"]
    assert [row[total] for row in table.rows] == ["8.0 MB", "9.0 MB"]
    assert "Before round 1" not in costs([without]).header
