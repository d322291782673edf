"""Settings of inferences and of runs: which are drawn against what, and the values, by hand."""

from __future__ import annotations

from typing import Any

import pytest
from invented import made, row, tsmobn

from fedshift.figures import sweep, test_time
from fedshift.figures.sweep import Sweep, followers, swept

TestTime = test_time.TestTime
TestTime.__test__ = False  # type: ignore[attr-defined]

STAR = [(0.9, 2, 0), (0.9, 32, 0), (0.5, 32, 0), (0.9, 32, 1), (0.9, 32, 2)]


def star(sites: str = "tu") -> list[dict[str, Any]]:
    """Accuracy 0.01 x batch size at t, 0.1 more at u and with seed 1."""
    return [
        row("A", s, 0.01 * b + 0.1 * k + 0.1 * seed, "external", seed=seed, **tsmobn(m, b, o))
        for m, b, o in STAR
        for k, s in enumerate(sites)
        for seed in (0, 1)
    ]


def test_each_setting_varies_alone() -> None:
    found = test_time.swept(test_time.outside(made(star())))
    assert {c: sorted(part["shown"].unique()) for c, part in found.items()} == {
        "batch_size": ["TsmoBN [0.9, 2, 0]", "TsmoBN [0.9, 32, 0]"],
        "momentum": ["TsmoBN [0.5, 32, 0]", "TsmoBN [0.9, 32, 0]"],
        "order": ["TsmoBN [0.9, 32, 0]", "TsmoBN [0.9, 32, 1]", "TsmoBN [0.9, 32, 2]"],
    }
    assert test_time.fixed_options(found["momentum"]) == "batches of 32 and test order 0"


def test_a_curve_is_the_mean_over_sites_and_seeds() -> None:
    found = test_time.swept(test_time.outside(made(star())))
    curve = test_time.curve(found["batch_size"], "batch_size")
    assert curve.to_dict() == pytest.approx({2: 12, 32: 42}), "0.02 + 0.05 + 0.05, and 0.32 + 0.1"


def test_of_a_full_grid_the_middle_is_drawn() -> None:
    rows = [row("A", "t", 0.5, "external", **tsmobn(m, b)) for m in (0.5, 0.9) for b in (2, 32)]
    found = test_time.swept(test_time.outside(made(rows)))
    assert set(found["batch_size"]["momentum"]) == {0.9}
    assert set(found["momentum"]["batch_size"]) == {32}


def test_nothing_swept_or_nothing_outside_is_said() -> None:
    inside = [r | {"role": "internal"} for r in star()]
    one = [row("A", "t", 0.5, "external", **tsmobn())]
    for rows in (inside, one, [row("A", "t", 0.5, "external")]):
        assert TestTime().caption(made(rows)).startswith("No batch size, momentum or test order")


def test_the_caption_names_what_is_there() -> None:
    words = TestTime().caption(made([*star(), row("A", "t", 0.3, "external")]))
    assert "thin: single sites" in words
    assert "dotted: source" in words
    assert "boxes" in words
    assert "batch sizes at τ = 0.9 and test order 0" in words
    words = TestTime(thin=1).caption(made([r for r in star("t") if r["momentum"] == 0.9 and r["order"] == 0]))
    assert not any(word in words for word in ("thin", "dotted", "boxes"))


def test_more_sites_than_boxes_are_drawn_as_one() -> None:
    rows = star("tuvwxyz")
    assert ">all sites<" in TestTime().draw(made(rows))
    assert ">all sites<" not in TestTime(boxes=7).draw(made(rows))


def test_orders_alone_have_a_legend_and_sites_that_begin_alike_boxes_of_their_own() -> None:
    sites = ["hospital-number-1", "hospital-number-2"]
    rows = [row("A", s, 0.5, "external", **tsmobn(order=o)) for s in sites for o in (0, 1)]
    text = TestTime().draw(made(rows))
    assert ">A<" in text
    assert ">hospit…ber-1<" in text and ">hospit…ber-2<" in text


def runs(*specs: dict[str, Any], seeds: int = 1) -> dict[str, dict[str, Any]]:
    base = {"algorithm.name": "fedavg", "bn": "aggregated", "training.local_epochs": 1, "training.batch_size": 32}
    found = [base | spec | {"seed": s} for spec in specs for s in range(seeds)]
    return {f"run{n}": spec for n, spec in enumerate(found)}


def test_runs_that_differ_in_one_setting_and_seeds_make_a_line() -> None:
    settings = runs({"training.local_epochs": 1}, {"training.local_epochs": 4}, seeds=2)
    assert swept(settings) == {"training.local_epochs": [["run0", "run1", "run2", "run3"]]}
    assert swept(runs({}, seeds=3)) == {}


def test_runs_of_other_algorithms_make_lines_of_their_own() -> None:
    e = "training.local_epochs"
    settings = runs({e: 1}, {e: 4}, {e: 1, "bn": "local"}, {e: 4, "bn": "local"}, {e: 1, "algorithm.name": "pooled"})
    assert swept(settings) == {e: [["run0", "run1"], ["run2", "run3"]]}


def test_a_grid_has_a_line_for_each_value_of_the_other_setting() -> None:
    e, b = "training.local_epochs", "training.batch_size"
    settings = runs({e: 1, b: 10}, {e: 1, b: 50}, {e: 4, b: 10}, {e: 4, b: 50})
    assert swept(settings) == {e: [["run0", "run2"], ["run1", "run3"]], b: [["run0", "run1"], ["run2", "run3"]]}


def test_a_star_has_a_line_for_each_arm() -> None:
    e, b = "training.local_epochs", "training.batch_size"
    settings = runs({e: 1, b: 32}, {e: 4, b: 32}, {e: 1, b: 10}, {e: 1, b: 50})
    assert swept(settings) == {e: [["run0", "run1"]], b: [["run0", "run2", "run3"]]}


def test_what_varies_together_makes_one_panel() -> None:
    e, r = "training.local_epochs", "training.rounds"
    settings = runs({r: 300, e: 1}, {r: 75, e: 4}, {r: 18, e: 16})
    assert swept(settings) == {e: [["run0", "run1", "run2"]]}
    assert followers(settings) == {e: [r]}
    clients = runs(
        {"data.dataset.clients": 1, "partition.internal": ["a"]},
        {"data.dataset.clients": 2, "partition.internal": ["a", "b"]},
    )
    assert swept(clients) == {"data.dataset.clients": [["run0", "run1"]]}
    assert followers(clients) == {"data.dataset.clients": []}


def test_a_coarser_setting_follows_a_finer_one() -> None:
    e, lr = "training.local_epochs", "training.clip_norm"
    assert list(swept(runs({e: 1, lr: 1.0}, {e: 4, lr: 1.0}, {e: 16, lr: 2.0}))) == [e]


def test_words_never_follow_and_seeds_and_truths_are_no_settings() -> None:
    assert (
        swept(
            runs(
                {"training.local_epochs": 1, "training.schedule": "constant"},
                {"training.local_epochs": 4, "training.schedule": "cosine"},
            )
        )
        == {}
    )
    assert swept(runs({"data.dataset.seed": 0}, {"data.dataset.seed": 1})) == {}
    assert swept(runs({"training.equal_steps": False}, {"training.equal_steps": True})) == {}
    assert swept(runs({"algorithm.mu": 0.1}, {})) == {}, "a setting that one of them has not"


def limited(seeds: int = 2) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Two conditions, three sizes: None is all. Accuracy 0.1 x (n + 2 x seed) inside, 0.2 at t."""
    scores, settings = [], {}
    for c in ("FedAvg", "FedBN"):
        for n, limit in enumerate((None, 5, 10)):
            for seed in range(seeds):
                run = f"{c}-{limit}-{seed}"
                settings[run] = {"algorithm.name": c, "partition.limit.train": limit, "seed": seed}
                title = f"{c} [partition.limit.train={limit}], aggregated BN"
                about = {"run": run, "seed": seed}
                scores += [row(title, site, 0.1 * (n + 2 * seed) + d, **about) for site, d in (("x", 0.1), ("y", 0.3))]
                scores.append(row(title, "t", 0.2, "external", **about))
    return scores, settings


def test_points_of_a_line() -> None:
    scores, settings = limited()
    found = sweep.lines(made(scores, settings=settings))
    assert list(found) == ["partition.limit.train"]
    lines = found["partition.limit.train"]
    assert [line.label for line in lines] == ["FedAvg, aggregated BN", "FedBN, aggregated BN"]
    inside = lines[0].points["internal"]
    assert set(inside) == {5, 10, None}
    assert [inside[x][0] for x in (None, 5, 10)] == pytest.approx([30, 40, 50]), (
        "0.2 + 0.1 n, and 0.2 of the second seed: + 0.1"
    )
    assert inside[5][1] == pytest.approx(20 / 2**0.5)
    assert lines[0].points["external"][10] == pytest.approx((20, 0))
    text = Sweep().draw(made(scores, settings=settings))
    assert ">all<" in text
    assert "external" in text


def test_one_seed_has_no_whiskers() -> None:
    scores, settings = limited(1)
    assert "whiskers" not in Sweep().caption(made(scores, settings=settings))
    scores, settings = limited(2)
    assert "whiskers" in Sweep().caption(made(scores, settings=settings))


def test_lines_called_the_same_are_told_apart_by_their_settings() -> None:
    settings = {
        f"{e}-{b}": {
            "algorithm.name": "fedavg",
            "training.rounds": 300 // e,
            "training.local_epochs": e,
            "training.batch_size": b,
        }
        for e in (1, 3)
        for b in (10, 50)
    }
    scores = [row("FedAvg [x=1], local BN", "x", 0.5, run=run) for run in settings]
    found = sweep.lines(made(scores, settings=settings))
    assert {leaf: [line.label for line in of] for leaf, of in found.items()} == {
        "training.local_epochs": ["FedAvg, local BN, batch_size 10", "FedAvg, local BN, batch_size 50"],
        "training.batch_size": ["FedAvg, local BN, local_epochs 1", "FedAvg, local BN, local_epochs 3"],
    }
    assert "With local_epochs varies rounds." in Sweep().caption(made(scores, settings=settings))


def test_partitions_are_told_apart_unless_they_follow() -> None:
    many = {
        f"{c}-{h}": {"algorithm.name": "fedavg", "data.dataset.classes_per_client": c, "partition.held_out": h}
        for c in (2, 4)
        for h in "tu"
    }
    scores = [row("FedAvg, local BN", "x", 0.5, run=run, held_out=run[-1]) for run in many]
    found = sweep.lines(made(scores, settings=many))
    assert [line.label[-10:] for line in found["data.dataset.classes_per_client"]] == ["held out t", "held out u"]
    each = {run: own for run, own in many.items() if run in ("2-t", "4-u")}
    found = sweep.lines(made([s for s in scores if s["run"] in each], settings=each))
    assert [line.label for line in found["data.dataset.classes_per_client"]] == ["FedAvg, local BN"]


@pytest.mark.parametrize(
    ("title", "key", "label"),
    [
        ("FedAvg [training.lr=0.1], local BN", "training.lr", "FedAvg, local BN"),
        ('FedAvg [partition.internal=["a", "b"]], local BN', "x", "FedAvg, local BN"),
        ("FedProx(mu=0.1), local BN", "algorithm.mu", "FedProx, local BN"),
        ("FedProx(mu=0.1, form=norm), local BN", "algorithm.mu", "FedProx(form=norm), local BN"),
        ("FedProx(form=norm, mu=0.1), local BN", "algorithm.mu", "FedProx(form=norm), local BN"),
        ("FedProx(mu=0.1), local BN", "training.lr", "FedProx(mu=0.1), local BN"),
    ],
)
def test_the_setting_of_an_axis_is_not_in_the_name_of_a_line(title: str, key: str, label: str) -> None:
    assert sweep._without(title, key) == label


def test_with_many_lines_only_the_first_inference_is_drawn() -> None:
    scores, settings = limited(1)
    scores += [s | tsmobn() for s in scores]
    given = made(scores, settings=settings)
    assert len(sweep.lines(given)["partition.limit.train"]) == 4
    assert len(sweep.lines(given, most=3)["partition.limit.train"]) == 2
    assert "Drawn: Source; the tables have all inferences." in Sweep(most=3).caption(given)
    assert "Drawn" not in Sweep().caption(given)


@pytest.mark.parametrize(
    ("value", "key", "text"),
    [
        (None, "partition.limit.train", "all"),
        (None, "training.clip_norm", "none"),
        (0.1, "x", "0.1"),
        (128, "x", "128"),
    ],
)
def test_values_on_the_axis(value: Any, key: str, text: str) -> None:
    assert sweep.shown(value, key) == text
