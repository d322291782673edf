"""Trains one small federation after another, alone or as one of several processes, and keeps what came of each.

python ranks_worker.py OUT: started by torchrun, every process writes OUT/rank.pt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import squares
import torch
import toy
from rotation import of_day

from fedshift.core.errors import Interrupted, UserError
from fedshift.core.registry import discover
from fedshift.engine import ranks
from fedshift.engine.federation import Federation
from fedshift.engine.specification import Specification

SIZES = {"a": 13, "b": 22, "c": 9, "d": 17, "e": 12}
TRAINING = {"rounds": 3, "batch_size": 5, "lr": 0.1, "watch_every": 2}


def cases() -> dict[str, dict[str, Any]]:
    """Every algorithm as it asks for it, and settings that go through the processes in other ways."""
    more: dict[str, dict[str, Any]] = {"fedtan2": {"exchange_rounds": 1}, "fedrep": {"head_epochs": 1}}
    names = sorted(discover("algorithm"))
    plain = {name: {"algorithm": {"name": name} | more.get(name, {}), "training": TRAINING} for name in names}
    selected = TRAINING | {"select": "best_validation", "select_by": "dice"}
    masks: dict[str, dict[str, Any]] = {
        "local BN": {"algorithm": "scaffold", "bn": "local", "training": TRAINING},
        "a joint step": {"algorithm": "fedtan", "training": TRAINING},
        "a personal head": plain["fedrep"],
        "features of images": {"algorithm": "moon", "training": TRAINING},
        "the best Dice": {"algorithm": "fedavg", "training": selected},
        "weights of classes": {"algorithm": "fedavg", "training": TRAINING | {"class_weights": "balanced"}},
    }
    return plain | {
        "local BN": {"algorithm": "scaffold", "bn": "local", "training": TRAINING},
        "a few clients take part": {"algorithm": "fedavg", "training": TRAINING | {"participation": 0.4}},
        "pooled variance": {"algorithm": "fedavg", "training": TRAINING | {"running_variance": "pooled"}},
        "an add-on": {"algorithm": "fedavg", "addon": "csd", "training": TRAINING},
        "momentum": {"algorithm": "fedprox", "training": TRAINING | {"momentum": 0.5}},
        "the last round": {"algorithm": "moon", "training": TRAINING | {"select": "last"}},
        **{f"masks: {name}": case | {"task": "segmentation"} for name, case in masks.items()},
    }


def federation(case: dict[str, Any], among: ranks.Ranks) -> Federation:
    """The federation of a case, in float64: sums in another order differ in the last digits only."""
    source = squares if "task" in case else toy
    data = source.clients(SIZES)
    validation = {k: (x[:6], y[:6]) for k, (x, y) in source.clients(SIZES, seed=1).items() if k != "d"}
    watched = {f"outside {k}": of for k, of in source.clients({"f": 8, "g": 7}, seed=2).items()}
    specification = Specification.open(source.network(), **case)
    return Federation(specification, data, validation=validation, watched=watched, ranks=among)


def outcome(case: dict[str, Any], among: ranks.Ranks) -> dict[str, Any]:
    """All that a federation leaves; of its history all but the seconds."""
    try:
        trained = federation(case, among).run()
    except UserError as error:
        return {"refused": str(error)}
    clients = {c.name: trained.client_state(c.name) for c in trained.clients}
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in trained.history]
    return {"global": trained.global_state(), "clients": clients, "history": history, "tensors": trained.tensors()}


def errors(among: ranks.Ranks) -> Iterator[str]:
    """Return the errors of each process when one of them fails, is stopped, or has an error that cannot travel."""

    class StrangeError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    for error in (UserError("client 'b'", "has no images", "leave it out"), Interrupted(), StrangeError(1, 2)):

        def task(error: Exception = error) -> None:
            if among.rank == 1:
                raise error

        try:
            among.each(task)
        except Exception as heard:
            yield f"{type(heard).__name__}: {heard}"


def main(out: Path) -> None:
    with ranks.opened(torch.device("cpu")) as among:
        kept = {name: outcome(case, among) for name, case in of_day(cases().items(), 4)}
        heard = list(errors(among)) if among.count > 1 else []
        torch.save({"cases": kept, "heard": heard}, out / f"{among.rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
