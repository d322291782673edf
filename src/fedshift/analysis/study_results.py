"""The results of a study as tables, each read once, and the tables and images from which figures are drawn."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..core import registry
from ..core.errors import UserError
from ..core.rng import stream
from ..data.prepared import read_card, read_samples
from ..figures import Figure, Mistake, OutlinedImage, Results, SiteMistakes, SiteOutlines
from ..figures._base import no_cases
from ..io.arrays import map_array
from ..io.images import decoded
from ..io.paths import RESULT_TABLES, Paths
from ..io.text import readable, require_columns, require_unique, write_text
from ..jobs.record import read_manifest, read_rounds
from ..study.plan import Plan
from ..study.run import Data, Run
from ..tasks.segmentation import Segmentation, counts, dice_of_images
from . import controls, net_benefit, operating_point, score
from .conditions import Condition
from .findings import Findings
from .numbers import Names, Numbers
from .predictions import Predictions, probabilities
from .verdict import declared, ranking

ROLES = ("internal", "external")
AGAIN = "score and report the study again"
PACKAGE = __package__.partition(".")[0]


def draw(results: StudyResults, name: str) -> Path:
    """Write the figure `name` of a study to figures/{name}.svg, and return its path."""
    figure: Figure = registry.build("figure", name)
    out = results.files.figure(name)
    write_text(out, figure.draw(results.for_figures))
    return out


def parsed(name: str, content: bytes, path: Path) -> pd.DataFrame:
    """Return the table `name`, such as `effects`, from the bytes of its CSV file, whose `path` is named in errors.

    Raises UserError if it is not a table, lacks a column, or has a row twice.
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
    """The results of a study as tables, most with the ids of condition and inference (columns `paths.IDS`).

    Each file is read once, when it is first needed.
    """

    def __init__(self, plan: Plan, paths: Paths) -> None:
        self.plan = plan
        self.paths = paths
        self.files = paths.study_files(plan.name)
        self.names = Names(plan)
        self._contents: dict[str, bytes] = {}
        self._samples: dict[str, pd.DataFrame] = {}
        self._tables: dict[str, pd.DataFrame] = {}

    def content(self, name: str) -> bytes:
        """Return the bytes of the file `name` in the study's folder. Raises UserError if it does not exist."""
        if name not in self._contents:
            path = self.files.folder / name
            self.require(path)
            with readable(path, "table"):
                self._contents[name] = path.read_bytes()
        return self._contents[name]

    def require(self, path: Path) -> None:
        """Raise UserError if the file `path` of the study does not exist."""
        if not path.is_file():
            raise UserError(path, "no such file", "score and report the study first")

    def samples(self, data: str) -> pd.DataFrame:
        """Return the table of samples of prepared data by the data's id. Raises UserError if it cannot be read."""
        if data not in self._samples:
            table = read_samples(self.paths.data_files(data).samples)
            self._samples[data] = table.astype({"sample": str, "site": str})
        return self._samples[data]

    @functools.cached_property
    def predictions(self) -> Predictions:
        """The predictions of all runs with the splits of their samples; a file is read when it is first needed."""
        return Predictions(self.plan, self.paths)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table of results by its name without the ending, such as `effects` (see RESULT_TABLES).

        Raises UserError if the file does not exist or is not such a table.
        """
        if name not in self._tables:
            path = self.files.result(name)
            self._tables[name] = parsed(name, self.content(path.name), path)
        return self._tables[name]

    @functools.cached_property
    def scores(self) -> pd.DataFrame:
        """The rows of scores.csv with the columns condition_id and inference_id added; the folds of a seed are one row.

        Raises UserError if it has a site or a metric that the study does not have.
        """
        scores = self.names.identified(self.table("scores"))
        tested = {(role, site) for part in self.plan.partitions for role in ROLES for site in getattr(part, role)}
        if strange := sorted(set(zip(scores["role"], scores["site"], strict=True)) - tested):
            role, site = strange[0]
            raise UserError(self.files.scores, f"has the {role} site {site!r}, which the study does not have", AGAIN)
        if unknown := sorted(set(scores["metric"]) - {metric.name for metric in score.metrics(self.plan)}):
            raise UserError(self.files.scores, f"has the metric {unknown[0]!r}, which the study does not have", AGAIN)
        return score.together(scores, self.names.conditions, self.predictions)

    @functools.cached_property
    def operating_points(self) -> operating_point.Points:
        """The operating points in operating_points.csv. Raises UserError if rows are missing."""
        table = self.table("operating_points")
        with readable(self.files.result("operating_points"), "table"):
            return operating_point.points(table)

    @functools.cached_property
    def controls(self) -> controls.Controls:
        """The scores of the controls (classifiers without a network), and differences of conditions to them."""
        return controls.Controls(self.findings)

    @functools.cached_property
    def findings(self) -> Findings:
        """The numbers in numbers.parquet with lookup by condition and inference.

        Raises UserError if it cannot be read.
        """
        self.require(self.files.numbers)
        return Findings(self.names, Numbers.read(self.files.numbers, AGAIN))

    @functools.cached_property
    def missing(self) -> list[dict[str, str]]:
        """The predictions that were not scored: run, inference and why."""
        return score.missing(self.plan, self.paths)

    @functools.cached_property
    def manifests(self) -> dict[str, dict[str, Any]]:
        """The content of manifest.json of each run by the run's id; {} for a run without one."""
        files = {run: self.paths.run_files(run).manifest for run in self.plan.runs}
        return {run: read_manifest(path) if path.exists() else {} for run, path in files.items()}

    @functools.cached_property
    def cards(self) -> list[dict[str, Any]]:
        """The card (source, licence and facts) of each dataset of the study."""
        return [card(self.paths, data) for data in self.plan.data.values()]

    @property
    def synthetic(self) -> bool:
        """True if any images of the study are synthetic."""
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
        """The tables, images and settings that figures may draw.

        Runs without a record of rounds are left out of `rounds`.
        """
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
            mistakes=lambda each: list(surest_mistakes(self, each)),
            outlines=lambda each: list(worst_masks(self, each)),
            cases=lambda: cases(self),
            positive=self.plan.study.positive or "",
            curves=functools.cache(self._curves),
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
        """Return the mean ROC curves with the titles of condition and inference, and the column held_out."""
        curves = self._titled(net_benefit.roc(self.findings, self.predictions))
        held_out = {key: condition.held_out for key, condition in self.names.conditions.items()}
        return curves.assign(held_out=curves["condition_id"].map(held_out))

    @functools.cached_property
    def _declared_first(self) -> list[str]:
        """The ids of the conditions, one for each partition, that the declared comparison names first."""
        return [condition.id for one in declared(self.findings)[:1] for condition in one.first.members]

    def _titled(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return a table with the titles of conditions (column `condition`) and inferences (column `shown`) added.

        Rows of the condition that the declared comparison names first come first, since a figure may leave out others.
        """
        titles = {key: condition.title for key, condition in self.names.conditions.items()}
        names = {key: self.findings.name(key) for key in self.findings.keys}
        titled = table.assign(condition=table["condition_id"].map(titles), shown=table["inference_id"].map(names))
        return titled.iloc[np.argsort(~table["condition_id"].isin(self._declared_first), kind="stable")]


def card(paths: Paths, data: Data) -> dict[str, Any]:
    """Return the card (source, licence and facts) of a dataset, worded as the study words it now.

    Facts that only preparation finds, such as checksums, are empty before the data are prepared.
    """
    path = paths.data_files(data.id).card
    prepared = read_card(path) if path.exists() else {}
    return {"synthetic": data.synthetic, "checksums": {}} | prepared | dataclasses.asdict(data.card)


def examples(results: StudyResults, each: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return images (n, height, width, channels) and labels (n,) of at most `each` random samples of each site.

    They are sorted by label, and the same in every call. There are none if the data are not two-dimensional images.
    Raises UserError if prepared images and their table of samples do not fit together.
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


def surest_mistakes(results: StudyResults, each: int) -> Iterator[SiteMistakes]:
    """Yield the most confident wrong predictions of every external site, at most `each`.

    A site is predicted by the first condition of the study that is tested there, with the inference whose scores are
    reported. Probabilities are means over the trainings whose predictions can be read; the predicted class is the one
    with the highest mean. Nothing is yielded if the data are not two-dimensional images.
    """
    findings, predicted = results.findings, results.predictions
    done = set[str]()
    for condition in findings.conditions:
        wanted = [s for s in condition.partition.external if s in condition.run.tested and s not in done]
        if not wanted:
            continue
        key = condition.level_inference
        tables = [table for _, table in predicted.readable(condition.runs.values(), key)]
        images = results.paths.data_files(condition.run.data.id).images
        if not tables or not images.exists() or (array := map_array(images)).ndim != 4:
            continue
        rows = pd.Index(results.samples(condition.run.data.id)["sample"])
        outside = _means([table[table["role"] == "external"] for table in tables])
        for site in wanted:
            part = outside[outside["site"] == site]
            if part.empty:
                continue
            done.add(site)
            wrong = part.loc[part["predicted"] != part["label"], ["sample", "label", "predicted", "probability"]]
            # equally confident ones by the name of the sample
            wrong = wrong.sort_values(["probability", "sample"], ascending=[False, True])
            # Of each training by itself, as the tables count: the mean probabilities make fewer mistakes.
            own = [_means([table[(table["role"] == "external") & (table["site"] == site)]]) for table in tables]
            each_wrong = [(one["predicted"] != one["label"]).sum() for one in own]
            shown = [
                Mistake(np.asarray(array[rows.get_loc(sample)]), label, predicted, probability)
                for sample, label, predicted, probability in wrong.head(each).itertuples(index=False, name=None)
            ]
            titles = findings.full(condition), findings.name(key)
            yield SiteMistakes(site, *titles, len(tables), round(float(np.mean(each_wrong))), len(part), tuple(shown))


def _means(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the mean probabilities of each sample over several tables of predictions, with the predicted class."""
    classes = probabilities(tables[0])
    both = pd.concat(tables).groupby(["site", "sample", "label"], sort=True, as_index=False)[classes].mean()
    shares = both[classes].to_numpy(dtype=float)
    return both.assign(predicted=shares.argmax(axis=1), probability=shares.max(axis=1))


def _sites(results: StudyResults, done: set[str]) -> Iterator[tuple[str, str, Condition, Run]]:
    """Yield every site, its role, and the condition and run that predict it for a picture: external sites first.

    The condition is the first one of the study that is tested there, and the run its first training whose predictions
    can be read, with the inference whose scores are reported. A site is yielded again, with another condition, until
    the caller adds it to `done`. A site that is external in one partition and internal in another is yielded as
    external.
    """
    for role in ("external", "internal"):
        for condition in results.findings.conditions:
            wanted = [s for s in getattr(condition.partition, role) if s in condition.run.tested and s not in done]
            if not wanted:
                continue
            readable = results.predictions.by_site(condition.runs.values(), condition.level_inference)
            run = next((run for run, _ in readable), None)
            if run is not None:  # else score() lists it in missing.json
                yield from ((site, role, condition, run) for site in wanted)


def worst_masks(results: StudyResults, each: int) -> Iterator[SiteOutlines]:
    """Yield, for every site, at most `each` images with the lowest Dice score, with their predicted masks.

    A site is predicted by the first run with predictions, of the first condition that is tested there. Nothing is
    yielded unless the task is segmentation.
    """
    task, findings = results.plan.study.task, results.findings
    if not isinstance(task, Segmentation):
        return
    tables: dict[tuple[str, str], pd.DataFrame] = {}
    done = set[str]()
    for site, role, condition, run in _sites(results, done):
        key = condition.level_inference
        if (run.id, key) not in tables:
            table = results.predictions.masks(run, key)
            numbers = table[task.columns(run.data.dataset.classes)].to_numpy(dtype=float)
            tables[run.id, key] = table.assign(dice=dice_of_images(counts(numbers)))
        table = tables[run.id, key]
        part = table[(table["site"] == site) & (table["role"] == role)].dropna(subset="dice")
        if part["mask"].isna().all():
            continue
        done.add(site)
        shown = part.dropna(subset="mask").sort_values(["dice", "sample"])[:each]
        images = tuple(_outlined(results, shown, run, task))
        titles = findings.full(condition), findings.name(key)
        yield SiteOutlines(site, role, *titles, run.seed, len(part), images)


def cases(results: StudyResults) -> pd.DataFrame:
    """Return a row for each patient of each site that has a Dice score (see `Results.cases`).

    A site is predicted by the first run with predictions, of the first condition that is tested there. The table is
    empty unless the task is segmentation.
    """
    tables = [no_cases()]
    done = set[str]()
    sites = _sites(results, done) if isinstance(results.plan.study.task, Segmentation) else ()
    for site, role, condition, run in sites:
        done.add(site)
        parts = results.predictions.parts(run, condition.level_inference)
        (part,) = (part for part in parts if (part.site, part.role) == (site, role))
        pixels = counts(part.probability)
        tp, fp, fn = np.moveaxis(pixels, -1, 0)
        missed, false_alarm = (tp + fn > 0) & (tp + fp == 0), (tp + fn == 0) & (fp > 0)
        columns = {"dice": dice_of_images(pixels), "missed": missed.any(1), "false_alarm": false_alarm.any(1)}
        tables.append(pd.DataFrame({"role": role, "site": site, "case": part.samples, **columns}).dropna(subset="dice"))
    return pd.concat(tables[1:] or tables, ignore_index=True)


def _outlined(results: StudyResults, shown: pd.DataFrame, run: Run, task: Segmentation) -> Iterator[OutlinedImage]:
    """Yield the images in the rows `shown` with the reference mask and the predicted mask of each structure."""
    files = results.paths.data_files(run.data.id)
    images, masks = map_array(files.images), map_array(files.masks)
    rows = pd.Index(results.samples(run.data.id)["sample"]).get_indexer(shown["sample"])
    where = results.paths.predictions(run.id, results.plan.prediction_jobs[run.id])
    structures = task.scored(len(run.data.dataset.classes))
    for row, content, overlap in zip(rows, shown["mask"], shown["dice"], strict=True):
        both = [np.asarray(masks[row]), decoded(content, masks.shape[1:], where)]
        reference, found = (np.stack([np.isin(mask, classes) for classes in structures]) for mask in both)
        yield OutlinedImage(np.asarray(images[row]), reference, found, float(overlap))
