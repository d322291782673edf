"""Export of a study to MLflow: one experiment, with a run for each run, written by MLflow's client alone."""

from __future__ import annotations

import io
import logging
import os
import re
import sqlite3
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import UserError
from ..io.shipped import extra
from .account import Account, text

if TYPE_CHECKING:
    from mlflow import MlflowClient

HOME = Path("results", "exports")
DATABASE = f"sqlite:///{HOME / 'mlflow.db'}"
RUN = "fedshift.run"
"""Tag by which an export recognises its runs."""
DIGEST = "fedshift.digest"
"""Tag with the digest of what was logged. It is set last, when a run is complete."""
LONGEST = 6000
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
        _require_answer(uri)
        client = MlflowClient(uri)
        experiment = _experiment(client, name, artifacts)
        new = [_keep(client, experiment, account) for account in accounts]
    told = f"logged {sum(new)} runs to the experiment {name} of {_shown(uri)}"
    if not all(new):
        told += f"; {len(new) - sum(new)} more were there already"
    return told


def _shown(uri: str) -> str:
    """Return the URI without a user's name and password."""
    return re.sub(r"//[^/@\s]*@", "//", uri)


@contextmanager
def _quiet() -> Iterator[None]:
    """Let loggers report only errors, and print nothing, within the block: MLflow comments on each table and run."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
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
        raise UserError(
            _shown(uri), f"MLflow cannot log there: {message}", "see --to and MLFLOW_TRACKING_URI"
        ) from error


def _require_answer(uri: str) -> None:
    """Raise UserError where no server or database answers: MLflow itself would keep trying for minutes."""
    checks = {"http": _require_server, "https": _require_server, "sqlite": _require_database}
    checks.get(uri.partition(":")[0], lambda _: None)(uri)


def _require_server(uri: str) -> None:
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
    """Raise UserError for a SQLite file that can neither be opened nor made."""
    from sqlalchemy.engine import make_url

    path = Path(make_url(uri).database or ":memory:")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute("pragma schema_version")
    except sqlite3.Error as error:
        raise UserError(path, f"cannot be opened as a database: {error}", "name another with --to") from error


def _experiment(client: MlflowClient, name: str, artifacts: str | None) -> str:
    """Return the id of an experiment, which is made where there is none."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return str(client.create_experiment(name, artifact_location=artifacts))
    if experiment.lifecycle_stage != "active":
        raise UserError(f"experiment {name}", "was deleted in MLflow", "restore it there, or remove it for good")
    return str(experiment.experiment_id)


def _keep(client: MlflowClient, experiment: str, account: Account) -> bool:
    """Ensure that a run is logged completely, once and with its present content. Return whether it had to be logged."""
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
    """Log an account as a new run, and return MLflow's id of it."""
    from mlflow.entities import Metric, Param, RunTag

    when = {number: int(1000 * seconds) for number, seconds in account.clock.items()}
    end = max(when.values())
    run = client.create_run(experiment, start_time=when[0], tags={RUN: account.id}, run_name=account.name).info.run_id
    metrics = [Metric(tag, value, when[number], number) for tag, number, value in account.rounds]
    metrics += [Metric(tag, value, end, account.kept) for tag, value in account.scores]
    params = [Param(key, _cut(text(value))) for key, value in account.settings.items()]
    tags = [RunTag(key, text(value)) for key, value in account.facts.items()]
    # The client itself divides these into batches that a server takes.
    client.log_batch(run, metrics=metrics, params=params, tags=tags, synchronous=True)
    client.set_tag(run, DIGEST, account.digest)
    client.set_terminated(run, "FINISHED", end)
    return str(run)


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"
