"""Finished work: the code that made it, its acceptance after a change of code, and second copies of runs.

Snakemake makes a file again when the digest of its code differs from the one that it recorded. If a person says that a
change does not matter, the ledger `results/accepted.json` maps today's digest to the recorded one, file by file. If the
code changes again, the ledger does not have its digest, and the file is made again. Golden loss curves guard training:
`golden.json` holds data, initial weights, settings and curves, and is written by `tests/support/golden.py` in plain
NumPy, which imports nothing of this package.

Snakemake deletes the outputs of a job before it starts the job again, also where the job then refuses to work. Each
finished run is therefore kept a second time, in `results/store/RUN/INPUTS`. INPUTS is a digest of everything that the
training depends on: run, code, checksums of the data, and partition. Snakemake does not know this folder. Files of up
to COPIED bytes are copied. Larger ones are hard links, which take no space: they outlive the removal and the
replacement of the other name, but not a program that writes into the file itself. Where a disk has no hard links, they
are copied too.

Imports neither torch nor pandas before a curve is replayed: Snakemake reads the ledger before anything runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.console import say
from ..core.digest import of_code
from ..core.errors import UserError
from ..data.partition import Partition
from ..io import checksums, identity
from ..io.disk import atomic, disk_errors, locked
from ..io.paths import Paths, RunFiles, checksum
from ..io.text import read_json, write_json
from ..study.plan import Plan
from ..study.run import Data, Run
from .record import git

Record = dict[str, Any]
"""One acceptance: `code` (accepted), `was` (before), `reason`, `date` (UTC), `version` of fedshift, and `git`."""


def download_code(data: Data) -> str:
    """Return the digest of the code that draws a miniature (synthetic data); "" for data that are downloaded."""
    return of_code("datasets._base", data.dataset) if data.synthetic else ""


def prepare_code(data: Data) -> str:
    """Return the digest of the code that prepares a dataset."""
    return of_code("jobs.prepare", data.dataset, *data.prepare)


def partition_code() -> str:
    """Return the digest of the code that assigns samples to sites and splits."""
    return of_code("jobs.prepare", Partition)


def train_code(run: Run) -> str:
    """Return the digest of the code that trains a run."""
    return of_code("jobs.train", *run.plugins)


def predict_code(run: Run, *inferences: object) -> str:
    """Return the digest of the code that predicts with a run under some inferences, given as plug-ins or classes."""
    return of_code("jobs.predict", *run.plugins, *inferences)


class Ledger:
    """The ledger of a project: files made by older code that a person accepted as if today's code had made them.

    `records` maps the rule, the key (an id of data, a partition or a run) and the digest of the accepted code to a
    Record. Raises UserError for a file that is no ledger.
    """

    def __init__(self, paths: Paths) -> None:
        self.file = paths.accepted
        self.records: dict[str, dict[str, dict[str, Record]]] = {}
        if self.file.exists():
            self.records = read_json(self.file)
            try:
                stamps = [r["stamp"] for ids in self.records.values() for codes in ids.values() for r in codes.values()]
            except (AttributeError, KeyError, TypeError):
                stamps = [None]
            if not all(isinstance(stamp, str) for stamp in stamps):
                remedy = "restore it; or remove it, and accepted work is made again"
                raise UserError(self.file, "is not a ledger of accepted code", remedy)

    def stamp(self, rule: str, key: str, today: str) -> str:
        """Return the digest that Snakemake recorded if the digest `today` was accepted in its place, else `today`.

        `key` is the id of the data, partition or run that the rule made.
        """
        record = self.records.get(rule, {}).get(key, {}).get(today)
        return str(record["stamp"]) if record else today

    def has(self, made: Made) -> bool:
        """Return whether the ledger accepts a file of older code as if today's code had made it."""
        return made.today in self.records.get(made.rule, {}).get(made.key, {})

    def add(self, made: Made, record: Record) -> None:
        """Record that today's code was accepted for a file of older code, and the digest that Snakemake has."""
        stamp = self.stamp(made.rule, made.key, made.by)
        self.records.setdefault(made.rule, {}).setdefault(made.key, {})[made.today] = {**record, "stamp": stamp}


@dataclass(frozen=True)
class Made:
    """A finished file of a rule: the digest of the code that it was made `by`, and that of the code of `today`.

    `key` is the id of the data, partition or run. `accepted` are the digests that a person accepted since, as the
    manifest of a run lists them; empty for other files.
    """

    rule: str
    key: str
    file: Path
    by: str
    today: str
    accepted: tuple[str, ...] = ()

    def is_settled(self, ledger: Ledger) -> bool:
        """Return whether nothing is left to accept: today's code made the file, or a person accepted that code for it.

        The ledger records what was accepted; for a training the manifest of the run must say so, too.
        """
        return self.by == self.today or (ledger.has(self) and (self.rule != "train" or self.today in self.accepted))


def accepted_codes(manifest: Mapping[str, Any]) -> list[str]:
    """Return the digests that a run's manifest says were accepted in place of the recorded one, in their order."""
    records = manifest.get("accepted")
    return [str(r.get("code")) for r in records if isinstance(r, dict)] if isinstance(records, list) else []


def finished(plans: Iterable[Plan], paths: Paths) -> Iterator[Made]:
    """Yield the finished files of the studies `plans` that state the digest of the code that made them."""
    for plan in plans:
        for data in plan.data.values():
            yield from _made("download", data.raw, paths.source(data.raw), download_code(data))
            yield from _made("prepare", data.id, paths.data_files(data.id).card, prepare_code(data))
        for key in {run.partition_id for run in plan.runs.values()}:
            yield from _made("partition", key, paths.partition(key), partition_code())
        for run in plan.trainings.values():
            yield from _made("train", run.id, paths.run_files(run.id).manifest, train_code(run))


def _made(rule: str, key: str, file: Path, today: str) -> Iterator[Made]:
    if not today or not file.exists():
        return
    if rule == "partition":
        from ..io.tables import read_table

        content: Any = read_table(file).attrs
    else:
        content = read_json(file)
    if isinstance(content, dict) and content.get("code"):
        yield Made(rule, key, file, str(content["code"]), today, tuple(accepted_codes(content)))


def accept(plans: Iterable[Plan], paths: Paths, reason: str) -> list[Made]:
    """Accept today's code for all finished work of the studies `plans`, and return the files for which it was accepted.

    First the golden loss curves are trained again. They guard training; for datasets, miniatures and partitions there
    is only the `reason`, which is kept in the ledger and in each run's manifest. Raises UserError, with nothing
    written, for an empty reason, a golden curve that the engine does not follow any more, and a file that is unreadable
    or damaged.
    """
    if not reason.strip():
        raise UserError("--reason", "is empty", "say why the change leaves all results as they are")
    with locked(paths.accepted.with_suffix(".lock")):
        ledger = Ledger(paths)
        due = [made for made in dict.fromkeys(finished(plans, paths)) if not made.is_settled(ledger)]
        if not due:
            return []
        checksums.require(made.file for made in due)

        require_golden()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        common = {"reason": reason.strip(), "date": date, "version": __version__, "git": git()}
        records = [{"code": made.today, "was": [made.by, *made.accepted][-1], **common} for made in due]
        for made, record in zip(due, records, strict=True):
            ledger.add(made, record)
        # The ledger is written before the manifests: the next call finishes what is interrupted in between.
        write_json(ledger.file, ledger.records)
        for made, record in zip(due, records, strict=True):
            if made.rule == "train":
                manifest = read_json(made.file)
                earlier = [r for r in manifest.get("accepted") or [] if r.get("code") != made.today]
                write_manifest(paths, made.key, {**manifest, "accepted": [*earlier, record]})
        return due


GOLDEN = Path(__file__).with_name("golden.json")
TOLERANCE = 1e-6
"""The relative difference above which a loss counts as changed."""
NAMES = {"w1": "1.weight", "b1": "1.bias", "gamma": "2.weight", "beta": "2.bias"}
NAMES |= {"mean": "2.running_mean", "var": "2.running_var", "w2": "4.weight", "b2": "4.bias"}
"""Names of the network's tensors in golden.json, and in `models.mlp`."""

Point = tuple[str, str, int]
"""The place of a loss in a golden curve: split ("train" or "val"), client, and round from 1."""


def stored(bn: str) -> dict[Point, float]:
    """Return the golden losses of FedAvg with the batch-norm policy `bn`, as golden.json holds them."""
    return points(read_json(GOLDEN)["curves"][bn])


def points(curves: dict[str, dict[str, list[float]]]) -> dict[Point, float]:
    """Return {split: {client: [loss of each round]}} as {(split, client, round): loss}, with rounds from 1."""
    return {
        (split, client, number): loss
        for split, clients in curves.items()
        for client, losses in clients.items()
        for number, loss in enumerate(losses, 1)
    }


def replayed(bn: str) -> dict[Point, float]:
    """Train FedAvg with the batch-norm policy `bn` on the data and from the weights in golden.json; return the losses.

    The arithmetic is float64.
    """
    import torch

    from ..engine.federation import Federation
    from ..engine.specification import Specification
    from ..models.mlp import MLP

    def tensors(images: list[Any], labels: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.tensor(images, dtype=torch.float64), torch.tensor(labels)

    content = read_json(GOLDEN)
    start = {name: torch.tensor(content["start"][key], dtype=torch.float64) for key, name in NAMES.items()}
    data = {split: {k: tensors(*pair) for k, pair in of.items()} for split, of in content["data"].items()}
    images, _ = next(iter(data["train"].values()))
    hidden, classes = len(content["start"]["b1"]), len(content["start"]["b2"])
    model = MLP(hidden=hidden).build(tuple(images.shape[1:]), classes).double()
    model.load_state_dict({**model.state_dict(), **start})
    specification = Specification.open(model, bn=bn, training=content["training"], seed=content["seed"])
    federation = Federation(specification, data["train"], validation=data["val"]).run()
    return {(row["split"], row["site"], row["round"]): row["loss"] for row in federation.history}


def require_golden() -> None:
    """Raise UserError if a loss of the engine differs from the golden curves in golden.json by more than TOLERANCE."""
    for bn in read_json(GOLDEN)["curves"]:
        losses = replayed(bn)
        for (split, client, number), loss in sorted(stored(bn).items(), key=lambda item: item[0][2]):
            now = losses.get((split, client, number), float("nan"))
            if not abs(now - loss) <= TOLERANCE * abs(loss):
                curve = f"golden curve of FedAvg with BN policy {bn!r}"
                kind = {"train": "training", "val": "validation"}[split]
                problem = f"the {kind} loss of client {client} in round {number} is {now:.9g}, and was {loss:.9g}"
                raise UserError(curve, problem, "this code computes something else: train the runs again")


COPIED = 1 << 20
"""Size in bytes up to which a file is copied and not linked: this costs little, and a copy survives whatever happens to
the other file."""


@dataclass(frozen=True)
class Kept:
    """A second copy of a finished run in `results/store`: its files in `folder`, with their recorded checksums."""

    folder: Path

    @property
    def run(self) -> str:
        """The id of the run."""
        return self.folder.parent.name

    @property
    def files(self) -> RunFiles:
        """The files of the run in the store."""
        return RunFiles(self.folder)

    @property
    def size(self) -> int:
        """The bytes that removing this copy frees. Hard links to files with another name count nothing."""
        stats = [file.stat() for file in self.folder.iterdir()]
        return sum(about.st_size for about in stats if about.st_nlink == 1)

    def damage(self) -> dict[Path, str]:
        """Return what is wrong with each file of this copy that is missing, damaged or without a recorded checksum."""
        faults = {
            file: checksums.damage(file) or ("" if checksums.recorded(file) else "has no checksum")
            for file in self.files.trained
        }
        return {file: fault for file, fault in faults.items() if fault}

    def keep(self, files: RunFiles) -> None:
        """Copy or link the files of a finished run into the store.

        A failure, such as a full disk, is printed and not raised.
        """
        try:
            for file in files.trained:
                twin(file, self.folder / file.name)
        except (OSError, ValueError) as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            say(f"the run is finished, but could not be kept a second time in {self.folder}: {error}")

    def restore(self, files: RunFiles) -> bool:
        """Put this copy back as the run's files in results/runs.

        Return False if there is no copy, or if it is damaged.
        """
        if not self.folder.is_dir():
            return False
        faults = self.damage() or {self.files.model: identity.differs(self.files.model, run=self.run)}
        for file, fault in faults.items():
            if fault:
                say(f"{file} {fault}: this second copy of the run is not used")
                return False
        with disk_errors(files.folder):
            for file in self.files.trained:
                twin(file, files.folder / file.name)
                os.utime(files.folder / file.name)
        say(f"nothing of this run's inputs has changed: it comes back from {self.folder} without training")
        return True

    def remove(self) -> None:
        """Delete this copy from the store."""
        shutil.rmtree(self.folder)
        with contextlib.suppress(OSError):
            self.folder.parent.rmdir()


def kept(paths: Paths, run: str = "*") -> Iterator[Kept]:
    """Yield the second copies in `results/store`: of all runs, or of one, given its id."""
    for folder in sorted(paths.store.glob(f"{run}/*/")):
        yield Kept(folder)


def superseded(paths: Paths) -> Iterator[Kept]:
    """Yield the second copies of runs that have since been trained again, from other data or with other code.

    A run without files in results/runs was not trained again: its second copy may be all that is left of it.
    """
    for entry in kept(paths):
        current = paths.run_files(entry.run).manifest
        if current.exists() and not _same(current, entry.files.manifest):
            yield entry


def write_manifest(paths: Paths, run: str, manifest: dict[str, Any]) -> None:
    """Replace the manifest of a finished run in its folder and in its second copies, and record its checksum."""
    current = paths.run_files(run).manifest
    entries = [entry for entry in kept(paths, run) if _same(current, entry.files.manifest)]
    checksum(current).unlink(missing_ok=True)  # a kill between the next two lines leaves no record, not a wrong one
    write_json(current, manifest)
    checksums.record(current)
    for entry in entries:
        twin(current, entry.files.manifest)


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.read_bytes() == other.read_bytes()


def twin(file: Path, other: Path) -> None:
    """Make `other` a file with the content of `file`: a copy, or a hard link of a large file where the disk has these.

    The checksum that is recorded for `file` is recorded for `other` too.
    """
    if not (other.exists() and file.samefile(other)):
        with atomic(other) as temporary:
            if file.stat().st_size <= COPIED or not _linked(file, temporary):
                shutil.copyfile(file, temporary)
    elif checksums.recorded(other):  # a kill may have left a link without a record
        return
    checksums.copy_record(file, other)


def _linked(file: Path, other: Path) -> bool:
    """Make `other` a hard link to `file`. Return False if the disk has no hard links."""
    try:
        other.hardlink_to(file)
    except OSError:
        return False
    return True
