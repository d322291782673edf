"""The results of a study: its files, each read once, and what figures are drawn from."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..data.prepared import read_card, read_samples
from ..figures import Figure, Results
from ..io.arrays import map_array
from ..io.guards import require_columns, require_unique
from ..io.paths import Paths
from ..io.result_tables import RESULT_TABLES
from ..io.text import readable, write_text
from ..jobs.provenance import read_manifest
from ..jobs.round_log import read_rounds
from ..study.plan import Plan
from ..study.run import Data
from . import cases, controls, folds, net_benefit, operating_point, score
from .contrasts import ranking
from .findings import Findings
from .numbers import Names, Numbers
from .predictions import Predictions

ROLES = ("internal", "external")
AGAIN = "score and report the study again"
PACKAGE = __package__.partition(".")[0]


def draw(results: StudyResults, name: str) -> Path:
    """Write figures/{name}.svg of a study. Returns its path."""
    figure: Figure = registry.build("figure", name)
    out = results.files.figure(name)
    write_text(out, figure.draw(results.for_figures))
    return out


def parsed(name: str, content: bytes, path: Path) -> pd.DataFrame:
    """Return the table `name` (a key of RESULT_TABLES) in the content of the file `path`.

    Raises UserError where it is not a table, lacks a column, or has a row twice.
    """
    declared = RESULT_TABLES[name]
    columns = declared.columns or importlib.import_module(f"{PACKAGE}.{declared.worker}").COLUMNS
    table = score.parse_table(content, path)
    require_columns(path, table, dict.fromkeys(columns, "anything"), AGAIN)
    require_unique(path, table, list(declared.keys), AGAIN)
    return table


def load(plan: Plan, paths: Paths) -> StudyResults:
    """Return the results of a study. Each file is read when it is first needed, and once only."""
    return StudyResults(plan, paths)


class StudyResults:
    """The files of a study as tables, which have the ids of condition and inference in the columns `numbers.IDS`."""

    def __init__(self, plan: Plan, paths: Paths) -> None:
        self.plan = plan
        self.paths = paths
        self.files = paths.study_files(plan.name)
        self.names = Names(plan)
        self._contents: dict[str, bytes] = {}
        self._samples: dict[str, pd.DataFrame] = {}
        self._tables: dict[str, pd.DataFrame] = {}

    def content(self, name: str) -> bytes:
        """Return the bytes of a file of the study's folder. Raises UserError where it is not there."""
        if name not in self._contents:
            path = self.files.folder / name
            self.require(path)
            with readable(path, "table"):
                self._contents[name] = path.read_bytes()
        return self._contents[name]

    def require(self, path: Path) -> None:
        """Raise UserError where a file of the study is not there."""
        if not path.is_file():
            raise UserError(path, "no such file", "score and report the study first")

    def samples(self, data: str) -> pd.DataFrame:
        """Return samples.parquet of prepared data, with sample and site as text. Raises UserError if unreadable."""
        if data not in self._samples:
            table = read_samples(self.paths.data_files(data).samples)
            self._samples[data] = table.astype({"sample": str, "site": str})
        return self._samples[data]

    @functools.cached_property
    def predictions(self) -> Predictions:
        """The predictions of all runs, and the tables of partitions."""
        return Predictions(self.plan, self.paths)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of the study's folder by its name in `result_tables`.

        Raises UserError where it is not one of this study, as it is now.
        """
        if name not in self._tables:
            path = self.files.result(name)
            self._tables[name] = parsed(name, self.content(path.name), path)
        return self._tables[name]

    @functools.cached_property
    def scores(self) -> pd.DataFrame:
        """scores.csv, with the columns condition_id and inference_id added; one row for all folds of a seed."""
        scores = self.names.identified(self.table("scores"))
        tested = {(role, site) for part in self.plan.partitions for role in ROLES for site in getattr(part, role)}
        if strange := sorted(set(zip(scores["role"], scores["site"], strict=True)) - tested):
            role, site = strange[0]
            raise UserError(self.files.scores, f"has the {role} site {site!r}, which the study does not have", AGAIN)
        if unknown := sorted(set(scores["metric"]) - {metric.name for metric in score.metrics(self.plan)}):
            raise UserError(self.files.scores, f"has the metric {unknown[0]!r}, which the study does not have", AGAIN)
        return folds.together(scores, self.names.conditions, self.predictions, score.metrics(self.plan))

    @functools.cached_property
    def operating_points(self) -> operating_point.Points:
        """The points of operating_points.csv. Raises UserError where rows are missing."""
        table = self.table("operating_points")
        with readable(self.files.result("operating_points"), "table"):
            return operating_point.points(table)

    @functools.cached_property
    def controls(self) -> controls.Controls:
        """The scores of the controls without a network, and what each condition adds to them."""
        return controls.Controls(self.findings)

    @functools.cached_property
    def findings(self) -> Findings:
        """The numbers of the study by their ids, from numbers.parquet. Raises UserError where it cannot be read."""
        self.require(self.files.numbers)
        return Findings(self.names, Numbers.read(self.files.numbers, AGAIN))

    @functools.cached_property
    def missing(self) -> list[dict[str, str]]:
        """The predictions that could not be scored: run, inference and why."""
        return score.missing(self.plan, self.paths)

    @functools.cached_property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """manifest.json of each run by its id; empty where there is none."""
        files = {run: self.paths.run_files(run).manifest for run in self.plan.runs}
        return {run: read_manifest(path) if path.exists() else {} for run, path in files.items()}

    @functools.cached_property
    def cards(self) -> list[dict[str, Any]]:
        """The card of each dataset of the study."""
        return [card(self.paths, data) for data in self.plan.data.values()]

    @property
    def synthetic(self) -> bool:
        """True where any images of the study are invented."""
        return any(card["synthetic"] for card in self.cards)

    @functools.cached_property
    def rounds(self) -> pd.DataFrame:
        """rounds.parquet of all runs that have one, with the columns run, seed, condition_id, condition and held_out.

        `condition` is the title of the condition. Raises UserError for a file that cannot be read.
        """
        parts = []
        for condition in self.names.conditions.values():
            for name, run in condition.runs.items():
                path = self.paths.run_files(name).rounds
                if not path.exists():
                    continue
                table = read_rounds(path)
                about: dict[str, Any] = {"run": name, "seed": run.seed, "condition_id": condition.id}
                parts.append(table.assign(**about, condition=condition.title, held_out=condition.held_out))
        columns = ["round", "site", "split", "loss", "accuracy", "run", "seed", "condition_id", "condition", "held_out"]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)

    @functools.cached_property
    def for_figures(self) -> Results:
        """Everything that a figure may need. Runs without rounds are left out; the page names them."""
        partitions = self.plan.partitions
        asked = {
            "net_benefit": net_benefit.FIGURE in self.plan.study.figures,
            "divergence": self.plan.measures_divergence,
        }
        tables = ["summary", "calibration", *(name for name, there in asked.items() if there)]
        return Results(
            scores=self._titled(self.scores),
            rounds=self.rounds,
            tables={name: self._titled(self.table(name)) for name in tables},
            images=functools.cache(functools.partial(examples, self)),
            mistakes=lambda each: list(cases.surest_mistakes(self.findings, self.predictions, self.samples, each)),
            outlines=lambda each: list(cases.worst_masks(self.findings, self.predictions, self.samples, each)),
            cases=lambda: cases.cases(self.findings, self.predictions),
            positive=self.plan.study.positive or "",
            curves=self._curves,
            internal=tuple(dict.fromkeys(s for p in partitions for s in p.internal)),
            external=tuple(dict.fromkeys(s for p in partitions for s in p.external)),
            headline=self.findings.headline,
            classes=self.plan.study.dataset.classes,
            settings={name: run.settings for name, run in self.plan.runs.items()},
            synthetic=self.synthetic,
            ranking=ranking(self.findings),
            unit=self.plan.study.resampled(known=True),
        )

    def _curves(self) -> pd.DataFrame:
        curves = self._titled(net_benefit.roc(self.findings, self.predictions))
        held_out = {key: condition.held_out for key, condition in self.names.conditions.items()}
        return curves.assign(held_out=curves["condition_id"].map(held_out))

    def _titled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the columns `condition` and `shown`: the titles of condition and inference."""
        titles = {key: condition.title for key, condition in self.names.conditions.items()}
        names = {key: self.findings.name(key) for key in self.findings.keys}
        return table.assign(condition=table["condition_id"].map(titles), shown=table["inference_id"].map(names))


def card(paths: Paths, data: Data) -> dict[str, Any]:
    """Return the card of prepared data, worded as the study words it now.

    Facts that only preparation knows, such as checksums, are empty before it.
    """
    path = paths.data_files(data.id).card
    prepared = read_card(path) if path.exists() else {}
    return {"synthetic": data.synthetic, "checksums": {}} | prepared | dataclasses.asdict(data.card)


def examples(results: StudyResults, each: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images and labels of at most `each` random samples of each site, sorted by label.

    They are always the same ones. There are none where the data are not images of two dimensions.
    """
    chosen: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for data in results.plan.data:
        files = results.paths.data_files(data)
        if not files.images.exists():
            continue
        images = map_array(files.images)
        if images.ndim != 4:
            continue
        samples = results.samples(data)
        labels = samples["label"].to_numpy()
        if len(samples) != len(images):
            problem = f"has {len(images)} images, but samples.parquet has {len(samples)} rows"
            raise UserError(files.images, problem, "remove its folder, and run the study again")
        for site, rows in samples.groupby("site", sort=False).indices.items():
            drawn = np.sort(stream("patches", data, site).permutation(rows)[:each])
            drawn = drawn[np.argsort(labels[drawn], kind="stable")]
            chosen[str(site)] = np.asarray(images[drawn]), labels[drawn]
    return chosen
