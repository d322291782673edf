"""Export of a study to MLflow: one experiment, with a run for each run, written by MLflow's client alone."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import sqlite3
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from ..algorithms import LOGGED
from ..analysis import study_results
from ..core import digest
from ..core.errors import UserError
from ..io.paths import TRAINED, Paths
from ..io.shipped import extra
from ..jobs.record import read_manifest, read_rounds
from ..study import calls
from ..study.plan import Plan
from ..study.run import Run
from . import without_places

if TYPE_CHECKING:
    from mlflow import MlflowClient

MEANS = ("loss", "accuracy")
"""Columns of rounds.parquet that are exported for each site, and as the plain mean over sites."""
TOTALS = ("floats_down", "floats_up", "messages", "seconds")
"""Columns of rounds.parquet that are exported as the sum over all rows of a round."""
MEAN = "mean"
"""Name of the mean over sites, in the place of a site's name."""
LONGEST_TAG = 100
"""Most characters of a site or a setting in a tag: MLflow takes 250 for a whole tag."""
MARKED = re.compile(r"-[0-9a-f]{8}\Z")
"""Ending that `word` gives to a changed text."""

Scalar = tuple[str, int, float]
Score = tuple[str, float]


@dataclass(frozen=True)
class Account:
    """What is exported of one run, in names that MLflow accepts (letters, digits, `_-.`, in tags also `/`).

    `settings` are those of the run by dotted path, and the settings of its inferences that differ from the defaults.
    `rounds` has (tag, round, value), with tags such as `loss/train/SITE`, `loss/train/mean` and `total/floats_up`;
    `scores` has (tag, value), such as `accuracy/tsmobn/SITE`, for the network after round `kept`. All values are
    finite. `facts` say how it was trained, such as device, seconds and commit. `clock` maps a round to the time when it
    ended, in seconds since 1970, and 0 to the start of the first. Times are the durations of rounds added to the start
    of the last process that trained the run: after an interruption, rounds have later times than their true ones.
    """

    id: str
    settings: dict[str, Any]
    rounds: tuple[Scalar, ...]
    scores: tuple[Score, ...]
    facts: dict[str, Any]
    kept: int
    clock: dict[int, float]

    @property
    def name(self) -> str:
        """The name of the run in MLflow: its id, followed by `-synthetic` if its images are synthetic."""
        return f"{self.id}-synthetic" if self.facts["synthetic"] else self.id

    @property
    def digest(self) -> str:
        """A digest of everything that is exported of the run."""
        return digest.of(asdict(self), 16)


def trained(plan: Plan, paths: Paths) -> list[Run]:
    """Return the runs of a study whose files of the training all exist. Raises UserError if there is none."""
    runs = [r for r in plan.runs.values() if all((paths.run(r.id) / name).exists() for name in TRAINED)]
    if not runs:
        fault = "no run is trained: there is nothing to export"
        raise UserError(plan.label, fault, f"train: {calls.snakemake(plan, paths)}")
    return runs


def accounts(plan: Plan, paths: Paths, runs: Iterable[Run]) -> Iterator[Account]:
    """Yield what is exported of each run as an `Account`, one after another. Raises UserError for a damaged file."""
    scores = _scores(plan, paths)
    for run in runs:
        manifest, started = _manifest(paths.run_files(run.id).manifest)
        table = read_rounds(paths.run_files(run.id).rounds)
        passed: dict[Any, float] = table.groupby("round")["seconds"].sum().cumsum().to_dict()
        yield Account(
            id=run.id,
            settings=_settings(plan, run),
            rounds=tuple(scalar for scalar in _rounds(table) if math.isfinite(scalar[2])),
            scores=tuple(scores.get(run.id, ())),
            facts=_facts(run, manifest),
            kept=manifest["best_round"],
            clock={0: started} | {int(number): started + float(seconds) for number, seconds in passed.items()},
        )


def word(name: str) -> str:
    """Return a name, such as that of a site, as a valid part of a tag of MLflow.

    Characters that MLflow does not take are replaced; a digest at the end then keeps different names apart.
    """
    clean = re.sub(r"[^\w.-]", "_", name[:LONGEST_TAG])
    # A name that looks like a changed one is changed too: otherwise two sites could share a tag.
    if clean == name and name.strip(".") and name != MEAN and not MARKED.search(name):
        return name
    return f"{clean}-{digest.of(name, 8)}"


def text(value: Any) -> str:
    """Return a value as MLflow shows it: a text as it is, and any other value, or an empty text, as JSON."""
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False)


def _settings(plan: Plan, run: Run) -> dict[str, Any]:
    """Return the settings of a run by dotted path, without folders of files.

    Settings of inferences that differ from their defaults are under `inferences.ID`.
    """
    settings = {word(key): value for key, value in without_places(run).settings.items()}
    for name in plan.predictions(run.id):
        changed = plan.inferences[name].model_dump(mode="json", exclude_defaults=True)
        if changed:
            settings[f"inferences.{name}"] = changed
    return settings


def _rounds(table: pd.DataFrame) -> Iterator[Scalar]:
    """Yield (tag, round, value) for each site and round, and for the means and totals over sites.

    `table` is a run's rounds.parquet. A mean is NaN where the value of a site is.
    """
    sites = {site: word(site) for site in table["site"].unique()}
    # The mean is taken in NumPy, since that of pandas would pass over NaN: a mean of fewer sites is another quantity.
    parts: Iterable[tuple[Any, pd.DataFrame]] = table.groupby(["round", "split"])
    for (number, split), rows in parts:
        logged = [name for name in map(str, rows) if name.startswith(LOGGED) and rows[name].notna().any()]
        for column in (*MEANS, *logged):
            values = rows[column].to_numpy(dtype=float)
            for site, value in zip(rows["site"], values, strict=True):
                yield f"{column}/{split}/{sites[site]}", int(number), float(value)
            yield f"{column}/{split}/{MEAN}", int(number), float(values.mean())
    whole: Iterable[tuple[Any, pd.DataFrame]] = table.groupby("round")
    for number, rows in whole:
        for column in TOTALS:
            if column in rows:
                yield f"total/{column}", int(number), float(rows[column].to_numpy(dtype=float).sum())


def _scores(plan: Plan, paths: Paths) -> dict[str, list[Score]]:
    """Return (tag, value) of each defined score in scores.csv by id of the run; an empty dict without this file."""
    scores: dict[str, list[Score]] = defaultdict(list)
    path = paths.study_files(plan.name).scores
    if path.exists():
        table = study_results.load(plan, paths).scores
        columns = ["run", "metric", "inference_id", "site", "value"]
        for run, metric, inference, site, value in table[columns].itertuples(index=False):
            if math.isfinite(value):
                scores[run].append((f"{metric}/{inference}/{word(site)}", float(value)))
    return scores


def _manifest(path: Path) -> tuple[dict[str, Any], float]:
    """Return the content of a run's manifest.json, and when its last process started, in seconds since 1970.

    Raises UserError for a file that is no manifest of a trained run.
    """
    manifest = read_manifest(path)
    try:
        started = datetime.fromisoformat(manifest["started"]).timestamp()
        return {**manifest, "best_round": int(manifest["best_round"])}, started
    except (KeyError, TypeError, ValueError):
        raise UserError(path, "is not a manifest of a trained run", "remove it, and train the run again") from None


def _facts(run: Run, manifest: dict[str, Any]) -> dict[str, Any]:
    git = manifest.get("git") or {}
    training = {key: manifest.get(key) for key in ("best_round", "best_value", "seconds", "device", "started", "code")}
    facts = {"synthetic": run.data.synthetic, **training, "commit": git.get("commit"), "uncommitted": git.get("dirty")}
    return {key: value for key, value in facts.items() if value is not None}


HOME = Path("results", "exports")
"""Folder of MLflow's database and files if no other place is named."""
DATABASE = f"sqlite:///{HOME / 'mlflow.db'}"
RUN = "fedshift.run"
"""Tag by which an export recognises its runs."""
DIGEST = "fedshift.digest"
"""Tag with the digest of what was logged. It is set last: a run without it is incomplete."""
LONGEST_PARAMETER = 6000
"""Most characters of a parameter."""
PATIENCE = 10
"""Seconds within which a server must answer."""


def export(accounts: Iterable[Account], study: str, where: str | None = None) -> str:
    """Log the runs of a study to the tracking URI `where`. Returns a sentence for people.

    The default is the URI in MLFLOW_TRACKING_URI, or a database of this project. A run that was already logged with the
    same content is left alone; any other of the same name is deleted once the new one is complete. Raises UserError
    where the packages are missing, or the server does not answer or refuses.
    """
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # nothing is sent to a server that the user did not name
    with extra("mlflow"):
        import alembic  # noqa: F401 - mlflow would miss it later, with a message that is harder to act on
        import sqlalchemy  # noqa: F401
        from mlflow import MlflowClient
    uri = where or os.environ.get("MLFLOW_TRACKING_URI") or DATABASE
    artifacts = (HOME / "mlflow" / study).absolute().as_uri() if uri == DATABASE else None
    name = f"fedshift/{study}"
    with _quiet(), _plain_errors(uri):
        # MLflow itself would keep trying for minutes
        checks = {"http": _require_server, "https": _require_server, "sqlite": _require_database}
        checks.get(uri.partition(":")[0], lambda _: None)(uri)
        client = MlflowClient(uri)
        experiment = _experiment(client, name, artifacts)
        new = [_keep(client, experiment, account) for account in accounts]
    told = f"logged {sum(new)} runs to the experiment {name} of {_shown(uri)}"
    if not all(new):
        told += f"; {len(new) - sum(new)} more were there already"
    return told


def _shown(uri: str) -> str:
    """Return the URI without user name and password, for messages."""
    return re.sub(r"//[^/@\s]*@", "//", uri)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence loggers and standard output inside the context: MLflow comments on each table, run and error."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.ERROR))
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


@contextmanager
def _plain_errors(uri: str) -> Iterator[None]:
    """Turn an error of MLflow, of its database or of a missing driver into a UserError, within the block."""
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, ImportError) as error:
        message = _shown(textwrap.shorten(str(error).partition("\n")[0], 300))
        problem = f"MLflow cannot log there: {message}"
        raise UserError(_shown(uri), problem, "see --to and MLFLOW_TRACKING_URI") from error


def _require_server(uri: str) -> None:
    """Raise UserError if no MLflow server answers at the URI within PATIENCE seconds."""
    from mlflow.exceptions import MlflowException
    from mlflow.utils.credentials import get_default_host_creds
    from mlflow.utils.rest_utils import http_request

    try:
        http_request(get_default_host_creds(uri), "/health", "GET", 0, timeout=PATIENCE, raise_on_status=False)
    except MlflowException as error:
        kind = type(error.__cause__ or error.__context__ or error).__name__
        remedy = "start the server, or name another with --to or MLFLOW_TRACKING_URI"
        raise UserError(_shown(uri), f"the MLflow server does not answer ({kind})", remedy) from error


def _require_database(uri: str) -> None:
    """Raise UserError if the SQLite file of the URI can neither be opened nor created."""
    from sqlalchemy.engine import make_url

    path = Path(make_url(uri).database or ":memory:")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma schema_version")
    except sqlite3.Error as error:
        raise UserError(path, f"cannot be opened as a database: {error}", "name another with --to") from error


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Return the id of the experiment `name`, which is created if it does not exist.

    `artifacts` is the URI of its folder of files, None for the server's choice. Raises UserError for a deleted
    experiment.
    """
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return str(client.create_experiment(name, artifact_location=artifacts))
    if experiment.lifecycle_stage != "active":
        raise UserError(f"experiment {name}", "was deleted in MLflow", "restore it there, or remove it for good")
    return str(experiment.experiment_id)


def _keep(client: MlflowClient, experiment: str, account: Account) -> bool:
    """Log a run unless it is logged completely and with the same content. Return whether it had to be logged.

    All other runs of MLflow with the same id of fedshift are deleted.
    """
    logged = client.search_runs([experiment], f"tags.`{RUN}` = '{account.id}'")
    complete = [
        run.info.run_id
        for run in logged
        if run.info.status == "FINISHED" and run.data.tags.get(DIGEST) == account.digest
    ]
    # Earlier runs are deleted last, so that a call which is interrupted loses nothing.
    kept = complete or [_log(client, experiment, account)]
    for run in logged:
        if run.info.run_id != kept[0]:
            client.delete_run(run.info.run_id)
    return not complete


def _log(client: MlflowClient, experiment: str, account: Account) -> str:
    """Log an account as a new run of MLflow, and return the id that MLflow gives it."""
    from mlflow.entities import Metric, Param, RunTag

    when = {number: int(1000 * seconds) for number, seconds in account.clock.items()}
    end = max(when.values())
    run = client.create_run(experiment, start_time=when[0], tags={RUN: account.id}, run_name=account.name).info.run_id
    metrics = [Metric(tag, value, when[number], number) for tag, number, value in account.rounds]
    metrics += [Metric(tag, value, end, account.kept) for tag, value in account.scores]
    shown = {key: text(value) for key, value in account.settings.items()}
    params = [
        Param(k, v if len(v) <= LONGEST_PARAMETER else f"{v[: LONGEST_PARAMETER - 1]}…") for k, v in shown.items()
    ]
    tags = [RunTag(key, text(value)) for key, value in account.facts.items()]
    # The client itself divides these into batches that a server takes.
    client.log_batch(run, metrics=metrics, params=params, tags=tags, synchronous=True)
    client.set_tag(run, DIGEST, account.digest)
    client.set_terminated(run, "FINISHED", end)
    return str(run)
