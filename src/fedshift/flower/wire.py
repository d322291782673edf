"""Messages on Flower's wire: records, the server's end, which is a transport, and the end of a site."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import httpx

from ..core.errors import UserError
from ..engine.coordinator import usable
from ..engine.messages import Fault, Message, fault, packed, unpacked

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from flwr.serverapp import Grid
    from flwr.supercore.runtime import RuntimeHttpClient

KEY = "message"
"""Name of the one record of a message, and of the one array in it."""
LOST = httpx.HTTPError
"""The exception of a call to a program that has ended, or that refuses the call."""
RETRY = 20.0
"""Seconds for which a call is repeated."""
POLL = 0.3
"""Seconds between two queries for a task or an answer."""
HELLO = 90.0
"""Seconds within which a site must answer with its name."""
FIRST = 6 * 3600.0
"""Seconds that an answer may take as long as no answer has been timed."""
AT_LEAST = 600.0
SLOWER = 10
"""An answer may take SLOWER times as long as the longest so far, and at least AT_LEAST seconds."""
HEARTBEAT = 10.0
"""Seconds between two heartbeats of a task."""
PUSHES = 5
"""How often a message is sent if its pieces do not arrive."""
STALLED = 90.0
"""Seconds without a further piece of a message, at most 5 MiB, after which a site gives it up."""
APP = b"""[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedshift-study"
version = "1.0.0"
description = "Holds no code: sites and server run their installed fedshift"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedshift"

[tool.flwr.app.components]
serverapp = "fedshift.flower:none"
clientapp = "fedshift.flower:none"
"""
"""The app that a SuperLink must be given to start a run. Nobody runs it."""


class Over(Exception):  # noqa: N818 - it is no error
    """Raised when the server has said that the study is over."""


def records_of(message: Message | Fault) -> RecordDict:
    """Return a message, or the fault that is sent in its place, as records of Flower.

    They hold one array of bytes, which Flower cuts into pieces.
    """
    from flwr.app import Array, ArrayRecord, RecordDict

    content = packed(message)
    return RecordDict({KEY: ArrayRecord({KEY: Array("uint8", (len(content),), "safetensors", content)})})


def message_of(records: RecordDict) -> Message | Fault:
    """Return the message or fault that `records_of` has packed; a Fault for records of any other form."""
    try:
        content = records.array_records[KEY][KEY].data
    except KeyError:
        return Fault("what came is not a message of fedshift")
    return unpacked(content)


class FlowerTransport:
    """The server's end of Flower's wire: a `Transport` whose sites are SuperNodes, in the order of their sorted names.

    A SuperNode says at its first message which site it is. Sites may come back, also under another id. A SuperNode is
    turned away, and gets no other message, if another one has its name, if its name is not one of `names`, or if its
    key is registered for another site. `registered` returns the names of the keys by node; without it, names are
    believed. `tell` prints a line. `bytes_down` and `bytes_up` count the bytes of tensors sent and received so far.
    """

    def __init__(
        self,
        grid: Grid,
        names: Sequence[str],
        tell: Callable[[str], None],
        registered: Callable[[], Mapping[int, str]] | None = None,
    ) -> None:
        self.names = sorted(names)
        self.bytes_down = self.bytes_up = 0
        self._grid, self._tell, self._registered = grid, tell, registered
        self._nodes: dict[str, int] = {}
        self._turned_away: dict[int, str] = {}
        self._longest = 0.0

    def here(self) -> list[str]:
        """Greet SuperNodes that are new, and return the sorted names of the sites that are connected."""
        online = set(self._grid.get_node_ids())
        self._nodes = {name: node for name, node in self._nodes.items() if node in online}
        self._turned_away = {node: why for node, why in self._turned_away.items() if node in online}
        new = sorted(online - {*self._nodes.values(), *self._turned_away})
        keys = self._registered() if new and self._registered else None
        for node, answer in self._exchange({node: Message("hello", {}, {}) for node in new}, HELLO).items():
            answer = usable(Message("hello", {}, {}), answer)
            if isinstance(answer, Fault):
                self._tell(f"a site does not answer: {answer.reason}")
                continue
            name = answer.about["name"]
            reason = ""
            if name not in self.names:
                reason = f"{name!r} is not a site of this study, which are {', '.join(self.names)}"
            elif keys is not None and keys.get(node) != name:
                reason = f"its key is not that of {name!r}"
            elif name in self._nodes:
                reason = f"another site is connected as {name!r}: stop one of the two"
            if reason:
                self._turned_away[node] = reason
                self._tell(f"a site was turned away: {reason}")
                self._exchange({node: Message("refused", {"reason": reason}, {})}, HELLO)
            else:
                self._nodes[name] = node
                self._tell(f"site {name!r} is connected")
        return sorted(self._nodes)

    def ask(self, messages: Mapping[str, Message]) -> Iterator[tuple[str, Message | Fault]]:
        """Send each named site its message, and yield name and answer of each, in the order of `names`.

        The answer is a Fault for a site that is not connected, or that does not answer in time.
        """
        self.here()
        asked = {self._nodes[name]: message for name, message in messages.items() if name in self._nodes}
        limit = FIRST if not self._longest else max(AT_LEAST, SLOWER * self._longest)
        answers = self._exchange(asked, limit)
        for name in self.names:
            if name in messages:
                answer = answers.get(self._nodes[name]) if name in self._nodes else Fault("is not connected")
                yield name, answer or Fault(f"did not answer within {limit:.0f} s")

    def _exchange(self, messages: Mapping[int, Message], limit: float) -> dict[int, Message | Fault]:
        """Send messages to nodes, and return the answers by node, without nodes that miss the `limit` in seconds."""
        if not messages:
            return {}
        began = time.monotonic()
        open_ids = self._pushed(messages)
        lost = messages.keys() - open_ids.values()
        answers: dict[int, Message | Fault] = {node: Fault("its message could not be sent") for node in lost}
        while open_ids and time.monotonic() - began < limit:
            for reply in self._grid.pull_messages(list(open_ids)):
                node = open_ids.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    answers[node] = fault(reply.error.reason or f"error {reply.error.code}")
                    continue
                answer = answers[node] = message_of(reply.content)
                self.bytes_up += answer.nbytes
                self._longest = max(self._longest, time.monotonic() - began)
            if open_ids:
                time.sleep(POLL)
        return answers

    def _pushed(self, messages: Mapping[int, Message]) -> dict[str, int]:
        """Send messages to nodes, and return for each message its id, which the answer refers to, and its node.

        Lost messages are left out. Flower gives up a message whose pieces do not arrive in time, as on a machine that
        is very busy. It is then sent again, as another message.
        """
        from flwr.app import Message as OnWire
        from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

        for _ in range(PUSHES):
            sent = [OnWire(records_of(m), dst_node_id=node, message_type="query") for node, m in messages.items()]
            try:
                ids: list[str | None] = list(self._grid.push_messages(sent))
            except ObjectPushError:
                self._tell("a piece of a message was lost on the way to the SuperLink; sending it again")
                continue
            self.bytes_down += sum(message.nbytes for message in messages.values())
            # No ids where a message is too large, and none in the place of one that the SuperLink does not take.
            return {message: node for message, node in zip(ids, messages, strict=False) if message is not None}
        return {}


# ---- what lies below Flower's public API


def _client(kind: Any, address: str, ca: bytes | None, who: str, *interceptors: Any, **options: Any) -> Any:
    """Return a client, of the class `kind`, of an interface of Flower at `address`, where it calls itself `who`."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

    with_version = [RuntimeVersionHttpInterceptor(component_name=who), *interceptors]
    where = {"server_address": address, "insecure": ca is None, "root_certificates": ca}
    return kind.from_server_address(**where, interceptors=with_version, **options)


def _runtime(address: str, ca: bytes | None, who: str, *interceptors: Any) -> RuntimeHttpClient:
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient

    retries = make_simple_http_retry_invoker()
    retries.max_time = RETRY
    return _client(RuntimeHttpClient, address, ca, who, *interceptors, retry_invoker=retries)


def _control(address: str, ca: bytes | None) -> Any:
    from flwr.supercore.control import ControlHttpClient

    return _client(ControlHttpClient, address, ca, "flwr CLI")


def _acquire(client: RuntimeHttpClient, kind: str, wait: Callable[[], None]) -> Any:
    """Wait for a task of a kind, calling `wait` between two queries, and return the task with its token."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    while True:
        got = client.AcquireTask(AcquireTaskRequest(supported_task_types=[kind]))
        if got.HasField("task") and got.token:
            return got
        wait()


def _acquirer(address: str, ca: bytes | None, secret: bytes) -> RuntimeHttpClient:
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    sign = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"})
    return _runtime(address, ca, "SuperExec", sign)


@contextmanager
def _heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Tell Flower every HEARTBEAT seconds inside the context that the task is still worked on."""
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            try:
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
            except LOST:
                continue

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def register(address: str, ca: bytes | None, name: str, public_key: bytes) -> None:
    """Register a public key, in the format of OpenSSH, under a name at a SuperLink, so that its owner may connect."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    key = public_key_to_bytes(load_ssh_public_key(public_key))
    with suppress(LOST):  # a SuperLink that starts again knows it already
        _control(address, ca).RegisterNode(RegisterNodeRequest(public_key=key, name=name))


def registered(address: str, ca: bytes | None) -> dict[int, str]:
    """Return the name under which the key of each node was registered at a SuperLink, by the node's id."""
    from flwr.proto.control_pb2 import ListNodesRequest

    return {node.node_id: node.name for node in _control(address, ca).ListNodes(ListNodesRequest()).nodes_info}


@contextmanager
def opened_run(address: str, ca: bytes | None, secret: bytes) -> Iterator[Grid]:
    """Start a run at the SuperLink at an address, and yield its Grid, which sends messages to nodes.

    `ca` is the certificate of the authority, None without TLS. `secret` is the one that the SuperLink was started with.
    """
    from flwr.cli.build import build_fab_from_files
    from flwr.common.constant import SubStatus
    from flwr.common.serde import fab_to_proto, run_from_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.fab import Fab
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    app, _ = build_fab_from_files({"pyproject.toml": APP})
    fab = Fab(hashlib.sha256(app).hexdigest(), app, {})
    number = _control(address, ca).StartRun(StartRunRequest(fab=fab_to_proto(fab))).run_id
    acquirer = _acquirer(address, ca, secret)
    while (task := _acquire(acquirer, "flwr-serverapp", lambda: time.sleep(POLL))).task.run_id != number:
        pass  # a run that somebody else has submitted is never done
    grid = HttpGrid(address, ca is None, ca, token=task.token)
    grid._retry_invoker.max_time = RETRY
    client = grid._runtime_client
    status, details = SubStatus.FAILED, "stopped"
    with closing(grid), _heartbeats(client):
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        try:
            yield grid
            status, details = SubStatus.COMPLETED, ""
        finally:
            with suppress(LOST):
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=details))


class _Pulling:
    """A client of Flower's runtime API that raises TimeoutError if no further piece of a message arrives.

    If the SuperLink is killed while it sends a message, the rest never arrives, and Flower would wait for two hours.
    """

    def __init__(self, client: RuntimeHttpClient) -> None:
        self._client, self._came = client, time.monotonic()

    def __getattr__(self, call: str) -> Any:
        return getattr(self._client, call)

    def PullObject(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        reply = self._client.PullObject(request)
        now = time.monotonic()
        if reply.object_available:
            self._came = now
        elif now - self._came > STALLED:
            raise TimeoutError
        return reply


def answer_tasks(
    address: str, secret: bytes, answer: Callable[[Message], Message | Fault], wait: Callable[[], None]
) -> None:
    """Answer the messages that a SuperNode receives, one after another, by the function `answer`.

    `address` is that of the SuperNode's runtime API, and `secret` the one that it was started with. `wait` is called
    while there is no message; it may end this function by raising an exception. Raises Over when the server says that
    the study is over, and UserError when it turns this site away.
    """
    from flwr.app import Message as OnWire
    from flwr.common.constant import SubStatus
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    acquirer = _acquirer(address, None, secret)
    while True:
        task = _acquire(acquirer, "flwr-clientapp", wait)
        client = _runtime(address, None, "flwr-clientapp", RuntimeTokenHttpInterceptor(task.token))
        with closing(client), _heartbeats(client):
            try:
                received, context, _, _ = pull_task_input(_Pulling(client))
            except (TimeoutError, ObjectPullError):
                push_task_output(client, None, SubStatus.FAILED, "the message did not come")
                continue
            asked = message_of(received.content)
            replied = answer(asked) if isinstance(asked, Message) else asked
            push_message(client, OnWire(records_of(replied), reply_to=received), context)
            push_task_output(client, context, SubStatus.COMPLETED, "")
        if isinstance(asked, Message) and asked.kind == "over":
            raise Over
        if isinstance(asked, Message) and asked.kind == "refused":
            reason = replied.reason if isinstance(replied, Fault) else "the server turned this site away"
            raise UserError("fedshift site", reason, "mend that, then start the site again")
