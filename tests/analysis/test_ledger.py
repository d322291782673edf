"""The communication ledger: what papers print, what a federation measures, and what a forecast says before."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import fake_study
import pytest
import torch
import yaml
from rotation import of_day
from toy import TRAVELS, clients, network

from fedshift import Federation
from fedshift.algorithms import Algorithm, Local, Mean, Server
from fedshift.analysis.communication import Forecast, forecast, tables
from fedshift.cli import main
from fedshift.core.registry import build, discover
from fedshift.models import initialise
from fedshift.study.plan import Run

Rows = dict[str, dict[str, str]]

# ---- FedTAN's tables 3, 4, 5

MB, OVER_BN, OVER_GN = "MB, broadcast", '% over FedAvg [model.norm="batch"]', '% over FedAvg [model.norm="group"]'
TABLE3 = {
    "FedTAN": {MB: "6.2679", OVER_BN: "1.02"},  # printed over GroupNorm: 1.52, see below
    'FedAvg [model.norm="batch"]': {MB: "6.2049", OVER_BN: "0", OVER_GN: "0.51"},
    'FedAvg [model.norm="group"]': {MB: "6.1734", OVER_BN: "-0.51", OVER_GN: "0"},
}
GB, MESSAGES, EXTRA = "GB of rounded MB", "% extra messages", "% extra of rounded MB"
TABLE4 = {
    "FedTAN-II(exchange_rounds=1000)": {GB: "60.6563", MESSAGES: "85.07", EXTRA: "0.1014"},
    "FedTAN-II(exchange_rounds=2000)": {GB: "60.7178", MESSAGES: "91.94", EXTRA: "0.2027"},
    "FedTAN-II(exchange_rounds=4000)": {GB: "60.8408", MESSAGES: "95.80", EXTRA: "0.4045"},
    "FedTAN": {GB: "61.2100", MESSAGES: "98.28", EXTRA: "1.0051"},
}
TABLE5 = {
    "FedTAN-II(exchange_rounds=10)": {"Gbit": "2.1388", MESSAGES: "5.66", "% extra": "0.0100"},
    "FedTAN-II(exchange_rounds=50)": {"Gbit": "2.1397", MESSAGES: "23.08", "% extra": "0.0501"},
    "FedTAN-II(exchange_rounds=100)": {"Gbit": "2.1408", MESSAGES: "37.50", "% extra": "0.1002"},
    "FedTAN": {"Gbit": "2.1493", MESSAGES: "75", "% extra": "0.4992"},  # printed 2.1386, see below
}
RESNET_BN, RESNET_GN, CHANNELS = 271_098, 269_722, 688
MLP, MLP_CHANNELS = 23_920, 30
"""Floats of the networks: with running statistics, with group norm; without statistics."""


def plain(cell: str) -> str:
    """Without Markdown's escapes, and without what all conditions here have in common."""
    return re.sub(r"\\(.)", r"\1", cell.strip()).replace(", aggregated BN", "")


def parsed(markdown: str) -> list[Rows]:
    """All tables, each by the condition (or condition and rounds, where rows would be called the same) of a row."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        cells = [[plain(cell) for cell in row] for row in lines]
        header, _, *rows = cells
        kinds = header.index("Rounds") + 1 if "Clients" in header else 1
        names = [" ".join(row[:kinds]).removesuffix(" all") for row in rows]
        assert len(set(names)) == len(names)
        found.append({n: dict(zip(header, row, strict=True)) for n, row in zip(names, rows, strict=True)})
    return found


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where nothing is prepared, so that images are counted from what their dataset says."""
    monkeypatch.chdir(tmp_path)


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[Rows], str]:
    """The tables of a study that comes with the package, and its notes."""
    assert main(["ledger", name, "--scale", "paper"]) == 0
    out = capsys.readouterr().out
    return parsed(out), "\n".join(line for line in out.splitlines() if line.startswith("Note: "))


def differing(rows: Rows, published: Rows) -> list[tuple[str, str, str, str]]:
    """Published numbers that are not where they should be, to every printed digit."""
    assert set(rows) == set(published)
    return [
        (row, column, want, rows[row][column])
        for row, columns in published.items()
        for column, want in columns.items()
        if Decimal(rows[row][column].replace(",", "")) != Decimal(want)
    ]


def rounded(x: Fraction, digits: int) -> str:
    return f"{round(x * 10**digits) / 10**digits:.{digits}f}"


def test_table_3_of_fedtan(capsys: pytest.CaptureFixture[str]) -> None:
    (a_round, *_), notes = printed("fedtan-table3", capsys)
    assert differing(a_round, TABLE3) == []
    fedtan = RESNET_BN + 4 * CHANNELS
    in_percent_of = {base: rounded(Fraction(100 * (fedtan - RESNET_GN), base), 2) for base in (RESNET_BN, RESNET_GN)}
    assert in_percent_of == {RESNET_BN: "1.52", RESNET_GN: "1.53"}
    assert a_round["FedTAN"][OVER_GN] == "+1.53", "the one digit that is printed otherwise"
    assert "1.52" in notes
    assert "1.53" in notes


def test_table_4_of_fedtan(capsys: pytest.CaptureFixture[str]) -> None:
    (_, total, _), notes = printed("fedtan-table4", capsys)
    assert differing(total, TABLE4) == []
    assert "to four decimals before it adds them up" in notes
    for row, m in zip(TABLE4, (1000, 2000, 4000, 10_000), strict=True):
        floats, extra = (5 + 1) * (10_000 * RESNET_BN + m * 4 * CHANNELS), (5 + 1) * m * 4 * CHANNELS
        exact = {"GB": rounded(Fraction(4 * floats, 2**30), 4), "% extra": rounded(Fraction(100 * extra, floats), 4)}
        assert {key: total[row][key] for key in exact} == exact, "without rounding in between"
        assert total[row]["Messages"] == f"{10_000 + 3 * 19 * m:,}"


def test_table_5_of_fedtan(capsys: pytest.CaptureFixture[str]) -> None:
    (_, _, total), notes = printed("fedtan-table5", capsys)
    assert differing(total, TABLE5) == []
    without, extra = (5 + 1) * 500 * MLP, (5 + 1) * 500 * 4 * MLP_CHANNELS
    assert rounded(Fraction(4 * without, 2**27), 4) == "2.1386", "what is printed is the traffic without the extra"
    assert rounded(Fraction(4 * (without + extra), 2**27), 4) == "2.1493"
    for word in ("Gbit", "2.1386", "2.1493"):
        assert word in notes


# ---- what a federation measures: P = 4*2*9 + 4 + 2*4 + 6*4*9 + 6 + 2*6 + 3*6 + 3, of which BN has 2*(4 + 6)

P, W, S, LAYERS, FEATURES, CLASSES = 339, 319, 20, 2, 6, 3
ALGORITHMS = [(name, bn) for name in discover("algorithm") for bn in build("algorithm", name).policies]
SHORT: dict[str, Any] = {"fedtan2": {"exchange_rounds": 2}, "fedrep": {"head_epochs": 1}}
"""Settings of known algorithms that three rounds need; others run with their defaults."""
ROUNDS = 3


def spec(name: str) -> dict[str, Any]:
    return {"name": name, **SHORT.get(name, {})}


Moves = Callable[[int, int], tuple[int, ...]]
MOVES: dict[str, Moves] = {
    **dict.fromkeys(["local", "pooled"], lambda p, s: (0, 0)),
    **dict.fromkeys(
        ["fedavg", "fedbn", "silobn", "fedprox", "fedadam", "moon", "perfedavg", "fixbn"], lambda p, s: 2 * (p + s,)
    ),
    **dict.fromkeys(["fedavgm", "fedadagrad", "fedyogi", "fedsam"], lambda p, s: 2 * (p + s,)),
    **dict.fromkeys(["scaffold", "feddc"], lambda p, s: 2 * (2 * p + s,)),
    **dict.fromkeys(["fedtan", "fedtan2"], lambda p, s: 2 * (p + s + 2 * S,)),
    **dict.fromkeys(["fednova", "qffl"], lambda p, s: (p + s, p + s + 1)),
    "fedavg_alg2": lambda p, s: 2 * (p + s + S,),
}
"""Floats down and up of one client and round, where p parameters and s statistics travel, as papers count them."""
KEEPS = {"scaffold": (1, 1), "feddc": (2, 2), "fedavgm": (0, 1)}
KEEPS |= dict.fromkeys(["fedadam", "fedadagrad", "fedyogi"], (0, 2))
"""State at a client and at the server beside the model, in units of p; MOON's client keeps a whole model."""


def moves(name: str, p: int, s: int) -> tuple[int, int]:
    """Floats down and up of one client and round, of a published algorithm."""
    down, up = MOVES[name](p, s)
    return down, up


def keeps(name: str, p: int) -> tuple[int, int]:
    """Floats of state at a client and at the server, of a published algorithm."""
    if name == "moon":
        return P + S, 0
    client, server = KEEPS.get(name, (0, 0))
    return client * p, server * p


def travelling(bn: str) -> tuple[int, int]:
    return (P if "affine" in TRAVELS[bn] else W), (S if "statistics" in TRAVELS[bn] else 0)


def floats(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


class Watched:
    """Counter of the floats that the hooks of an algorithm return: those of `broadcast` and of `report`."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.returned: dict[str, list[int]] = {}
        cls = type(build("algorithm", name).canonical())
        for hook in ("broadcast", "report"):
            monkeypatch.setattr(cls, hook, self._counting(hook, getattr(cls, hook)))

    def _counting(self, hook: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            tensors = original(*arguments)
            self.returned.setdefault(hook, []).append(floats(tensors))
            return tensors

        return counting

    def each(self, hook: str) -> int:
        """Floats that every call of a hook returned; 0 where it was not called."""
        (size,) = set(self.returned.get(hook, [0]))
        return size


@pytest.mark.parametrize(("name", "bn"), of_day(ALGORITHMS, 4))
def test_floats_of_a_client_are_those_that_hooks_return(name: str, bn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every algorithm that is found: tensors that are sent are counted, and state does not grow."""
    watched = Watched(name, monkeypatch)
    trained = Federation(network(), clients(), algorithm=spec(name), bn=bn, training={"batch_size": 4}).run(1)
    model, joint = trained.server.shared.numel(), trained.algorithm.joint(1)
    layerwise = 0 if joint is None else S * (2 if joint.gradients else 1)
    down, up = model + watched.each("broadcast") + layerwise, watched.each("report") + layerwise
    counted = {(row["floats_down"], row["floats_up"]) for row in trained.history}
    assert counted == {(down, up)}, (
        f"{name}: the ledger must count the model and the tensors of `broadcast` on the way down, and those of "
        "`report` on the way up, see docs/add-an-algorithm.md; no table has to be edited for a new algorithm"
    )
    sizes = [floats(owner.state) for owner in (trained.server, *trained.clients)]
    trained.round()
    assert [floats(owner.state) for owner in (trained.server, *trained.clients)] == sizes, (
        f"{name}: state must not grow from round to round, see docs/add-an-algorithm.md"
    )


@pytest.mark.parametrize(("name", "bn"), [(name, bn) for name, bn in ALGORITHMS if name in MOVES])
def test_floats_of_a_client_are_those_of_the_paper(name: str, bn: str) -> None:
    """For published algorithms: section 1.14 of the facts, for whatever a BN policy leaves to travel."""
    trained = Federation(network(), clients(), algorithm=spec(name), bn=bn, training={"batch_size": 4}).run(1)
    p, s = travelling(bn)
    rows = trained.history
    assert [(row["floats_down"], row["floats_up"]) for row in rows] == len(rows) * [moves(name, p, s)]
    assert len(rows) == (1 if name == "pooled" else 3)
    at_client, at_server = keeps(name, p)
    assert {floats(client.state) for client in trained.clients} == {at_client}
    assert floats(trained.server.state) == at_server


@pytest.mark.parametrize("bn", ["aggregated", "local"])
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fednova"])
@pytest.mark.parametrize(
    ("addon", "head"),
    [("jigen", (FEATURES + 1) * (30 + 1)), ("csd", CLASSES * (FEATURES + 1) + 1), ("randconv", 0)],
)
def test_an_addon_adds_the_floats_of_its_head(addon: str, head: int, name: str, bn: str) -> None:
    """The head's floats travel as parameters do: an algorithm that sends twice sends them twice. CSD's e_d stays."""
    given = clients()
    trained = Federation(network(), given, algorithm=name, bn=bn, addon=addon, training={"batch_size": 4}).run(1)
    p, s = travelling(bn)
    assert {(r["floats_down"], r["floats_up"]) for r in trained.history} == {moves(name, p + head, s)}


@pytest.mark.parametrize("participation", [1.0, 2 / 3])
@pytest.mark.parametrize(("name", "layerwise"), [("fedavg", 0), ("fedavg_alg2", 2), ("fedtan", 3), ("fedtan2", 3)])
def test_a_federation_sums_up_its_rounds(name: str, layerwise: int, participation: float) -> None:
    """FedTAN-II exchanges layer by layer in two of three rounds; of three clients two or all take part."""
    training = {"rounds": ROUNDS, "batch_size": 4, "participation": participation}
    given = clients()
    trained = Federation(network(), given, validation=given, algorithm=spec(name), training=training).run()
    joint, taking_part = (2 if name == "fedtan2" else ROUNDS if layerwise else 0), round(participation * 3)
    floats = ROUNDS * (P + S) + joint * (moves(name, P, S)[0] - P - S)
    messages = ROUNDS + joint * layerwise * LAYERS
    everyone = taking_part * floats
    assert trained.ledger() == {"down": everyone, "down_broadcast": floats, "up": everyone, "messages": messages}


# ---- what is forecast

SHAPE = (1, 3, 3)
PERCEPTRON = {"name": "mlp", "hidden": 3}


def planned(
    name: str,
    bn: str,
    participation: float = 1.0,
    addon: str | None = None,
    model: dict[str, Any] = PERCEPTRON,
    **changes: Any,
) -> Run:
    """A run of four clients and a small network, by default: P = 9*3 + 3 + 2*3 + 2*3 + 2, S = 2*3."""
    made = fake_study.plan(
        Path(),
        model=model,
        training={"rounds": ROUNDS, "batch_size": 3, "participation": participation},
        partition={"internal": ["A", "B", "C", "D"], "external": ["E"]},
        runs=[{"algorithm": spec(name) | changes, "bn": bn, "addon": addon}],
        seeds=[0],
    )
    return next(iter(made.runs.values()))


def measured(run: Run, shape: tuple[int, ...] = SHAPE) -> dict[str, int]:
    """Return the ledger of a whole training."""
    generator = torch.Generator().manual_seed(1)
    data = {site: (torch.rand(7, *shape, generator=generator), torch.arange(7) % 2) for site in run.partition.internal}
    model, training = initialise(run.model, shape, 2, 0), run.training
    trained = Federation(model, data, algorithm=run.algorithm, bn=run.bn, addon=run.addon, training=training)
    return trained.run().ledger()


def agree(said: Forecast, moved: dict[str, int]) -> None:
    assert said.rounds == ROUNDS
    assert said.bytes(broadcast=False) == 4 * (moved["down"] + moved["up"])
    assert said.bytes(broadcast=True) == 4 * (moved["down_broadcast"] + moved["up"])
    assert said.messages == moved["messages"]


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("name", "bn"), of_day(ALGORITHMS, 4))
def test_a_forecast_is_what_a_federation_measures(name: str, bn: str, participation: float) -> None:
    run = planned(name, bn, participation)
    agree(forecast(run, SHAPE, 2), measured(run))


@pytest.mark.parametrize("addon", of_day(discover("addon"), 4))
@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedtan"])
def test_a_forecast_counts_what_an_addon_sends(name: str, addon: str) -> None:
    """Some add-ons need convolutions, and places between them."""
    run = planned(name, "aggregated", addon=addon, model={"name": "densenet_small", "growth": 2, "stem": 2})
    images = dict.fromkeys(run.partition.internal, 7)
    agree(forecast(run, (1, 20, 20), 2, images), measured(run, (1, 20, 20)))


@pytest.mark.parametrize("m", [0, 1, 2, 3])
def test_a_forecast_of_fedtan2_wherever_the_exchange_ends(m: int) -> None:
    run = planned("fedtan2", "aggregated", exchange_rounds=m)
    said = forecast(run, SHAPE, 2)
    agree(said, measured(run))
    assert [(phase.rounds, phase.messages) for phase in said.phases] == [
        (rounds, messages) for rounds, messages in ((m, 3 + 1), (ROUNDS - m, 1)) if rounds
    ]


class FromTheSecondRound(Algorithm):
    """FedAvg whose server sends four numbers more once a round is over, and whose clients answer with two."""

    paper = "control"

    def server_state(self, server: Server) -> dict[str, torch.Tensor]:
        return {"over": torch.zeros(1)}

    def broadcast(self, server: Server) -> dict[str, torch.Tensor]:
        return {"more": torch.zeros(4)} if server.state["over"] else {}

    def report(self, local: Local) -> dict[str, torch.Tensor]:
        answer = {"answer": torch.zeros(2)} if local.broadcast else {}
        return {"shared": local.shared, **answer}

    def update(self, server: Server, mean: Mean) -> None:
        server.state["over"].fill_(1)
        super().update(server, mean)


def test_a_message_that_begins_in_the_second_round_makes_two_phases() -> None:
    run = planned("fedavg", "aggregated").model_copy(update={"algorithm": FromTheSecondRound()})
    said = forecast(run, SHAPE, 2)
    agree(said, measured(run))
    assert [(phase.rounds, phase.down, phase.up) for phase in said.phases] == [(1, 50, 50), (ROUNDS - 1, 54, 52)]
    assert said.once == 0


def test_bytes_of_a_forecast_by_hand() -> None:
    """FedTAN: P = 44 and S = 6, four clients, three rounds of 44 + 3 * 6 floats each way, 4 bytes a float."""
    said = forecast(planned("fedtan", "aggregated"), SHAPE, 2)
    assert said.bytes(broadcast=True) == 4 * 3 * (1 + 4) * (44 + 18)
    assert said.bytes(broadcast=False) == 4 * 3 * (4 + 4) * (44 + 18)
    assert said.bytes(broadcast=True, statistics=False) == 4 * 3 * (1 + 4) * (44 + 12)
    assert said.extra_bytes(broadcast=True) == 4 * 3 * (1 + 4) * 12
    assert said.extra_bytes(broadcast=False) == 4 * 3 * (4 + 4) * 12
    assert said.phases[0].extra == 2 * 12


# ---- the command, of studies whose images are not known beforehand


def test_images_of_unknown_shape_must_be_prepared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "title": "Own images",
        "dataset": {"name": "own_images", "table": "samples.csv"},
        "partition": {"internal": ["A", "B"], "external": ["C"]},
        "model": "mlp",
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
    }
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    assert main(["ledger", "own.yaml"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "the shape of its images is not known before preparation; prepare it first: fedshift prepare" in line


def test_prepared_images_tell_their_shape(tmp_path: Path) -> None:
    """8x8 RGB into 30 hidden units and two classes; isolated clients move nothing, and nothing is divided by zero."""
    plan, paths = fake_study.build(tmp_path, runs=[{"algorithm": ["fedavg", "pooled", "local"]}], seeds=[0])
    a_round, total, _ = parsed("\n".join(table.md() for table in tables(plan, paths)))
    floats = 8 * 8 * 3 * 30 + 30 + 2 * 30 + 30 * 2 + 2 + 2 * 30
    assert a_round["FedAvg"]["Floats down"] == a_round["FedAvg"]["Floats up"] == f"{floats:,}"
    assert a_round["FedAvg"]["MB, unicast"] == rounded(Fraction(4 * 4 * floats, 2**20), 4)
    alone = [title for title in total if title != "FedAvg"]
    assert len(alone) == 2
    for title in alone:
        assert (a_round[title]["Floats down"], a_round[title]["Messages"]) == ("0", "0")
        assert (total[title]["% extra"], total[title]["GB"]) == ("–", "0.0000")


def test_layers_that_rest_are_told_in_percent_of_all(tmp_path: Path) -> None:
    """8x8 RGB into 30 hidden units and two classes: of 6,062 floats with batch norm, the last layer has 62."""
    trains = ("all", "head", ["norm", "head"])
    runs = [{"algorithm": "fedavg", "training": {"train": train}} for train in trains]
    plan, paths = fake_study.build(tmp_path, runs=runs, seeds=[0])
    (a_round, *_) = parsed("\n".join(table.md() for table in tables(plan, paths)))
    whole = 8 * 8 * 3 * 30 + 30 + 4 * 30 + 30 * 2 + 2
    sent = [whole, 30 * 2 + 2, 30 * 2 + 2 + 4 * 30]
    assert [row["Floats up"] for row in a_round.values()] == [f"{floats:,}" for floats in sent]
    saved = [rounded(Fraction(100 * (floats - whole), whole), 2) for floats in sent[1:]]
    assert [row["% over all layers"] for row in a_round.values()] == ["–", *saved]
