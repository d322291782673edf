"""Test images on their way from the sites to the server's page: rows of images under drawn pseudonyms, or sums.

Sums are over groups of patients, and a site may send them in the place of the rows. A sum is a confusion matrix: the
number of test images by their class and by the class that an inference takes them for. What only classes decide, such
as the accuracy, follows from it. What needs probabilities, such as the AUC, does not, and is missing.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from ..analysis.estimates import FEWEST
from ..core.errors import UserError
from ..core.units import SPACING
from ..data.prepared import persons
from ..engine.messages import Message
from ..io import checksums, identity
from ..io.paths import Paths, checksum
from ..io.tables import write_table
from ..io.text import write_json
from ..jobs.prepare import card
from ..jobs.run_files import LEAST_PATIENTS, MOST_GROUPS

if TYPE_CHECKING:
    from pathlib import Path

    from ..study.plan import Plan
    from ..study.run import Run


PEOPLE = ("sample", "patient")
"""Columns of identifiers that are replaced by pseudonyms, which are numbers."""
SPLITS = ("test", "val")
"""The splits of which a site may send rows."""
NOTES = [
    "Images stayed at their sites: copies between sites were not looked for.",
    "Images of training stayed too, and so did their rows: numbers of images here are those of scored images.",
]
"""Notes on the data card that the server writes for rows of images from sites."""
LARGEST = 10**9
"""The largest pseudonym of a sample or patient."""


def drawn(purpose: str, values: pd.Series, key: Path) -> list[Any]:
    """Return the values without missing ones, each once, in a random order that depends on a secret and the purpose.

    The secret stays in the file `key`, which is made if it does not exist. So runs of one site have the same order, and
    nobody without the file can tell which value stands where.
    """
    secret = identity.kept_secret(key)
    return sorted(set(values.dropna()), key=lambda value: hmac.digest(secret, f"{purpose} {value}".encode(), "sha256"))


def pseudonyms(samples: pd.DataFrame, key: Path) -> dict[str, dict[Any, int]]:
    """Return the pseudonym of each sample and patient of a site, by column: its place in the order of `drawn`."""
    return {column: {v: k for k, v in enumerate(drawn(column, samples[column], key))} for column in PEOPLE}


def packed_rows(predictions: pd.DataFrame, samples: pd.DataFrame, columns: Sequence[str], key: Path) -> Message:
    """Return the message with the rows of a site's scored images: those of the table of predictions, and no others.

    `samples` has patients, subgroups and spacing of all images of the site; `columns` names those of its columns that
    leave. Samples and patients get pseudonyms by the secret in the file `key`. Texts travel as numbers, -1 where they
    are missing, with the list of texts beside them.
    """
    names = pseudonyms(samples, key)
    table = predictions.drop(columns=["site", "role"]).merge(samples[["sample", "patient", *columns]], on="sample")
    table = table.assign(**{c: table[c].map(names[c]).fillna(-1).astype(np.int64) for c in PEOPLE})
    table = table.sort_values([c for c in ("inference", "split", "sample") if c in table]).reset_index(drop=True)
    texts: dict[str, list[str]] = {}
    tensors = {}
    for name in map(str, table.columns):
        values = table[name]
        if values.dtype.kind not in "biuf":
            codes, listed = pd.factorize(values.astype("str").where(values.notna()), sort=True)
            texts[name], values = [*map(str, listed)], pd.Series(codes, dtype=np.int64)
        tensors[name] = torch.from_numpy(values.to_numpy(copy=True))
    return Message("rows", {"texts": texts}, tensors)


def opened_rows(answer: Message, site: str, run: Run, subgroups: Sequence[str], most: int) -> pd.DataFrame:
    """Check a message with rows of a site, and return its table, with pseudonyms that begin with the site's name.

    `most` is the number of scored images that the site has announced. Raises UserError for columns that rows of this
    run do not have, and for values that are impossible.
    """
    texts, tensors = answer.about["texts"], answer.tensors
    classes = run.data.dataset.classes
    numbers = run.data.task.columns(classes)
    needed = {*PEOPLE, "split", "label", *numbers, *subgroups}
    odd = {name for name in tensors if name not in needed and not name.startswith("count_")}
    odd -= {"inference", "adapted", *SPACING}
    if odd or needed - tensors.keys() or texts.keys() - tensors.keys():
        problem = f"have the columns {', '.join(sorted(tensors))[:300]}"
        raise UserError("rows", problem, f"needed are {', '.join(sorted(needed))}")
    (shape, *others) = {tuple(tensor.shape) for tensor in tensors.values()}
    if others or len(shape) != 1 or not shape[0]:
        raise UserError("rows", "have columns of several lengths, or none")
    table = pd.DataFrame({name: tensor.numpy() for name, tensor in tensors.items()})
    if table["sample"].nunique() > most or table.duplicated([c for c in ("inference", "sample") if c in table]).any():
        raise UserError("rows", f"are of more than the {most:,} images that the site has announced, or repeat an image")
    codes = {c: len(listed) for c, listed in texts.items()} | {"label": len(classes)}
    for name, count in (codes | dict.fromkeys(PEOPLE, LARGEST)).items():
        least = -1 if name == "patient" or name in subgroups else 0
        if table[name].dtype != np.int64 or not table[name].between(least, count - 1).all():
            raise UserError("rows", f"have values of {name} that are impossible")
    for name, listed in texts.items():
        table[name] = pd.Series([*listed, None], dtype=object).to_numpy()[table[name].to_numpy()]
    if not {*texts.get("split", ("",))} <= {*SPLITS} or {*subgroups} - texts.keys():
        raise UserError("rows", f"have other splits than {' and '.join(SPLITS)}, or subgroups that are no texts")
    if {table[name].dtype for name in numbers} != {np.dtype(np.float64)}:
        raise UserError("rows", "have predictions of another type than float64")
    if run.data.task.has_probabilities and not table[numbers].map(lambda p: 0 <= p <= 1).all(axis=None):
        raise UserError("rows", "have probabilities outside of 0 to 1")
    for column in PEOPLE:
        table[column] = [f"{site}-{column[0]}{k}" if k >= 0 else None for k in table[column]]
    return table.assign(site=site, role="internal")


def write_rows(plan: Plan, rows: Mapping[str, Mapping[str, pd.DataFrame]]) -> None:
    """Write the rows of all sites into the files of the jobs prepare, partition and predict, for the page to read.

    `rows` has the tables of `opened_rows` by key of the run and site. Images that are not scored are in no table.
    """
    paths = Paths()
    tables = {key: pd.concat(parts.values(), ignore_index=True) for key, parts in rows.items() if parts}
    subgroups = [*plan.study.subgroups]
    for data in {plan.runs[key].data.id for key in tables}:
        of_data = {key: table for key, table in tables.items() if plan.runs[key].data.id == data}
        run = plan.runs[next(iter(of_data))]
        files = paths.data_files(data)
        whole = pd.concat(of_data.values(), ignore_index=True).drop_duplicates("sample").sort_values("sample")
        spacing = [name for name in SPACING if name in whole]
        samples = whole[["sample", "site", "label", "patient", *subgroups, *spacing]].reset_index(drop=True)
        samples.attrs = {"data": data}
        write_table(files.samples, samples)
        write_json(files.card, card(run.data, samples) | {"data": data, "notes": NOTES})
        checksums.record(files.samples, files.card)
    for key, table in tables.items():
        run = plan.runs[key]
        partition = table[["sample", "site", "role", "split"]].drop_duplicates("sample").reset_index(drop=True)
        partition.attrs = {"partition": run.partition_id}
        write_table(paths.partition(run.partition_id), partition)
        predictions = table.drop(columns=["patient", *subgroups, *(c for c in SPACING if c in table)])
        first = ["sample", "site", "role", "split", "label"]
        predictions = predictions[[*first, *(c for c in predictions if c not in first)]]
        predictions.attrs.update(identity.of_predictions(paths.run_files(run.id), plan.predictions(run.id)))
        out = paths.predictions(run.id, plan.prediction_jobs[run.id])
        write_table(out, predictions)
        checksums.record(out, paths.partition(run.partition_id))


def groups(patients: Sequence[object]) -> list[Sequence[object]]:
    """Divide patients, given in random order, into groups whose sizes differ by at most one.

    With k groups, each has every k-th patient. A group has at least LEAST_PATIENTS, and there are at most MOST_GROUPS.
    If there were fewer than FEWEST groups, too few for an interval, all patients are one group. Raises UserError for
    fewer patients than LEAST_PATIENTS.
    """
    if len(patients) < LEAST_PATIENTS:
        problem = f"would cover {len(patients)} test patients, and sums of fewer than {LEAST_PATIENTS} never leave"
        raise UserError("sums of test images", problem, "the server writes no page of this study")
    number = min(len(patients) // LEAST_PATIENTS, MOST_GROUPS)
    number = number if number >= FEWEST else 1
    return [patients[k::number] for k in range(number)]


def packed_sums(
    predictions: pd.DataFrame, samples: pd.DataFrame, inferences: Sequence[str], columns: Sequence[str], key: Path
) -> Message:
    """Return the message with a site's confusion matrices, one for each inference and group of patients.

    `inferences` are those whose sums leave, `predictions` has the columns of class probabilities that `columns` names,
    and `samples` the patients. Only test images count. An image of an unknown patient counts as a patient of its own.
    Groups are drawn by the secret in the file `key`, and are the same in every run.
    """
    if not inferences:
        raise UserError(
            "sums of test images",
            "cover no inference: all inferences of the study have seen labels of some test images",
        )
    table = predictions[predictions["split"] == "test"].merge(samples[["sample", "patient"]], on="sample")
    if "inference" not in table:
        table = table.assign(inference=inferences[0])
    table = table[table["inference"].isin(inferences)]
    person = persons(table)
    members = groups(drawn("group", person, key))
    number = {one: k for k, group in enumerate(members) for one in group}
    counts = np.zeros((len(inferences), len(members), len(columns), len(columns)), dtype=np.int64)
    places = (table["inference"].map({name: k for k, name in enumerate(inferences)}), person.map(number))
    np.add.at(counts, (*places, table["label"], table[[*columns]].to_numpy(dtype=float).argmax(1)), 1)
    about = {"texts": {"inference": [*inferences]}, "patients": [*map(len, members)]}
    return Message("rows", about, {"counts": torch.from_numpy(counts)})


def opened_sums(answer: Message, site: str, run: Run, inferences: Sequence[str], images: int) -> pd.DataFrame:
    """Check a message with a site's confusion matrices, and return them as a table of counts above 0.

    It has a row for each inference, group of patients, class and predicted class. `images` is the number of test images
    that the site has announced. Raises UserError for sums that so many images of this run cannot have.
    """
    patients, names = answer.about["patients"], answer.about["texts"].get("inference", [])
    size = len(run.data.dataset.classes)
    counts = answer.tensors["counts"].numpy() if answer.tensors.keys() == {"counts"} else np.empty(0)
    if answer.about["texts"].keys() != {"inference"} or not names or len({*names} & {*inferences}) != len(names):
        raise UserError("sums", f"are of the inferences {', '.join(names)[:300]}, which this run does not have")
    if counts.dtype != np.int64 or counts.shape != (len(names), len(patients), size, size):
        raise UserError("sums", "are no table of whole numbers by inference, group of patients, class and prediction")
    if not 1 <= len(patients) <= MOST_GROUPS or min(patients) < LEAST_PATIENTS:
        raise UserError("sums", f"are not of 1 to {MOST_GROUPS} groups of {LEAST_PATIENTS} patients or more")
    # each number is checked, too: a sum that passes the largest integer may come out right
    by_class = counts.sum(3)
    if not ((counts >= 0) & (counts <= images)).all() or (by_class.sum((1, 2)) != images).any():
        raise UserError("sums", f"do not add up to the {images:,} test images that the site has announced")
    if (by_class != by_class[0]).any() or (by_class[0].sum(1) < patients).any():
        raise UserError("sums", "have other images for each inference, or fewer images than patients")
    inference, group, label, predicted = np.nonzero(counts)
    return pd.DataFrame(
        {
            "inference": np.array(names, dtype=object)[inference],
            "site": site,
            "group": group,
            "patients": np.array(patients)[group],
            "label": label,
            "predicted": predicted,
            "images": counts[counts > 0],
        }
    )


def write_sums(plan: Plan, sums: Mapping[str, Sequence[pd.DataFrame]]) -> None:
    """Write the tables of `opened_sums` of all sites into the file of sums of each run.

    `sums` has the tables by key of the run. The file of a run without tables is removed.
    """
    for key, tables in sums.items():
        files = Paths().run_files(plan.runs[key].id)
        if not tables:
            for file in (files.sums, checksum(files.sums)):
                file.unlink(missing_ok=True)
            continue
        whole = pd.concat(tables, ignore_index=True)
        whole.attrs = {"run": plan.runs[key].id}
        write_table(files.sums, whole)
        checksums.record(files.sums)
