"""A site's side of a study: its own table, prepared and checked, and its answers to the server's messages.

Only what `Hospital.answer` returns leaves the site. It is counted by name in `sent`, and `leaves` says it before.
"""

from __future__ import annotations

import json
import math
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from .. import __version__
from ..core.console import say
from ..core.errors import Interrupted, UserError
from ..core.units import SPACING
from ..engine.messages import QUESTIONS, Fault, Message, MessageForms, fault, require_known
from ..engine.site import Site
from ..engine.site_state import Requests
from ..io.arrays import write_tensors
from ..io.paths import Paths
from ..io.tables import read_table
from ..io.text import read_json, write_json
from ..jobs.accept import partition_code, prepare_code
from ..jobs.predict import predict
from ..jobs.prepare import assign, obtain, prepare
from ..jobs.record import take_device
from ..jobs.run_files import REVEALS, STAYS, SUMS, WITH_EACH_ANSWER, row_columns
from ..jobs.run_images import RunImages
from ..jobs.train import specification
from ..study.plan import Plan
from . import agreed
from .rows import SPLITS, packed_rows, packed_sums

SENTENCE = f"{STAYS} here. What leaves is listed above. {REVEALS}"
"""The last line of the list of what leaves a site."""


def local_plan(plan: Plan, name: str, table: Path) -> Plan:
    """Return the study `plan` as it is at the site `name`: with the site's own table, and without other sites.

    The splits are those of the whole study, since each site is split with its own random numbers. Raises UserErrors for
    what real sites cannot do, and UserError for a name that no site of the study has.
    """
    agreed.require(plan)
    study = plan.study
    study.partition[0].require_client(name, "--site")
    alone = study.partition[0].model_copy(update={"internal": (name,), "external": ()})
    dataset = study.dataset.model_copy(update={"table": table.absolute(), "moved_from": None})
    return Plan(plan.name, plan.path, plan.scale, study.model_copy(update={"dataset": dataset, "partition": (alone,)}))


class Hospital:
    """One site of a study, which answers the server's messages from its own images.

    `local` is the study as it is at this site, and `runs` are its runs by their names in messages. With `rows`, a row
    for each scored image may leave the site at the end, with label and probabilities under pseudonyms; without, sums
    over groups of patients leave instead. With `offers`, plug-ins may send what they derive from images before the
    first round, such as mean spectra. `sent` counts the floats that have left the site so far, by kind of message and
    name of tensor.
    """

    def __init__(self, plan: Plan, name: str, table: Path, *, rows: bool, offers: bool, threads: int = 1) -> None:
        self.name, self.rows, self.offers, self.threads = name, rows, offers, threads
        self.local = local_plan(plan, name, table)
        self.paths = Paths()
        # Both plans expand one study in one order.
        self.runs = dict(zip(map(agreed.name_of, plan.runs.values()), self.local.runs.values(), strict=True))
        self._digests = {agreed.name_of(run): agreed.digest_of(run) for run in plan.runs.values()}
        self._open: dict[str, Site] = {}
        self._clients = len(agreed.sites(plan))
        self._forms: dict[str, MessageForms] = {}
        self.sent: Counter[str] = Counter()

    def prepare(self) -> None:
        """Prepare the site's images and assign their splits, unless both exist for the same table, images and code."""
        for key, data in self.local.data.items():
            files, run = self.paths.data_files(key), next(r for r in self.local.runs.values() if r.data.id == key)
            mark = files.folder.with_name(f".{key}.site.json")
            now = {
                "contents": data.dataset.fingerprint(self.paths.data(key).with_name(f".{key}.contents.json")),
                "code": [prepare_code(data), partition_code()],
                "partition": run.partition_id,
            }
            if mark.exists() and read_json(mark) == now and files.card.exists():
                continue
            mark.unlink(missing_ok=True)
            obtain(data, self.paths.raw(data.raw), None)
            prepare(data, self.paths.raw(data.raw), files.folder, self.threads, prepare_code(data))
            assign(run, files.samples, self.paths.partition(run.partition_id), partition_code())
            write_json(mark, now)

    def answer(self, message: Message) -> Message | Fault:
        """Answer one message of the server.

        A message that the site refuses, or fails to answer, gets a Fault with the reason, which is also printed here.
        """
        kind = message.kind[:50]
        try:
            reply = self._answered(message)
        except Interrupted:
            raise
        except UserError as error:
            say(f"refused {kind}: {error}")
            return fault(str(error))
        except Exception as error:  # a message from outside may fail in any way, and must not end this site
            say(f"failed at {kind}: {type(error).__name__}: {error}")
            return fault(f"failed at {kind}: {type(error).__name__}")
        number = message.about.get("round")
        where = f" of round {number}" if number is not None else ""
        floats = {key: value.numel() for key, value in reply.tensors.items()}
        self.sent.update({f"{message.kind}: {key}": count for key, count in floats.items()})
        say(f"answered {message.kind}{where}: {sum(floats.values()):,} numbers left this site")
        return reply

    def _answered(self, message: Message) -> Message:
        about = dict(message.about)
        key = about.pop("run", None)
        message = message._replace(about=about)
        require_known(message, QUESTIONS)
        if message.kind == "hello":
            return Message("hello", {"name": self.name, "version": __version__}, {})
        if message.kind == "over":
            return Message("over", {}, {})
        if message.kind == "refused":
            raise UserError("the server turned this site away", message.about["reason"])
        if not isinstance(key, str) or key not in self.runs:
            problem = f"has no run {str(key)[:100]}: server and site have different studies"
            raise UserError(self.local.path, problem, "give the site the YAML file that the server has")
        if message.kind == "rows":
            return self._scored(key, message)
        answer = self._site(key).answer(message)
        if message.kind == "join" and self.gives:
            splits = read_table(self.paths.partition(self.runs[key].partition_id))["split"]
            told, of = ("scored", SPLITS) if self.rows else ("summed", ("test",))
            answer.about[told] = int(splits.isin(of).sum())
        return answer

    def forget(self) -> None:
        """Delete the site's state of all runs, and its counts of answered messages, so that the runs may start anew."""
        for run in self.local.runs.values():
            shutil.rmtree(self.paths.run(run.id) / "site", ignore_errors=True)

    @property
    def gives(self) -> bool:
        """Whether anything about test images leaves at the end: rows, or sums, which segmentation does not have."""
        return self.rows or self.local.study.task.has_probabilities

    def budgets(self, key: str) -> dict[str, int]:
        """Return the most messages of each kind that this site answers in the run named `key`."""
        forms, run = self.forms(key), self.runs[key]
        folder = self.paths.run(run.id) / "site"
        budgets = Requests(folder, self._digests[key], run.training, run.algorithm.canonical(), forms).budgets
        return {kind: budget for kind, budget in budgets.items() if kind != "rows" or self.gives}

    def forms(self, key: str) -> MessageForms:
        """Return the names, shapes and types of all tensors in the messages of the run named `key`.

        A site knows them before the first message.
        """
        if key not in self._forms:
            self._forms[key] = agreed.forms(self.runs[key], self._clients)
        return self._forms[key]

    def _site(self, key: str) -> Site:
        """Return the `Site` that computes this site's answers in the run named `key`.

        The last one stays open: its network is built once for all its rounds.
        """
        run = self.runs[key]
        device = take_device(self.threads)
        if key not in self._open:
            images = RunImages(run, self.paths, device)
            parts = {split: images.by_site(split, [self.name]) for split in ("train", "val")}
            run.training.require_batch(self.name, len(parts["train"].get(self.name, ())))
            samples = {split: images.samples(rows[self.name]) for split, rows in parts.items() if rows}
            folder = self.paths.run(run.id) / "site"
            folder.mkdir(parents=True, exist_ok=True)
            site = Site(
                self.name,
                specification(run, images.prepared.shape),
                samples["train"],
                samples.get("val"),
                folder,
                device=device,
                digest=self._digests[key],
                sends_offers=self.offers,
                forms=self.forms(key),
            )
            self._open = {key: site}
        return self._open[key]

    # ---- after the last round

    def _scored(self, key: str, message: Message) -> Message:
        """Predict this site's images with the received networks, and return a message with their rows, or with sums.

        The rows are under pseudonyms. Raises UserError if neither may leave the site.
        """
        if not self.gives:
            raise UserError("rows of single images", "may not leave this site", "its scores are missing on the page")
        run = self.runs[key]
        files, site = self.paths.run_files(run.id), self._site(key)
        message = site.admitted(message)
        networks = site.networks(message.tensors["received"], message.about["since"])
        write_json(files.spec, run.spec)
        about = {"run": run.id}
        write_tensors(files.model, networks.states[0], about)
        further = zip(networks.names[1:], networks.states[1:], strict=True)
        clients = {f"{name}/{k}": value for name, state in further for k, value in state.items()}
        if clients:
            weights = dict(zip(networks.names, networks.weights, strict=True))
            about |= {"blends": json.dumps({self.name: {"of": networks.of, "networks": weights}})}
        write_tensors(files.clients, clients, about)
        samples = read_table(self.paths.data_files(run.data.id).samples)
        out = self.paths.predictions(run.id, self.local.prediction_jobs[run.id])
        inferences = {key: self.local.inferences[key] for key in self.local.predictions(run.id)}
        predict(files.folder, inferences, self.paths, out, threads=self.threads)
        table, secret = read_table(out), self.paths.results / "federation" / "pseudonyms.key"
        if not self.rows:
            # an inference that has seen labels is not scored on those images: its sums less others' would be of few
            whole = [name for name, inference in inferences.items() if not inference.uses_labels]
            return packed_sums(table, samples, whole, run.data.task.columns(run.data.dataset.classes), secret)
        columns = [*self.local.study.subgroups, *(name for name in SPACING if name in samples)]
        return packed_rows(table, samples, columns, secret)


def leaves(hospital: Hospital) -> Iterator[str]:
    """Yield lines for a site's people: the tensors that leave it, and how many messages of each kind it answers."""
    for key, run in hospital.runs.items():
        forms, budgets = hospital.forms(key), hospital.budgets(key)
        yield f"  {run.method}, bn {run.bn}, seed {run.seed}: {run.training.rounds} rounds"
        for kind, budget in budgets.items():
            sets = [known for (asked, _), known in forms.answers.items() if asked == kind]
            tensors = {name: form for known in sets for one in known for name, form in one.items()}
            for name, (shape, _) in sorted(tensors.items()):
                yield f"    {kind}: {name}, {math.prod(shape):,} numbers, at most {budget:,} times"
        counts = ", ".join(f"{kind} {budget:,}" for kind, budget in budgets.items())
        yield f"    answered at most so often, then refused: {counts}"
    yield f"  with each answer: {WITH_EACH_ANSWER}"
    if hospital.rows:
        columns = ", ".join(row_columns(hospital.local.study))
        yield f"  once at the end, for each scored image under drawn numbers of image and patient: {columns}"
        yield "    (--no-rows keeps them here, and sends sums over groups of patients)"
    elif hospital.gives:
        yield f"  once at the end, in the answer to the message rows: {SUMS}"
        yield "    (rows of single images stay here; intervals are wider, and what needs probabilities is missing)"
    else:
        yield "  of test images nothing leaves: the server writes no page of this study"
    yield SENTENCE
