"""Sites and a coordinator that share messages alone, against the simulation, whose bits they must give."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from in_memory import InMemory, difference, equal
from rotation import of_day
from toy import clients, network

from fedshift import Federation
from fedshift.algorithms import Algorithm, Training
from fedshift.algorithms.scaffold import Scaffold
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.messages import Message, content_of
from fedshift.engine.specification import Specification
from fedshift.jobs.replay import Replay

PLAIN: dict[str, Any] = {"rounds": 3, "batch_size": 6, "lr": 0.05}
ADDONS = sorted(registry.discover("addon"))


def cases() -> list[tuple[str, str]]:
    """All algorithms with each of their BN policies, except for what needs images in one place."""
    algorithms: dict[str, type[Algorithm]] = registry.discover("algorithm")
    return [(name, bn) for name in sorted(algorithms) for bn in algorithms[name].policies if name != "pooled"]


def both(
    folder: Path, training: dict[str, Any] | None = None, *, dropout: float = 0.2, **given: Any
) -> tuple[Federation, InMemory]:
    """A simulation, and a transport to equal sites; two of the three have validation images."""
    model, sites, validation = network(dropout=dropout), clients(), clients({"a": 5, "c": 4}, seed=1)
    about = {"training": PLAIN | (training or {}), "seed": 3, **given}

    def opened() -> Specification:
        return Specification.open(model, **about)

    transport = InMemory(opened, sites, folder, validation=validation)
    return Federation(model, sites, validation=validation, **about), transport


def run(transport: InMemory, rounds: int | None = None) -> Coordinator:
    return Coordinator.open(transport.opened(), transport, digest=transport.digest).run(rounds)


def without_loss(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in ("loss", "seconds")} for row in rows]


def require_equal(here: Federation, transport: InMemory, coordinator: Coordinator) -> None:
    """Every tensor has the same bits, and the ledger and the history the same numbers."""
    assert not coordinator.missing
    assert difference(here, transport, coordinator) == 0
    assert without_loss(here.history) == without_loss(coordinator.history)
    # The simulation computes the losses that it shows for all clients in one call, whose lanes round otherwise.
    losses = [[row["loss"] for row in rows] for rows in (here.history, coordinator.history)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-13)
    assert here.ledger() == coordinator.ledger()
    best, best_there = here.result(), coordinator.selected or coordinator.rounds.snapshot([])
    assert best.round == best_there.round
    assert torch.equal(best.shared, best_there.shared)
    # A site is predicted with the networks of the simulation, too.
    for k, name in enumerate(transport.names):
        received = best_there.received[k] if best_there.received else best_there.shared
        there = transport.site(name).networks(received, coordinator.since[k])
        for one, two in zip(here.networks(name).states, there.states, strict=True):
            assert equal(one, two)


def settings_of(algorithm: str) -> dict[str, Any]:
    """Settings with which an algorithm is tried.

    A joint step is tried without dropout: in the simulation a client's masks follow those of the clients before it.
    """
    if algorithm == "fedtan2":
        return {"algorithm": {"name": algorithm, "exchange_rounds": 2}, "dropout": 0.0}
    return {"algorithm": algorithm, "dropout": 0.0 if algorithm in ("fedtan", "fedavg_alg2") else 0.2}


@pytest.mark.parametrize(("algorithm", "bn"), of_day(cases(), 4))
def test_each_algorithm_gives_the_tensors_of_the_simulation(algorithm: str, bn: str, tmp_path: Path) -> None:
    here, transport = both(tmp_path, bn=bn, **settings_of(algorithm))
    require_equal(here.run(), transport, run(transport))


@pytest.mark.parametrize("algorithm", ["apfl", "fedavg", "fedbabu", "feddyn", "fedtan", "scaffold"])
def test_sites_that_stay_open_give_the_tensors_of_the_simulation_in_a_second_run_too(
    algorithm: str, tmp_path: Path
) -> None:
    here, transport = both(tmp_path, **settings_of(algorithm))
    transport.kept = True
    first = run(transport)
    for name in transport.names:
        (tmp_path / name / "asked.json").unlink()  # as a site does that is started with --restart
    require_equal(here.run(), transport, run(transport))
    assert torch.equal(first.server.shared, here.server.shared)


@pytest.mark.parametrize("addon", ADDONS)
def test_each_addon_gives_the_tensors_of_the_simulation(addon: str, tmp_path: Path) -> None:
    here, transport = both(tmp_path, addon=addon, algorithm="scaffold", bn="local")
    require_equal(here.run(), transport, run(transport))


@pytest.mark.parametrize(
    "training",
    [
        {"participation": 0.67, "rounds": 4},
        {"equal_steps": True, "weights": "uniform"},
        {"class_weights": "balanced"},
        {"class_weights": [1.0, 2.0, 3.0]},
        {"running_variance": "pooled"},
        {"training_loss_every": 2, "select_by": "loss", "patience": 1},
        {"select": "last", "schedule": "cosine", "epochs_at": {"b": 2}, "optimiser": "adam"},
    ],
    ids=lambda training: next(iter(training)),
)
def test_settings_of_training_travel(training: dict[str, Any], tmp_path: Path) -> None:
    here, transport = both(tmp_path, training)
    require_equal(here.run(), transport, run(transport))


def test_a_joint_step_takes_as_many_messages_as_its_paper_says(tmp_path: Path) -> None:
    """With L = 2 layers of batch norm, FedTAN takes 3 L + 1 and its simplification 2 L + 1."""
    for algorithm, count in (("fedtan", 7), ("fedavg_alg2", 5)):
        _, transport = both(tmp_path / algorithm, algorithm=algorithm, dropout=0.0)
        coordinator = run(transport, 1)
        assert {row["messages"] for row in coordinator.history if row["split"] == "train"} == {count}
        # One more is asked for in the end: whether a further mean is needed.
        assert transport.asked.count(("first_step", "a")) == count


@functools.cache
def stateful() -> list[str]:
    """Algorithms whose clients keep tensors between rounds."""
    found = {}
    for algorithm, bn in cases():
        if algorithm not in found:
            model, sites = network(), clients({"a": 13, "b": 9})
            given = {k: v for k, v in settings_of(algorithm).items() if k != "dropout"}
            fed = Federation(model, sites, bn=bn, training=PLAIN, **given)
            found[algorithm] = any(client.state for client in fed.round() or fed.clients)
    return [algorithm for algorithm, keeps in found.items() if keeps]


@pytest.mark.parametrize("algorithm", [*stateful(), "fedavg", "fedbabu"])
def test_a_task_that_comes_twice_counts_once(algorithm: str, tmp_path: Path) -> None:
    here, transport = both(tmp_path, **settings_of(algorithm))
    transport.times = 2
    require_equal(here.run(), transport, run(transport))


def test_stateful_algorithms_are_found() -> None:
    assert {"scaffold", "feddc", "feddyn", "ditto", "apfl", "fedap"} <= {*stateful()}


@pytest.mark.parametrize(
    ("algorithm", "addon"), [("scaffold", None), ("fedap", None), ("feddisco", None), ("fedavg", "amplitude")]
)
def test_a_coordinator_goes_on_after_the_last_round_that_was_saved(
    algorithm: str, addon: str | None, tmp_path: Path
) -> None:
    """Also after a round whose tasks were done, but whose end was not saved."""
    here, transport = both(tmp_path, algorithm=algorithm, addon=addon)
    coordinator = run(transport, 1)
    tensors, progress = coordinator.tensors(), json.loads(json.dumps(coordinator.progress()))
    coordinator.round()
    again = Coordinator.resume(transport.opened(), transport, tensors, progress).run()
    require_equal(here.run(), transport, again)


# ---- faults


def refusing(site: str, kind: str, number: int) -> Any:
    """A change that loses the answer of one site to one message, after the site has done its task."""

    def changed(name: str, answer: Message) -> Message:
        if (name, answer.kind, answer.about.get("round")) == (site, kind, number):
            raise UserError("link", "is down")
        return answer

    return changed


def test_who_does_not_answer_is_left_out_as_if_it_had_not_been_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control variate of that round is forgotten at the site, since the server never saw its change."""
    here, transport = both(tmp_path, {"select": "last"}, algorithm="scaffold")
    transport.changed = refusing("b", "train", 2)
    coordinator = run(transport)
    assert coordinator.missing == [{"round": 2, "site": "b", "kind": "train", "reason": "link: is down"}]
    asked = {0: [0, 1, 2], 1: [0, 2], 2: [0, 1, 2]}
    monkeypatch.setattr(Training, "clients_in_round", lambda self, n: len(asked[here.server.round]))
    monkeypatch.setattr(Scaffold, "sample", lambda self, server, count, rng: asked[server.round])
    assert difference(here.run(), transport, coordinator) == 0


@pytest.mark.parametrize("algorithm", ["fedtan", "fedavg_alg2"])
def test_a_joint_step_begins_anew_without_a_site_that_is_lost(algorithm: str, tmp_path: Path) -> None:
    _, transport = both(tmp_path, {"select": "last"}, algorithm=algorithm, dropout=0.0)
    lost = iter(range(100))
    transport.changed = lambda name, answer: (
        refusing("b", "first_step", 1)(name, answer) if name == "b" and next(lost) >= 2 else answer
    )
    coordinator = run(transport, 1)
    assert [(row["site"], row["kind"]) for row in coordinator.missing] == [("b", "first_step")]
    model, sites = network(dropout=0.0), {k: v for k, v in clients().items() if k != "b"}
    there = Federation(model, sites, algorithm=algorithm, training=PLAIN, seed=3).run(1)
    # Shares are those among three sites, divided by the sum of two: the last bit may differ from shares among two.
    assert torch.allclose(there.server.shared, coordinator.server.shared, rtol=1e-12, atol=1e-14)


def test_nobody_answers(tmp_path: Path) -> None:
    _, transport = both(tmp_path)
    coordinator = run(transport, 1)

    def changed(name: str, answer: Message) -> Message:
        raise UserError("link", "is down")

    transport.changed = changed
    with pytest.raises(UserError, match=r"round 2: no site answered \(a: link: is down; b: .*resume"):
        coordinator.round()


def altered(answer: Message, value: torch.Tensor) -> Message:
    return answer._replace(tensors={**answer.tensors, "shared": value})


@pytest.mark.parametrize(
    ("alter", "reason"),
    [
        (lambda a: altered(a, a.tensors["shared"] * float("nan")), "not finite"),
        (lambda a: altered(a, a.tensors["shared"][1:]), r"\(358,\)"),
        (lambda a: altered(a, a.tensors["shared"].float()), "float32"),
        (lambda a: a._replace(tensors={**a.tensors, "c": a.tensors["c"][1:]}), "other shapes than most"),
        (lambda a: a._replace(about={**a.about, "round": 7}), "for round 7"),
        (lambda a: a._replace(kind="keep"), "'keep' to 'train'"),
    ],
)
def test_answers_that_cannot_be_used_count_as_missing(alter: Any, reason: str, tmp_path: Path) -> None:
    _, transport = both(tmp_path, algorithm="scaffold")
    transport.changed = lambda name, a: alter(a) if (name, a.kind) == ("a", "train") else a
    coordinator = run(transport, 1)
    (missing,) = coordinator.missing
    assert missing["site"] == "a"
    assert re.search(reason, missing["reason"])
    assert {row["site"] for row in coordinator.history if row["split"] == "train"} == {"b", "c"}


def test_sites_that_do_not_fit_are_refused_before_the_first_round(tmp_path: Path) -> None:
    _, transport = both(tmp_path)
    with pytest.raises(UserError, match=r"site 'a'.*another specification or code.*\n.*site 'b'"):
        Coordinator.open(transport.opened(), transport, digest="another")
    transport.changed = lambda name, a: a._replace(about={**a.about, "classes": 9}) if name == "b" else a
    with pytest.raises(UserError, match=r"site 'b': has classes 9, expected 3"):
        run(transport)
    transport.names = ["a", "a", "b"]
    with pytest.raises(UserError, match="two have the name 'a'"):
        run(transport)


def test_what_needs_images_in_one_place_says_so(tmp_path: Path) -> None:
    _, transport = both(tmp_path, algorithm="pooled")
    with pytest.raises(UserError, match="pooled needs the images of all sites in one place"):
        run(transport)


@pytest.mark.parametrize(("algorithm", "addon"), [("feddisco", None), ("fedavg", "amplitude")])
def test_what_is_derived_from_images_leaves_only_with_consent(
    algorithm: str, addon: str | None, tmp_path: Path
) -> None:
    _, transport = both(tmp_path, algorithm=algorithm, addon=addon)
    transport.sends_offers = False
    with pytest.raises(UserError, match="sends what it derives from the images of site 'a'"):
        run(transport)


def test_a_site_without_its_state_says_so(tmp_path: Path) -> None:
    _, transport = both(tmp_path, {"select": "last"})
    coordinator = run(transport, 1)
    for path in (tmp_path / "b").glob("round-*"):
        path.unlink()
    coordinator.round()
    assert {row["site"] for row in coordinator.missing} == {"b"}
    assert "the state after round 1 is not kept here" in coordinator.missing[0]["reason"]


def test_a_site_that_has_lost_what_it_was_sent_misses_one_round_and_is_sent_all_of_it_again(tmp_path: Path) -> None:
    _, transport = both(tmp_path, {"rounds": 4}, algorithm="scaffold")
    coordinator = run(transport, 1)
    for path in (tmp_path / "a").glob("held-*"):
        path.unlink()
    coordinator.round()
    (missing,) = coordinator.missing
    assert (missing["site"], missing["round"], missing["kind"]) == ("a", 2, "train")
    assert "does not hold received; the coordinator sends it again" in missing["reason"]
    coordinator.run()
    assert coordinator.missing == [missing]
    model, validation = network(dropout=0.2), clients({"a": 5, "c": 4}, seed=1)
    about = {"training": PLAIN | {"rounds": 4}, "seed": 3, "algorithm": "scaffold"}
    there = Replay(Specification.open(model, **about), clients(), validation=validation, missing=[missing])
    assert difference(there.run(), transport, coordinator) == 0


def test_a_site_is_sent_each_tensor_once(tmp_path: Path) -> None:
    _, transport = both(tmp_path, algorithm="fedtan", dropout=0.0)
    contents = []
    ask = transport.ask

    def noted(messages: Any) -> Any:
        contents.extend(content_of(t) for m in messages.values() for t in m.tensors.values() if m.kind != "begin")
        return ask(messages)

    transport.ask = noted  # type: ignore[method-assign]
    transport.names = ["a"]
    run(transport)
    assert len(contents) == len(set(contents)) > 3
