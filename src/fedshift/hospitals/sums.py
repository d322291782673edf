"""Sums over groups of test patients, which a site sends in the place of the rows of its single images.

A sum is a confusion matrix: the number of test images by their class and by the class that an inference takes them
for. What only classes decide, such as the accuracy, follows from it. What needs probabilities, such as the AUC, does
not, and is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from ..analysis.estimates import FEWEST
from ..core.errors import UserError
from ..data.prepared import persons
from ..engine.transport import Message
from ..io import checksums
from ..io.paths import Paths, checksum
from ..io.tables import write_table
from ..jobs.run_files import LEAST_PATIENTS, MOST_GROUPS
from .rows import drawn

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ..study.plan import Plan
    from ..study.run import Run


def groups(patients: Sequence[object]) -> list[Sequence[object]]:
    """Return patients in a drawn order as groups, in which every k-th patient is: one where there is no interval.

    Groups differ by one patient at most. Raises UserError for fewer patients than a group has.
    """
    if len(patients) < LEAST_PATIENTS:
        problem = f"would be of {len(patients)} test patients, and of fewer than {LEAST_PATIENTS} none leaves"
        raise UserError("sums of test images", problem, "the site is missing on the page")
    number = min(len(patients) // LEAST_PATIENTS, MOST_GROUPS)
    number = number if number >= FEWEST else 1
    return [patients[k::number] for k in range(number)]


def packed_sums(
    predictions: pd.DataFrame, samples: pd.DataFrame, inferences: Sequence[str], columns: Sequence[str], key: Path
) -> Message:
    """Return the message with the sums of a site's test images.

    `inferences` are those that leave, in one table of `predictions` with columns of class probabilities; `samples` has
    the patients. An image of an unknown patient counts as a patient of its own. The groups are the same in every run.
    """
    if not inferences:
        raise UserError("sums of test images", "are of no inference: all of the study have seen labels of some of them")
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
    """Return a row for each inference, group, class and predicted class of a message of sums.

    `images` is the number of test images that the site has announced. Raises UserError for sums that cannot be those
    of so many images of this run.
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
    """Write the tables of `opened_sums` of all sites, by key of the run; without any, the file of a run is removed."""
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
