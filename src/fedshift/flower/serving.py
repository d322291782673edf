"""The server's side of a study: waits for the sites, trains the runs, and writes what rule train writes."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from ..core.console import duration, say
from ..core.errors import UserError
from ..engine.coordinator import Coordinator
from ..engine.specification import Specification
from ..engine.transport import Fault, Message
from ..io import checksums, identity
from ..io.disk import locked
from ..io.paths import Paths, RunFiles
from ..io.tables import write_table
from ..io.tensors import read_tensors, write_tensors
from ..io.text import write_json
from ..jobs import served
from ..jobs.devices import take_device
from ..jobs.round_log import RoundLog
from . import agreed
from .hospital import as_table, specification
from .processes import Process, is_local, running, secret_file
from .wire import LOST, FlowerTransport, opened_run, register

if TYPE_CHECKING:
    from ..study.plan import Plan
    from ..study.run import Run
    from .keys import Keys

STARTS = 5
"""How often a SuperLink is started."""
LOOK = 1.0
"""Seconds between two looks for sites."""
RETURN = 180.0
"""Seconds to wait, after the last round, for sites that were gone: the page needs their rows."""
REMIND = 30.0
"""Seconds between two lines about sites that are missing."""


class OfRun:
    """A transport whose messages are those of one run."""

    def __init__(self, transport: FlowerTransport, run: str) -> None:
        self.transport, self.run = transport, run
        self.names: Sequence[str] = transport.names

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send messages with the name of the run, and say which sites did not answer."""
        marked = {name: m._replace(about=m.about | {"run": self.run}) for name, m in messages.items()}
        for name, answer in self.transport.ask(marked):
            if isinstance(answer, Fault):
                say(f"no answer of {name!r} to {messages[name].kind}: {answer.reason}")
            yield name, answer


def serve(plan: Plan, keys: Keys | None, address: str, wait: float, threads: int, resume: bool) -> list[str]:
    """Train all runs of a study with its sites, and return the names of sites whose rows for the page are missing.

    `address` (host:port) is where sites reach this machine; without `keys` it is on the loopback device. A SuperLink
    that ends is started again: a new run of Flower goes on after the last finished round. Raises UserError for sites
    that do not come within `wait` seconds, and for rounds of an earlier call that `resume` does not ask to go on with.
    """
    stopped = [run for run in plan.runs if Paths().run_files(run).state.exists()]
    if stopped and not resume:
        problem = "was stopped before its last round"
        raise UserError(Paths().run(stopped[0]), problem, "go on with it: --resume; or remove its folder")
    if not resume:
        shutil.rmtree(_home(), ignore_errors=True)
    _home().mkdir(parents=True, exist_ok=True)
    for _ in range(STARTS):
        with superlink(keys, address) as (program, local, ca, secret):
            try:
                with opened_run(local, ca, secret) as grid:
                    transport = FlowerTransport(grid, agreed.sites(plan), say)
                    return _served(plan, transport, wait, threads, program.require_alive)
            except LOST as error:
                time.sleep(LOOK)
                if program.child.poll() is None:
                    raise UserError(program.program, f"refuses a call: {error}", f"see {program.log}") from error
                say("the SuperLink has ended; starting another one, which goes on after the last finished round")
    raise UserError("flower-superlink", f"has ended {STARTS} times", f"see {program.log}")


def _home() -> Path:
    return Paths().results / "federation" / "server"


@contextmanager
def superlink(keys: Keys | None, address: str) -> Iterator[tuple[Process, str, bytes | None, bytes]]:
    """Run a SuperLink inside the context: give its process, its address from here, the authority, and its secret."""
    port = address.rpartition(":")[2]
    local = f"127.0.0.1:{port}"
    home = _home()
    secret = secret_file(home)
    options = ["--isolation", "process", "--superexec-auth-secret-file", str(secret.absolute()), "--port", port]
    options += ["--disable-runtime-dependency-installation", "--database", str((home / "state.db").absolute())]
    ca = None
    if keys:
        certificate, key = keys.server
        ca = keys.ca.read_bytes()
        options += ["--host", "127.0.0.1" if is_local(address) else "0.0.0.0", "--enable-supernode-auth"]
        options += ["--ssl-ca-certfile", str(keys.ca.absolute()), "--ssl-certfile", str(certificate.absolute())]
        options += ["--ssl-keyfile", str(key.absolute())]
    else:
        options += ["--host", "127.0.0.1", "--insecure"]
    with running("flower-superlink", options, home) as program:
        program.wait_for_port(local)
        if keys:
            for name in keys.names:
                register(local, ca, name, keys.public(name).read_bytes())
        say(f"open at {address}")
        yield program, local, ca, secret.read_bytes()


def _served(plan: Plan, transport: FlowerTransport, wait: float, threads: int, check: Callable[[], None]) -> list[str]:
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


def instructions(plan: Plan, keys: Keys, study: str) -> Iterator[str]:
    """Yield what `fedshift serve --init` says: which folder goes to whom, and the commands of both sides."""
    yield f"Certificates are in {keys.folder}; {keys.folder / 'server'} stays on this machine."
    for name in agreed.sites(plan):
        yield f"Give {keys.site(name)} to {name}, over a way that nobody else reads. There:"
        yield f"  fedshift site {name}/{plan.path.name} --site {name} --data images.csv --keys {name}"
    yield "Here, when the sites are told:"
    yield f"  fedshift serve {study}"


def wait_for_sites(transport: FlowerTransport, limit: float, check: Callable[[], None]) -> None:
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


def train(run: Run, transport: FlowerTransport, threads: int) -> Coordinator:
    """Train one run with the sites, or go on with it, and write the files of `RunFiles.trained`."""
    files = Paths().run_files(run.id)
    ours = OfRun(transport, agreed.name_of(run))
    digest = agreed.digest_of(run)
    device = take_device(threads, run.training.deterministic)
    started = datetime.now(UTC)
    log = RoundLog(files.round_log, run.training.rounds)

    def save(coordinator: Coordinator) -> None:
        progress = coordinator.progress()
        number = progress["round"]
        log.append(number, [row for row in progress["history"] if row["round"] == number])
        write_tensors(files.state, coordinator.tensors(), {"digest": digest, "progress": json.dumps(progress)})
        say(f"  {transport.bytes_down / 1e6:.1f} MB sent and {transport.bytes_up / 1e6:.1f} MB received so far")

    with locked(files.lock):
        coordinator = _opened(specification(run, agreed.shape_of(run)), ours, files, digest, device)
        if not files.manifest.exists():
            log.start(coordinator.server.round)
            try:
                coordinator.run(after_round=save)
            finally:
                log.close()
            served.write(run, coordinator, files, started, threads, device)
    return coordinator


def _opened(spec: Specification, transport: OfRun, files: RunFiles, digest: str, device: torch.device) -> Coordinator:
    """Return the coordinator of a run: after its last finished round, or before the first."""
    if files.state.exists():
        tensors, meta = read_tensors(files.state)
        if meta.get("digest") == digest:
            progress = json.loads(meta["progress"])
            say(f"going on after round {progress['round']}")
            return Coordinator.resume(spec, transport, tensors, progress, digest=digest, device=device)
        say("starting anew: the checkpoint was made by other code")
    return Coordinator.open(spec, transport, digest=digest, device=device)


def collect_rows(plan: Plan, trained: Mapping[str, Coordinator], transport: FlowerTransport) -> list[str]:
    """Ask the sites for the rows that a page needs, and write them as preparation and prediction write theirs.

    Returns the names of sites whose rows are missing.
    """
    missing: set[str] = set()
    for key, coordinator in trained.items():
        run = plan.runs[key]
        best = coordinator.best()
        messages = {
            name: Message(
                "rows",
                {"since": coordinator.since[k]},
                {"received": best.received_by(k)},
            )
            for k, name in enumerate(transport.names)
        }
        answers = dict(OfRun(transport, agreed.name_of(run)).ask(messages))
        missing |= {name for name, answer in answers.items() if isinstance(answer, Fault)}
        rows = {n: {k: as_table(t) for k, t in a.tensors.items()} for n, a in answers.items() if isinstance(a, Message)}
        if rows:
            _write_rows(plan, run, rows)
    return sorted(missing)


def _write_rows(plan: Plan, run: Run, rows: Mapping[str, Mapping[str, pd.DataFrame]]) -> None:
    paths = Paths()
    files = paths.data_files(run.data.id)

    def joined(name: str) -> pd.DataFrame:
        return pd.concat([tables[name] for tables in rows.values()], ignore_index=True)

    samples, partition = joined("samples"), joined("partition")
    samples.attrs = {"data": run.data.id}
    partition.attrs = {"partition": run.partition_id}
    write_table(files.samples, samples)
    write_table(paths.partition(run.partition_id), partition)
    counts = {
        str(s): {"images": len(r), "patients": int(r["patient"].nunique()) or None} for s, r in samples.groupby("site")
    }
    card = {
        **dataclasses.asdict(run.data.card),
        "dataset": run.data.dataset.spec(),
        "synthetic": run.data.synthetic,
        "prepare": [t.spec() for t in run.data.prepare],
        "classes": list(run.data.dataset.classes),
        "sites": counts,
        "checksums": {},
        "data": run.data.id,
        "notes": ["Images stayed at their sites: copies between sites were not looked for."],
    }
    write_json(files.card, card)
    for sweep in plan.prediction_jobs[run.id]:
        inferences = {i: plan.inferences[i] for i in plan.sweeps[sweep]}
        table = joined(f"predictions/{sweep}")
        table.attrs.update(identity.of_predictions(paths.run_files(run.id), inferences))
        out = paths.predictions(run.id, sweep)
        write_table(out, table)
        checksums.record(out)
    checksums.record(files.samples, files.card, paths.partition(run.partition_id))
