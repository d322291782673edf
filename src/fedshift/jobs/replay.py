"""Repetition of a run that real sites have trained, in one process and with the same sites in each round."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..core.console import say
from ..core.errors import UserError, require_none
from ..datasets.own_images import OwnImages
from ..engine.client import SamplesBySite
from ..engine.federation import Federation, LocalRound
from ..engine.selection import Selection
from ..engine.server_side import ServerRound
from ..engine.specification import Specification
from ..io.arrays import read_tensors
from ..io.paths import Paths, RunFiles
from .accept import train_code
from .predict import load_run
from .prepare import assign, obtain, prepare
from .record import read_rounds, take_device
from .run_files import read_log, shared_state
from .run_images import RunImages
from .train import specification

if TYPE_CHECKING:
    from ..study.run import Run


ROUNDING = 1e-6
"""Relative difference of losses that is ignored: the simulation computes the losses of all clients in one call."""


class Replay(Federation):
    """A federation in one process that leaves out a site in those steps in which it did not respond in the real run.

    `missing` lists the responses that the server did not get, each with kind, round and site (see
    `Coordinator.missing`); all other parameters are those of `Federation`.
    """

    def __init__(
        self,
        specification: Specification,
        clients: SamplesBySite,
        *,
        missing: Iterable[Mapping[str, Any]],
        **settings: Any,
    ) -> None:
        self._missing = {(entry["kind"], entry["round"], entry["site"]) for entry in missing}
        super().__init__(specification, clients, **settings)
        self.selection = _AnsweredSelection(self)

    def answered(self, kind: str, number: int, positions: Iterable[int]) -> list[int]:
        """Return the positions of clients that responded to a `kind` of message in round `number` of the real run."""
        return [k for k in positions if (kind, number, self.clients[k].name) not in self._missing]

    def _train(self, should_stop: Callable[[], bool]) -> None:
        server_round = self._begin_round()
        self._go_on("first_step", server_round)
        local = LocalRound(self.trainer, server_round, self.clients, self.ranks)
        local.first_steps()
        # The coordinator notices after the joint step who does not train: the means of the step have all sites.
        self._go_on("train", server_round)
        still = [n for n, k in enumerate(local.positions) if k in server_round.participants]
        local.positions = [local.positions[n] for n in still]
        local.clients = [local.clients[n] for n in still]
        local.batches = [local.batches[n] for n in still]
        local.first = [local.first[n] for n in still]
        records = local.run(should_stop)
        server_round.close(self.trainer.variances, server_round.mean)
        self.rounds.log("train", [records], self.server.logged)

    def _go_on(self, kind: str, server_round: ServerRound) -> None:
        server_round.go_on_with(self.answered(kind, server_round.number, server_round.participants))

    def _finish(self, should_stop: Callable[[], bool]) -> None:
        broadcast = self.algorithm.broadcast(self.server)
        for k in self.answered("finish", self.server.round + 1, range(len(self.clients))):
            self.trainer.finish(self.clients[k], self.rounds.assignment(k, broadcast), should_stop)


class _AnsweredSelection(Selection):
    """Selection of the best round by validation at those sites that responded in the real run."""

    def __init__(self, replay: Replay) -> None:
        super().__init__(replay.rounds, replay.clients, replay.trainer, replay.ranks, {}, {})
        self.replay = replay

    @property
    def _here(self) -> Sequence[int]:
        return self.replay.answered("evaluate", self.rounds.round, range(len(self.clients)))


def again(files: RunFiles, table: Path | None = None, threads: int = 1) -> Replay:
    """Train a run of real sites again in one process, and return the federation after its last round.

    Sites are left out where their responses were missing. The images are those that `table` lists, by default the table
    of the run's study, which must then list the images of all sites. They are prepared in a temporary folder. Raises
    UserError for a run that no real sites have trained, and for images that cannot be those that it was trained on.
    """
    run, record = load_run(files.folder), read_log(files)
    if train_code(run) != record["code"]:
        say("note: the run was trained by other code than that of this version")
    here = _with_table(run, table)
    device = take_device(threads)
    with tempfile.TemporaryDirectory(prefix="fedshift-replay-") as folder:
        paths = Paths(Path(folder))
        raw, prepared = paths.raw(here.data.raw), paths.data_files(here.data.id)
        obtain(here.data, raw, None)
        prepare(here.data, raw, prepared.folder, threads)
        assign(here, prepared.samples, paths.partition(here.partition_id))
        images = RunImages(here, paths, device)
        parts = {split: images.by_site(split, run.partition.internal) for split in ("train", "val")}
        require_none(_misfits(record["sites"], {k: len(rows) for k, rows in parts["train"].items()}, here))
        samples = {k: {site: images.samples(rows) for site, rows in part.items()} for k, part in parts.items()}
        replay = Replay(
            specification(run, images.prepared.shape),
            samples["train"],
            validation=samples["val"],
            missing=record["missing"],
            device=device,
        )
        return replay.run(record["rounds"])


def _with_table(run: Run, table: Path | None) -> Run:
    """Return the run with its images taken from `table`, and without external sites, which do not train.

    Raises UserError if the table does not exist.
    """
    dataset = run.data.dataset
    assert isinstance(dataset, OwnImages)
    table = table or dataset.table
    if not table.is_file():
        raise UserError(table, "no such table", "name one that lists the images of all sites: --data CSV")
    moved = dataset.model_copy(update={"table": table.absolute(), "moved_from": dataset.moved_from or dataset.table})
    data = run.data.model_copy(update={"dataset": moved})
    return run.model_copy(update={"data": data, "partition": run.partition.model_copy(update={"external": ()})})


def _misfits(sites: Mapping[str, Any], numbers: Mapping[str, int], run: Run) -> Iterator[UserError]:
    """Yield an error for each site whose number of training images differs from the number in the real run.

    `sites` are those of the run's manifest, with the number `n`, and `numbers` maps a site to its number here.
    """
    dataset = run.data.dataset
    assert isinstance(dataset, OwnImages)
    for site, about in sites.items():
        number = numbers.get(site, 0)
        if number != about["n"]:
            problem = f"gives site {site!r} {number} training images, and the run had {about['n']}"
            yield UserError(dataset.table, problem, "name a table of the images that the sites have: --data CSV")


# ---- comparison


def scope(files: RunFiles, replay: Replay) -> str:
    """Return a line that says what is compared: losses of all rounds, and tensors of the few that the run keeps."""
    kept = {replay.best().round, *([replay.rounds.round] if files.state.exists() else [])}
    rounds = " and ".join(map(str, sorted(kept)))
    return f"compared: all {replay.rounds.round} rounds by losses, and round {rounds}, which the run keeps, by tensors"


def faults(files: RunFiles, replay: Replay) -> list[tuple[int, str]]:
    """Return the differences between the files of a run and its replay: pairs of a round and a few words, by round.

    Tensors of the selected round are compared and, while the server has a checkpoint, those of the last round. All
    other rounds are compared by losses and accuracies.
    """
    found = [*_of_tensors(files.model, replay.best().round, shared_state(replay))]
    if files.state.exists():
        found += _of_tensors(files.state, replay.rounds.round, replay.tensors(), "server")
    found += _of_rounds(replay.history, read_rounds(files.rounds).to_dict("records"))
    return sorted(found)


def _of_tensors(file: Path, number: int, here: Mapping[str, torch.Tensor], part: str = "") -> Iterator[tuple[int, str]]:
    """Yield round `number` and a few words if the tensors in a file differ from the tensors `here`.

    Only tensors whose names begin with `part` are compared.
    """
    there = {name: tensor for name, tensor in read_tensors(file)[0].items() if name.startswith(part)}
    gaps = differing({name: tensor for name, tensor in here.items() if name.startswith(part)}, there)
    if gaps:
        name, gap = next(iter(gaps.items()))
        most = max(gaps.values())
        yield number, f"{file.name}: {name} differs by {gap:.3g}; {len(gaps)} of {len(there)} do, by up to {most:.3g}"


def differing(here: Mapping[str, torch.Tensor], there: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return the largest absolute difference of each tensor that differs, by name and in the order of `here`.

    It is infinite if only one side has the tensor, and if shapes, types or NaN allow no difference.
    """
    names = [*here, *(name for name in there if name not in here)]
    return {name: gap for name in names if (gap := _gap(here.get(name), there.get(name)))}


def _gap(one: torch.Tensor | None, other: torch.Tensor | None) -> float:
    if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
        return math.inf
    if one.equal(other):
        return 0.0
    largest = float((one.double() - other.double()).abs().max())
    return math.inf if math.isnan(largest) else largest


def _of_rounds(here: Iterable[Mapping[Any, Any]], there: Iterable[Mapping[Any, Any]]) -> Iterator[tuple[int, str]]:
    """Yield round and a few words for the first row that only one of two histories has, or that differs.

    A history has a row for each round, split and site. Rows differ by their loss or accuracy.
    """

    def by_place(rows: Iterable[Mapping[Any, Any]]) -> dict[tuple[int, str, str], Mapping[Any, Any]]:
        return {(int(row["round"]), str(row["split"]), str(row["site"])): row for row in rows}

    ours, theirs = by_place(here), by_place(there)
    for place in sorted(ours.keys() | theirs.keys()):
        number, split, site = place
        if place not in ours or place not in theirs:
            yield number, f"{site!r} has a row {split} on one side alone"
            return
        for column in ("loss", "accuracy"):
            one, other = ours[place][column], theirs[place][column]
            if not math.isclose(one, other, rel_tol=ROUNDING, abs_tol=ROUNDING):
                yield number, f"{column} of {site!r} ({split}) is {other:.6g}, and {one:.6g} here"
                return
