"""The server's side of a study: waits for the sites, trains the runs, and writes what rule train writes."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..core.console import duration, say
from ..core.errors import UserError
from ..engine.coordinator import Coordinator, usable
from ..engine.messages import Fault, Message, Transport
from ..io.arrays import read_tensors, write_tensors
from ..io.disk import locked
from ..io.paths import Paths, RunFiles
from ..jobs import run_files
from ..jobs.record import RoundLog, take_device
from ..jobs.train import specification
from . import agreed
from .rows import opened_rows, opened_sums, write_rows, write_sums

if TYPE_CHECKING:
    import pandas as pd

    from ..study.plan import Plan
    from ..study.run import Run

LOOK = 1.0
"""Seconds between two checks of which sites are connected."""
RETURN = 180.0
"""Seconds to wait, after the last round, for sites that have lost their connection: the page needs their rows."""
REMIND = 30.0
"""Seconds between two lines that name the sites that are still missing."""


class Connection(Transport, Protocol):
    """A transport from the server to the sites of a study, which counts the bytes of tensors sent and received."""

    bytes_down: int
    bytes_up: int

    def here(self) -> list[str]:
        """Return the names of the sites that are connected."""
        ...


class OfRun:
    """A transport that adds the name of one run to each message."""

    def __init__(self, transport: Connection, run: str) -> None:
        self.transport, self.run = transport, run
        self.names: Sequence[str] = transport.names

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send messages with the run's name, print which sites did not answer, and yield name and answer of each."""
        marked = {name: m._replace(about=m.about | {"run": self.run}) for name, m in messages.items()}
        for name, answer in self.transport.ask(marked):
            if isinstance(answer, Fault):
                say(f"no answer of {name!r} to {messages[name].kind}: {answer.reason}")
            yield name, answer


def serve(
    plan: Plan, transport: Connection, wait: float, threads: int, check: Callable[[], None] = lambda: None
) -> list[str]:
    """Train all runs of a study with its sites, and return the names of sites that sent no results for the page.

    Results are rows of scored images, or sums. A run that was begun goes on after its last finished round. `check` is
    called while sites are waited for, and may raise an error. Raises UserError for sites that do not come within `wait`
    seconds.
    """
    wait_for_sites(transport, wait, check)
    trained = {}
    for key, run in plan.runs.items():
        say(f"training {key}")
        trained[key] = train(run, transport, threads)
    try:
        wait_for_sites(transport, min(wait, RETURN), check)
    except UserError as error:
        say(f"{error.where} {error.what}: going on without their rows")
    missing = collect_rows(plan, trained, transport)
    dict(transport.ask(dict.fromkeys(transport.names, Message("over", {}, {}))))
    for key in trained:
        shutil.rmtree(Paths().run_files(key).checkpoint, ignore_errors=True)
    return missing


def wait_for_sites(transport: Connection, limit: float, check: Callable[[], None]) -> None:
    """Wait until all sites are connected. Raises UserError that names those that are missing after `limit` seconds."""
    began = said = time.monotonic()
    while missing := sorted({*transport.names} - {*transport.here()}):
        check()
        now = time.monotonic()
        if now - began > limit:
            names = ", ".join(missing)
            problem = f"did not connect within {duration(limit)}"
            raise UserError(f"sites {names}", problem, "ask there for the output of fedshift site; wait longer: --wait")
        if now - said > REMIND:
            said = now
            say(f"waiting for {', '.join(missing)}; give up in {duration(limit - (now - began))}")
        time.sleep(LOOK)


def train(run: Run, transport: Connection, threads: int) -> Coordinator:
    """Train one run with the sites, or continue it, and write the files `RunFiles.trained`. Returns its coordinator."""
    files = Paths().run_files(run.id)
    ours = OfRun(transport, agreed.name_of(run))
    digest = agreed.digest_of(run)
    device = take_device(threads)
    started = datetime.now(UTC)
    log = RoundLog(files.round_log, run.training.rounds)

    def save(coordinator: Coordinator) -> None:
        progress = coordinator.progress()
        number = progress["round"]
        log.append(number, [row for row in progress["history"] if row["round"] == number])
        write_tensors(files.state, coordinator.tensors(), {"digest": digest, "progress": json.dumps(progress)})
        say(f"  {transport.bytes_down / 1e6:.1f} MB sent and {transport.bytes_up / 1e6:.1f} MB received so far")

    with locked(files.lock):
        coordinator = _opened(run, ours, files, digest, device)
        sizes = {about["name"]: about["n"] for about in coordinator.joined}
        shares = ", ".join(f"{m.name} {m.weight:.1%} ({sizes[m.name]:,} images)" for m in coordinator.rounds.clients)
        say(f"weights of the sites in averages, with the numbers of images that they announce: {shares}")
        if not files.manifest.exists():
            log.start(coordinator.server.round)
            try:
                coordinator.run(after_round=save)
            finally:
                log.close()
            run_files.write_served(run, coordinator, files, started, threads, device)
    return coordinator


def _opened(run: Run, transport: OfRun, files: RunFiles, digest: str, device: torch.device) -> Coordinator:
    """Return the coordinator of a run, resumed after its last finished round, or new before the first one.

    A checkpoint whose digest is not `digest` was made by other code, and is not used.
    """
    spec = specification(run, agreed.shape_of(run))
    settings: dict[str, Any] = {"digest": digest, "device": device, "forms": agreed.forms(run, len(transport.names))}
    if files.state.exists():
        tensors, meta = read_tensors(files.state)
        if meta.get("digest") == digest:
            progress = json.loads(meta["progress"])
            say(f"going on after round {progress['round']}")
            return Coordinator.resume(spec, transport, tensors, progress, **settings)
        say("starting anew: the checkpoint was made by other code")
    return Coordinator.open(spec, transport, **settings)


def collect_rows(plan: Plan, trained: Mapping[str, Coordinator], transport: Connection) -> list[str]:
    """Ask the sites for the rows of scored images that a page needs, and write them.

    `trained` has the coordinator of each run by its key. A site that keeps its rows sends sums, which are written into
    a file of their own. Returns the names of sites that sent neither.
    """
    missing: set[str] = set()
    rows: dict[str, dict[str, pd.DataFrame]] = {}
    sums: dict[str, list[pd.DataFrame]] = {}
    for key, coordinator in trained.items():
        run, best, rows[key], sums[key] = plan.runs[key], coordinator.best(), {}, []
        about = {"digest": coordinator.digest, "round": coordinator.rounds.round}
        asked = {
            name: Message("rows", about | {"since": coordinator.since[k]}, {"received": best.received_by(k)})
            for k, name in enumerate(transport.names)
        }
        joined = {about["name"]: about for about in coordinator.joined}
        read = partial(_read, rows[key], sums[key], run, plan, key)
        for name, reply in OfRun(transport, agreed.name_of(run)).ask(asked):
            answer = usable(asked[name], reply, partial(read, joined[name]))
            if isinstance(answer, Fault):
                say(f"no rows of {name!r}: {answer.reason}")
                missing.add(name)
    write_rows(plan, rows)
    write_sums(plan, sums)
    return sorted(missing)


def _read(
    rows: dict[str, pd.DataFrame],
    sums: list[pd.DataFrame],
    run: Run,
    plan: Plan,
    key: str,
    joined: Mapping[str, Any],
    asked: Message,
    answer: Message,
) -> None:
    """Check the rows, or the sums, in a site's answer, and add them to `rows` or to `sums`.

    `joined` is what the site said about itself when it joined the run. Raises UserError for rows or sums that the run
    cannot have.
    """
    name = joined["name"]
    if joined.get("summed"):
        sums.append(opened_sums(answer, name, run, plan.predictions(key), joined["summed"]))
    else:
        rows[name] = opened_rows(answer, name, run, plan.study.subgroups, joined.get("scored", 0))
