"""The files of a run that real sites have trained: those of rule train, and who answered in which round."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..core.errors import UserError
from ..io.paths import RunFiles
from .accept import train_code
from .provenance import STAYED, manifest, read_manifest
from .run_files import write_run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ..engine.coordinator import Coordinator
    from ..engine.server_side import ServerSide
    from ..study.declaration import Study
    from ..study.run import Run


WITH_EACH_ANSWER = "numbers of images and of classes, losses, accuracies, seconds, versions of software"
"""What a site tells with each of its answers, beside tensors."""
STAYS = "Images, names of files and of patients, and all tensors that the study keeps at home stay"
REVEALS = "Updates of few images can reveal them: there is no secure aggregation, and no noise is added."


def row_columns(study: Study) -> list[str]:
    """Return what leaves a site of each scored image."""
    columns = ["label", "split", "what is predicted", *study.subgroups]
    return [*columns, "millimetres of a pixel where they are known"] if study.task.has_masks else columns


def write(
    run: Run, coordinator: Coordinator, files: RunFiles, started: datetime, threads: int, device: torch.device
) -> None:
    """Write what rule train writes. Tensors that stayed at the sites are in none of the files."""
    facts: dict[str, Any] = {"code": train_code(run), "threads": threads, "device": device, "started": started}
    record = manifest(run, coordinator, **facts)
    sites = {site["name"]: {k: site[k] for k in ("n", "versions", "threads")} for site in coordinator.joined}
    record |= {"sites": sites, "missing": coordinator.missing, STAYED: coordinator.trainer.own_names}
    write_run(files, run, coordinator.history, shared_state(coordinator), record)


def shared_state(federation: ServerSide) -> dict[str, Tensor]:
    """Return the tensors of the network in the selected round by name, without those that stay at sites."""
    trainer, best = federation.trainer, federation.best()
    state = trainer.named_state(best.shared, trainer.own(), best.clients[0].counters)
    return {name: tensor for name, tensor in state.items() if name not in trainer.own_names}


def read_log(files: RunFiles) -> dict[str, Any]:
    """Return the manifest of a run, which lists `sites` and `missing`. Raises UserError if no real sites trained it."""
    record = read_manifest(files.manifest)
    if not (isinstance(record.get("sites"), dict) and isinstance(record.get("missing"), list)):
        problem = "does not say which sites answered, since the run was trained in one process"
        raise UserError(files.manifest, problem, "name a run of fedshift serve")
    return record
