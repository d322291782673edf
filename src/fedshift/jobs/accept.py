"""Acceptance of finished work after a change of code that leaves results as they are.

Snakemake makes a file again when the digest of the code behind it is another than the one it recorded. Where a person
says that a change does not matter, the ledger `results/accepted.json` maps today's digest to the recorded one, file by
file. If the code changes again, its digest is unknown there, and the file is made again.

Imports neither torch nor pandas: Snakemake reads the ledger before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..core.errors import UserError
from ..io import checksums
from ..io.disk import locked
from ..io.paths import Paths
from ..io.text import read_json, write_json
from ..study.plan import Plan, code
from ..study.run import Data, Run
from . import provenance, store

Record = dict[str, Any]
"""One acceptance: `code` (accepted), `was` (before), `reason`, `date` (UTC), `version` of fedshift, and `git`."""


def download_code(data: Data) -> str:
    """Return the digest of the code that draws a miniature; "" for data that are downloaded."""
    return code("datasets._base", data.dataset) if data.synthetic else ""


def prepare_code(data: Data) -> str:
    """Return the digest of the code that prepares a dataset."""
    return code("jobs.prepare", data.dataset, *data.prepare)


def partition_code() -> str:
    """Return the digest of the code that assigns samples to sites and splits."""
    return code("data.partition")


def train_code(run: Run) -> str:
    """Return the digest of the code that trains a run."""
    return code("jobs.train", *run.plugins)


class Ledger:
    """The accepted work of a project: records by rule, by the id of what it makes, and by accepted digest.

    Raises UserError for a file that cannot be read.
    """

    def __init__(self, paths: Paths) -> None:
        self.file = paths.accepted
        self.records: dict[str, dict[str, dict[str, Record]]] = {}
        if not self.file.exists():
            return
        self.records = read_json(self.file)
        try:
            stamps = [r["stamp"] for ids in self.records.values() for codes in ids.values() for r in codes.values()]
        except (AttributeError, KeyError, TypeError):
            stamps = [None]
        if not all(isinstance(stamp, str) for stamp in stamps):
            remedy = "restore it, or remove it: what it says is accepted will be made again"
            raise UserError(self.file, "is no ledger of accepted code", remedy)

    def stamp(self, rule: str, key: str, today: str) -> str:
        """Return the digest that Snakemake recorded if today's was accepted in its place, else today's."""
        record = self.records.get(rule, {}).get(key, {}).get(today)
        return str(record["stamp"]) if record else today

    def download(self, data: Data) -> str:
        """Return what rule download passes as `code`."""
        return self.stamp("download", data.raw, download_code(data))

    def prepare(self, data: Data) -> str:
        """Return what rule prepare passes as `code`."""
        return self.stamp("prepare", data.id, prepare_code(data))

    def partition(self, key: str) -> str:
        """Return what rule partition passes as `code`."""
        return self.stamp("partition", key, partition_code())

    def train(self, run: Run) -> str:
        """Return what rule train passes as `code`."""
        return self.stamp("train", run.id, train_code(run))

    def add(self, made: Made, record: Record) -> None:
        """Take up an acceptance. The stamp is that of the code which made the file, whatever was accepted since."""
        stamp = self.stamp(made.rule, made.key, made.by)
        self.records.setdefault(made.rule, {}).setdefault(made.key, {})[made.today] = {**record, "stamp": stamp}

    def write(self) -> None:
        """Write the ledger, whole or not at all."""
        write_json(self.file, self.records)


@dataclass(frozen=True)
class Made:
    """A finished file of a rule: made `by` code of one digest, which has another `today`.

    `accepted` are the digests that the file itself says were accepted since; only manifests do.
    """

    rule: str
    key: str
    file: Path
    by: str
    today: str
    accepted: tuple[str, ...] = ()

    def settled(self, ledger: Ledger) -> bool:
        """Return whether today's code made the file, or was accepted already."""
        written = self.rule != "train" or self.today in self.accepted
        known = self.today in ledger.records.get(self.rule, {}).get(self.key, {})
        return self.by == self.today or (written and known)

    @property
    def was(self) -> str:
        """The digest that counted before."""
        return self.accepted[-1] if self.accepted else self.by


def accepted_codes(manifest: Mapping[str, Any]) -> list[str]:
    """Return the digests that a run's manifest says were accepted in place of its own, in their order."""
    records = manifest.get("accepted")
    return [str(r.get("code")) for r in records if isinstance(r, dict)] if isinstance(records, list) else []


def finished(plans: Iterable[Plan], paths: Paths) -> Iterator[Made]:
    """Yield what of some studies is there and says by which code it was made."""
    for plan in plans:
        for data in plan.data.values():
            yield from _made("download", data.raw, paths.source(data.raw), download_code(data))
            yield from _made("prepare", data.id, paths.data_files(data.id).card, prepare_code(data))
        for key in {run.partition_id for run in plan.runs.values()}:
            yield from _made("partition", key, paths.partition(key), partition_code())
        for run in plan.trainings.values():
            yield from _made("train", run.id, paths.run_files(run.id).manifest, train_code(run))


def _made(rule: str, key: str, file: Path, today: str) -> Iterator[Made]:
    if today and file.exists():
        content = _partition_notes(file) if rule == "partition" else read_json(file)
        if isinstance(content, dict) and content.get("code"):
            yield Made(rule, key, file, str(content["code"]), today, tuple(accepted_codes(content)))


def _partition_notes(file: Path) -> dict[str, Any]:
    from ..io.tables import read_table

    attrs: dict[Any, Any] = read_table(file).attrs
    return attrs


def accept(plans: Iterable[Plan], paths: Paths, reason: str) -> list[Made]:
    """Accept today's code for all that is finished of some studies, and return what was accepted.

    The golden loss curves must hold. They guard training; for datasets, miniatures and partitions, `reason` is all
    there is. It is kept in the ledger and in each run's manifest. Raises UserError, with nothing written, for an empty
    reason, a golden curve that the engine does not follow any more, and an unreadable file.
    """
    if not reason.strip():
        raise UserError("--reason", "is empty", "say why the change leaves all results as they are")
    with locked(paths.accepted.with_suffix(".lock")):
        ledger = Ledger(paths)
        due = [made for made in dict.fromkeys(finished(plans, paths)) if not made.settled(ledger)]
        if not due:
            return []
        checksums.require(made.file for made in due)
        from . import golden

        golden.require()
        date = datetime.now(UTC).isoformat(timespec="seconds")
        common = {"reason": reason.strip(), "date": date, "version": __version__, "git": provenance.git()}
        records = [{"code": made.today, "was": made.was, **common} for made in due]
        for made, record in zip(due, records, strict=True):
            ledger.add(made, record)
        ledger.write()  # before the manifests: what is cut off here is accepted by the next call
        for made, record in zip(due, records, strict=True):
            if made.rule == "train":
                manifest = read_json(made.file)
                earlier = [r for r in manifest.get("accepted") or [] if r.get("code") != made.today]
                store.write_manifest(paths, made.key, {**manifest, "accepted": [*earlier, record]})
        return due
