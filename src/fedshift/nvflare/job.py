"""Both sides of a study in a job of NVFlare: their settings, a controller at the server, an executor at each site."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from .. import study
from ..core.errors import Interrupted, UserError
from ..core.plugin import Frozen
from ..core.registry import validated
from ..engine.messages import Fault, Message, fault, packed, unpacked
from ..hospitals import agreed, study_server
from ..hospitals.hospital import Hospital, leaves
from ..io.text import read_json
from ..study.calls import scale_of
from ..study.plan import Plan

TASK, KEY = "fedshift", "message"
"""Name of all tasks, and of the one entry of their data."""
POLL, WAIT, LIMIT = 0.1, 600.0, 6 * 3600
"""Seconds between two looks for answers, for which sites may take to join, and for which one may take to answer: it may
train for hours."""


class Settings(Frozen):
    """The file `local/fedshift.json` of a startup kit, which the owner of the server or site writes.

    `folder` is the folder in which the study works, with its results. The study's YAML file `study` lies in it, and so
    does `data`, a site's table of images. `rows` and `offers` say what may leave the site: rows of single images under
    pseudonyms, and what plug-ins derive from images. With `restart`, one job may start anew runs that were begun at
    this site.
    """

    folder: Path
    study: str
    data: str = "images.csv"
    rows: bool = False
    offers: bool = False
    restart: bool = False
    threads: int = 1

    @classmethod
    def read(cls, context: FLContext) -> Settings:
        """Return the settings of this server or site. Raises UserErrors for missing or wrong entries of the file."""
        file = Path(context.get_prop(FLContextKey.WORKSPACE_OBJECT).get_site_config_dir(), "fedshift.json")
        settings: Settings = validated(cls, read_json(file), f"{file}")
        return settings

    def plan(self) -> Plan:
        """Return the study, expanded to its runs. The current folder must be `folder`."""
        return study.load(Path(self.study), scale_of())


def shareable_of(message: Message | Fault) -> Shareable:
    """Return a message, or the fault that is sent in its place, as a Shareable, which NVFlare carries."""
    return Shareable({KEY: packed(message)})


def message_of(shareable: Shareable) -> Message | Fault:
    """Return the message or fault that a Shareable holds; a Fault if NVFlare reports an error in its place."""
    code = shareable.get_return_code()
    if code != ReturnCode.OK or KEY not in shareable:
        return fault(f"NVFlare says {code}; see the log of the site")
    content = shareable[KEY]
    return unpacked(content) if isinstance(content, bytes) else Fault("what came is not a message of fedshift")


class StudyController(Controller):
    """The server of a study as a controller of NVFlare: sends messages to sites as tasks, and writes trained runs."""

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` does all the work."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: `control_flow` has done all the work."""

    def process_result_of_unknown_task(self, *_: object) -> None:
        """Ignore the answer of a site to a task that has ended: it came too late to count."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Train all runs of the study with its sites. An error ends the job with a line in its log."""
        try:
            settings = Settings.read(fl_ctx)
            with contextlib.chdir(settings.folder):
                plan = settings.plan()
                agreed.require(plan)
                transport = NvflareTransport(self, fl_ctx, abort_signal, agreed.sites(plan))
                missing = study_server.serve(plan, transport, WAIT, settings.threads)
        except UserError as error:
            self.system_panic(str(error), fl_ctx)
        except Interrupted:
            self.log_info(fl_ctx, "aborted; another job goes on after the last finished round")
        else:
            self.log_info(fl_ctx, f"trained; without rows of {', '.join(missing) or 'no site'}")


class NvflareTransport:
    """The server's end: a `Connection` whose sites are the clients of a job, by their names in the startup kits."""

    def __init__(self, controller: Controller, context: FLContext, stop: Signal, names: Sequence[str]) -> None:
        self.names = sorted(names)
        self.bytes_down = self.bytes_up = 0
        self._controller, self._context, self._stop = controller, context, stop

    def here(self) -> list[str]:
        """Return the names of the sites that are in the job."""
        clients = {client.name for client in self._context.get_engine().get_clients()}
        return [name for name in self.names if name in clients]

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send each named site its message, and yield name and answer of each, in the order of `names`.

        The answer is a Fault for a site that is not in the job, or that does not answer. Raises Interrupted if the job
        is aborted.
        """
        answers: dict[str, Message | Fault] = {}

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            answer = answers[client_task.client.name] = message_of(client_task.result)
            self.bytes_up += answer.nbytes

        tasks = {}
        for name in messages.keys() & {*self.here()}:
            self.bytes_down += messages[name].nbytes
            tasks[name] = Task(TASK, shareable_of(messages[name]), timeout=LIMIT, result_received_cb=received)
            self._controller.broadcast(tasks[name], self._context, targets=[name], min_responses=1)
        while any(task.completion_status is None for task in tasks.values()):
            if self._stop.triggered:
                raise Interrupted
            time.sleep(POLL)
        for name in self.names:
            if name in messages:
                reason = tasks[name].completion_status.value if name in tasks else "is not connected"
                yield name, answers.get(name, Fault(reason))


class StudyExecutor(Executor):
    """A site of a study as an executor of NVFlare: answers the server's messages with its own table of images."""

    _hospital: Hospital | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the site's answer to a message of the server, or a Fault with the reason if there is none."""
        try:
            settings, message = Settings.read(fl_ctx), message_of(shareable)
            with contextlib.chdir(settings.folder):
                if isinstance(message, Message):
                    message = self._opened(settings, fl_ctx).answer(message)
                return shareable_of(message)
        except UserError as error:
            self.log_error(fl_ctx, str(error))
            return shareable_of(Fault(str(error)))

    def _opened(self, settings: Settings, context: FLContext) -> Hospital:
        if self._hospital is None:
            options = settings.model_dump(include={"rows", "offers", "threads"})
            hospital = Hospital(settings.plan(), context.get_identity_name(), Path(settings.data), **options)
            self.log_info(context, "\n".join(["what leaves this site:", *leaves(hospital)]))
            hospital.prepare()
            if settings.restart:
                hospital.forget()
            self._hospital = hospital
        return self._hospital
