"""The files of a trained run, whoever trained it: one process, several, or real sites."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from ..io import checksums
from ..io.arrays import write_tensors
from ..io.paths import RunFiles
from ..io.tables import write_table
from ..io.text import write_json
from .accept import train_code
from .record import STAYED, manifest, read_manifest

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..engine.coordinator import Coordinator
    from ..engine.server_side import ServerSide
    from ..study.declaration import Study
    from ..study.run import Run


def write_run(
    files: RunFiles,
    run: Run,
    history: Sequence[Mapping[str, Any]],
    model: dict[str, Tensor],
    manifest: Mapping[str, Any],
    clients: dict[str, Tensor] | None = None,
    blends: Mapping[str, Any] | None = None,
) -> None:
    """Write the files of `RunFiles.trained`, the manifest last, and then their checksums.

    `history` has a row for each round, site and split. `model` are the tensors of the global network by name, and
    `clients` the tensors that stay at clients, by `CLIENT/NAME`. `blends` maps a site to the networks that predict it
    together, with their weights.
    """
    import pandas as pd

    about = {"run": run.id}
    write_json(files.spec, run.spec)
    rounds = pd.DataFrame(history)
    rounds.attrs.update(about)
    write_table(files.rounds, rounds)
    write_tensors(files.model, model, about)
    write_tensors(files.clients, clients or {}, about | ({"blends": json.dumps(blends)} if blends else {}))
    write_json(files.manifest, manifest)
    checksums.record(*files.trained)


WITH_EACH_ANSWER = "numbers of images and of classes, losses, accuracies, seconds, versions of software"
"""What a site sends with each of its responses beside tensors, in words."""
STAYS = "Images, names of files and of patients, and all tensors that the study keeps at home stay"
REVEALS = "Updates of few images can reveal them: there is no secure aggregation, and no noise is added."


LEAST_PATIENTS = 5
"""The fewest patients in a sum that a site sends if it keeps the rows of single images."""
MOST_GROUPS = 20
"""The most groups into which a site divides its patients if it keeps the rows of single images."""
SUMS = (
    f"numbers of test images by class and by what each inference takes them for, each over a group of at least "
    f"{LEAST_PATIENTS} patients drawn at random, and the number of patients of each group"
)
"""What a site sends in place of the rows of single images, in words."""


def row_columns(study: Study) -> list[str]:
    """Return, in words, the columns that leave a real site for each image that is scored there."""
    columns = ["label", "split", "what is predicted", *study.subgroups]
    return [*columns, "millimetres of a pixel where they are known"] if study.task.has_masks else columns


def write_served(
    run: Run, coordinator: Coordinator, files: RunFiles, started: datetime, threads: int, device: torch.device
) -> None:
    """Write the files of a run that real sites have trained. No file holds the tensors that stayed at the sites."""
    facts: dict[str, Any] = {"code": train_code(run), "threads": threads, "device": device, "started": started}
    record = manifest(run, coordinator, **facts)
    sites = {site["name"]: {k: site[k] for k in ("n", "versions", "threads")} for site in coordinator.joined}
    record |= {"sites": sites, "missing": coordinator.missing, STAYED: coordinator.trainer.own_names}
    write_run(files, run, coordinator.history, shared_state(coordinator), record)


def shared_state(federation: ServerSide) -> dict[str, Tensor]:
    """Return the tensors of the network in the selected round by name, without the tensors that stay at sites."""
    trainer, best = federation.trainer, federation.best()
    state = trainer.named_state(best.shared, trainer.own(), best.clients[0].counters)
    return {name: tensor for name, tensor in state.items() if name not in trainer.own_names}


def read_log(files: RunFiles) -> dict[str, Any]:
    """Return the manifest of a run that real sites trained, with its entries `sites` and `missing` (responses).

    Raises UserError for a run that was trained in one process.
    """
    record = read_manifest(files.manifest)
    if not (isinstance(record.get("sites"), dict) and isinstance(record.get("missing"), list)):
        problem = "does not say which sites answered, since the run was trained in one process"
        raise UserError(files.manifest, problem, "name a run of fedshift serve")
    return record
