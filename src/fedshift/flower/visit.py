"""A site at work: its SuperNode, what it will send, and the loop in which it answers the server."""

from __future__ import annotations

import dataclasses
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..core.console import say
from ..core.errors import UserError
from ..engine.coordinator import Coordinator
from ..engine.site import Site
from ..engine.transport import Fault, Message
from ..transforms import shape_after
from . import agreed, processes
from .hospital import Hospital, specification
from .wire import LOST, POLL, Over, answer_tasks

if TYPE_CHECKING:
    from ..study.run import Run


def credentials(folder: Path | None, server: str | None) -> tuple[Path | None, Path | None, str]:
    """Return the authority's certificate, the site's key and the server's address, from the folder of the site.

    Raises UserError where one of them is not there.
    """
    if folder is None:
        if server is None:
            raise UserError("fedshift site", "does not know the server", "name the folder of this site: --keys DIR")
        return None, None, server
    ca, key, address = folder / "ca.crt", folder / "key", folder / "address.txt"
    for file in (ca, key, address):
        if not file.exists():
            raise UserError(file, "no such file", "fedshift serve STUDY --init writes it for each site")
    return ca, key, server or address.read_text(encoding="utf-8").strip()


def take_part(hospital: Hospital, address: str, ca: Path | None, key: Path | None) -> None:
    """Connect to the server at an address (host:port), and answer its messages until it says that the study is over.

    A site that was killed still counts as connected for a minute: it tries again until the server has noticed.
    """
    home = hospital.paths.results / "federation" / hospital.name
    home.mkdir(parents=True, exist_ok=True)
    secret = processes.secret_file(home)
    port = processes.free_port()
    options = ["--superlink", address, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    options += ["--superexec-auth-secret-file", str(secret.absolute())]
    options += ["--root-certificates", str(ca.absolute())] if ca else ["--insecure"]
    options += ["--auth-supernode-private-key", str(key.absolute())] if key else []
    for attempt in range(processes.TRIES):
        try:
            with processes.running("flower-supernode", options, home) as node:

                def wait(node: processes.Process = node) -> None:
                    node.require_alive()
                    time.sleep(POLL)

                node.wait_for_port(f"127.0.0.1:{port}")
                say(f"{hospital.name!r} waits for messages of {address}")
                try:
                    answer_tasks(f"127.0.0.1:{port}", secret.read_bytes(), hospital.answer, wait)
                except LOST:
                    node.child.wait(processes.GRACE)
                    node.require_alive()
        except processes.NotLetInError:
            if attempt == processes.TRIES - 1:
                raise
            say(f"the server does not let this site in (yet); trying again in {processes.AGAIN:.0f} s")
            time.sleep(processes.AGAIN)
        except Over:
            say("the study is over; this site has done its part")
            return


def leaves(hospital: Hospital) -> Iterator[str]:
    """Yield lines that say what leaves a site: numbers by name, measured in one round on blank images."""
    for run in hospital.local.runs.values():
        rounds = run.training.rounds
        yield f"  {run.method}, bn {run.bn}, seed {run.seed}: {rounds} rounds"
        for (kind, name), count in sorted(_rehearsed(run, hospital.name).items()):
            yield f"    {kind}: {name}, {count:,} numbers {'once' if kind in ('join', 'begin') else 'a round'}"
    yield "  with each answer: numbers of images and of classes, losses, accuracies, seconds, versions of software"
    if hospital.rows:
        columns = ["label", "probabilities", *hospital.local.study.subgroups]
        if hospital.local.study.task.has_masks:
            columns.append("millimetres of a pixel where they are known")
        yield f"  at the end, for each image under pseudonyms of image and patient: {', '.join(columns)}"
        yield "    (--no-rows keeps them here; the page then lacks this site)"
    yield "Images, names of files and of patients, and all tensors that the study keeps at home stay here."


def _rehearsed(run: Run, name: str) -> Counter[tuple[str, str]]:
    """Return how many numbers leave in one round, by kind of message and name of tensor."""
    sent: Counter[tuple[str, str]] = Counter()
    number = run.training.batch_size
    data = run.data.dataset
    training = run.training.model_copy(update={"rounds": 1, "epochs_at": {}})
    shape = agreed.shape_of(run)
    spec = specification(run, shape)
    spec = dataclasses.replace(spec, training=training)
    x = torch.zeros(2 * number, *shape_after(run.transforms, shape))
    y = torch.arange(len(x)) % len(data.classes)
    with tempfile.TemporaryDirectory() as folder:
        site = Site.open(name, spec, (x, y), (x, y), Path(folder), sends_offers=True)

        class Here:
            names = (name,)

            def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
                for message in messages.values():
                    answer = site.answer(message)
                    sent.update({(message.kind, key): t.numel() for key, t in answer.tensors.items()})
                    yield name, answer

        Coordinator.open(spec, Here()).run()
    return sent
