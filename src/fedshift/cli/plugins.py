"""The commands test-plugin, algorithms and schema: checks of a plug-in, and generated documentation."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..algorithms import Algorithm
from ..analysis.values import DASH, Table
from ..core import registry
from ..core.registry import line_in
from ..nn.policies import POLICIES
from ..study import declaration
from .group import Group

if TYPE_CHECKING:
    from ..contract import Case
    from ..interface.federation import Federation


def add(group: Group) -> None:
    """Add the command `fedshift test-plugin` to a group."""
    command = group.add(test_plugin, work="loading the checks of a plug-in")
    command.add_argument(
        "file", type=Path, metavar="FILE", help="Python file with the plug-in, such as plugins/half.py"
    )


def test_plugin(args: argparse.Namespace) -> int:
    """Run all checks of the contract on the plug-in in a file, and print the results. Returns 1 if a check fails."""
    from ..contract import cases

    cls = registry.add_file(args.file)
    print(f"{cls.kind} {cls.name}: {cls.summary()}")
    results = []
    first = dict[str, str]()
    for case in cases(cls):
        words = _fault(case, Path(inspect.getfile(cls)).parent)
        result = "passed"
        if words:
            result = "noted" if case.advice else "failed"
            case_of_words = first.setdefault(words, case.title)
            words = f": {words}" if case_of_words == case.title else f": as in {case_of_words!r}"
        results.append(result != "failed")
        print(f"{result:<8}{case.title}{words}", flush=True)
    print(f"{sum(results)} of {len(results)} checks passed")
    return int(not all(results))


def _fault(case: Case, folder: Path) -> str:
    """Run one check and return the fault as text, or "" if it passes.

    An unexpected error is given with its line in the plug-in's folder.
    """
    from ..contract import Broken

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # notes on small networks, which tell an author nothing
            case.check()
    except Broken as error:
        return " ".join(str(error).split())
    except Exception as error:
        place = line_in(error, folder)
        return " ".join(f"{type(error).__name__}: {error}{place and f' ({place})'}".split())
    return ""


def add_documentation(group: Group) -> None:
    """Add the commands `fedshift algorithms` and `fedshift schema` to a group."""
    group.add(algorithms, work="measuring what each algorithm sends")
    group.add(schema, work="describing all keys")


def schema(args: argparse.Namespace) -> None:
    """Print the JSON schema of a study's YAML file, for editors."""
    print(json.dumps(declaration.schema(), indent=2))


LATE = 10_000
"""The number of a round so late that every initial phase of an algorithm has ended."""
TEXT = """# Algorithms

Made by `fedshift algorithms` from the plug-ins in `src/fedshift/algorithms/`, whose docstrings say more: equations,
defaults and where they come from, and what reference implementations do otherwise.

P are the trainable parameters, W those outside of batch norm and A those inside; S are the running means and variances.
A model has L batch-norm layers. Floats are those of one client in one round, counted on what a client of a small
network really receives and sends. Messages are those in one direction that clients wait for. What a client keeps
includes what the BN policy keeps local. Penalties, control variates and server moments cover only parameters that are
trained and travel. Running statistics are averaged where they travel; BN's counters never travel. H are the parameters
of the last linear layer, where it is treated otherwise than the rest. There is one client here: a server that keeps one
float for it keeps N for N clients.

"""
HEADER = (
    *("Name", "What it does", "Paper", "BN policies", "Down, up", "Down, up with local BN", "Messages"),
    *("Client keeps", "Server keeps"),
)
"""Columns of the table of algorithms."""


def algorithms(args: argparse.Namespace) -> None:
    """Print docs/algorithms.md: a table of what each algorithm does, sends (measured) and keeps."""
    rows = tuple(tuple(_row(name, cls)) for name, cls in sorted(registry.discover("algorithm").items()))
    table = Table("Names are what a study says under algorithm", HEADER, rows, len(HEADER))
    print(TEXT + table.md(), end="")


def _row(name: str, cls: type[registry.Plugin]) -> Iterator[str]:
    """Yield the cells of an algorithm in the table of algorithms, in the order of HEADER."""
    algorithm: Algorithm = registry.build("algorithm", name)
    policies = [bn for bn in ("aggregated", "local") if bn in algorithm.policies]
    trained: dict[str, Federation] = {bn: _after_a_round(algorithm, bn) for bn in policies}
    moved = {bn: _moved(federation) for bn, federation in trained.items()}
    if not trained:
        trained = {"": _after_a_round(algorithm)}
        moved = {"aggregated": _moved(trained[""])}
    first = next(iter(trained.values()))
    yield name
    yield cls.summary().replace("`", "")
    yield algorithm.paper
    yield "all" if algorithm.policies == tuple(POLICIES) else ", ".join(algorithm.policies)
    yield moved.get("aggregated", DASH)
    yield moved.get("local", DASH)
    # Several messages only where every batch-norm layer waits for one.
    yield _then(first, lambda row: f"{row['messages'] - 1} L + 1" if row["messages"] > 1 else str(row["messages"]))
    at_client = sum(t.numel() for t in first.clients[0].state.values())
    state = [_floats(first, at_client)] if at_client else []
    yield " + ".join([*_staying(first), *state]) or DASH
    at_server = sum(t.numel() for t in first.server.state.values())
    yield _floats(first, at_server) if at_server else DASH


def _after_a_round(algorithm: Algorithm, bn: str | None = None) -> Federation:
    """Return a small federation after two rounds, the first and round LATE, whose messages may differ.

    `bn` is the BN policy (default: the algorithm's usual one).
    """
    import torch

    from ..interface.federation import Federation
    from ..models import initialise

    x = torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    training = {"batch_size": 4, "select": "last"}
    model = initialise(registry.build("model", "mlp"), (1, 28, 28), 10, 0)
    federation = Federation(model, {"client": (x, torch.arange(4))}, algorithm=algorithm, bn=bn, training=training)
    federation.round()
    # Schedules such as that of FedTAN's joint step act late: the state jumps there instead of training so long.
    federation.server.round = LATE
    federation.round()
    return federation


def _staying(trained: Federation) -> list[str]:
    """Return the letters of the parts of the model that stay at a client, such as A for batch-norm parameters."""
    shared = trained.trainer.travels
    layout = trained.trainer.layout
    spans = {"A": layout.affine, "W": layout.weights, "S": layout.statistics}
    stays = [name for name, span in spans.items() if not (shared.start <= span.start and span.stop <= shared.stop)]
    # All parameters together have one letter in the papers.
    if stays[:2] == ["A", "W"]:
        stays = ["P", *stays[2:]]
    layers = {"full": [], "head_home": ["H"], "body_home": ["P - H"]}[trained.algorithm.layers]
    return layers + stays


def _then(trained: Federation, cell: Callable[[Mapping[str, Any]], str]) -> str:
    """Return the text of a table cell for the first round, followed by `, then` and the late round's if it differs.

    `cell` makes the text from a row of the federation's history.
    """
    return ", then ".join(dict.fromkeys(map(cell, trained.history)))


def _moved(trained: Federation) -> str:
    """Return the text of a table cell with the floats that a client receives and sends in a round."""

    def cell(row: Mapping[str, Any]) -> str:
        return ", ".join(dict.fromkeys(_floats(trained, row[key]) for key in ("floats_down", "floats_up")))

    return _then(trained, cell)


def _floats(trained: Federation, count: int) -> str:
    """Return a number of floats as a sum of parts of the model, such as `2P + S`; `H` if it is the last layer's.

    P are the trainable parameters (W without batch norm's), S the running statistics.
    """
    from ..nn.features import classifier

    if count == sum(p.numel() for p in classifier(trained.trainer.model).parameters()):
        return "H"
    # The counts of the three parts differ so much that a number can be read back as multiples of them.
    layout = trained.trainer.layout
    affine, weights, statistics = (s.stop - s.start for s in (layout.affine, layout.weights, layout.statistics))
    trainable = weights
    name = "W"
    if trained.trainer.travels.start <= layout.affine.start:
        trainable += affine
        name = "P"
    name = {"full": name, "head_home": f"({name} - H)", "body_home": "H"}[trained.algorithm.layers]
    times_trainable, remainder = divmod(count, trainable)
    times_statistics, ones = divmod(remainder, statistics)
    multiples = ((times_trainable, name), (times_statistics, "S"))
    parts = [word if times == 1 else f"{times}{word}" for times, word in multiples if times]
    return " + ".join([*parts, *([str(ones)] if ones else [])]) or "0"
