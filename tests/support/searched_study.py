"""The candidates of the searches of an invented study, with the files of finished trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import fake_study

from fedshift.io import checksums
from fedshift.io.paths import Paths
from fedshift.io.tables import write_table
from fedshift.io.text import write_json
from fedshift.study.plan import Plan


def trained(plan: Plan, paths: Paths, values: Mapping[int, Sequence[float | None]]) -> None:
    """Write files of the candidates, whose validation values are given by seed in the order of their settings."""
    for run in plan.searches.values():
        for value, (key, candidate) in zip(values[run.seed], run.candidates.items(), strict=True):
            files = paths.run_files(key)
            write_json(files.spec, candidate.spec)
            write_table(files.rounds, fake_study.rounds(candidate))
            for file in (files.model, files.clients):
                file.write_text(f"{file.name} of {key}")
            write_json(files.manifest, fake_study.manifest(candidate) | {"best_value": value})
            checksums.record(*files.trained)
