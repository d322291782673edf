"""Both sides of a study without Flower's processes: records, what leaves, keys, and what cannot run."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from clock import Clock
from flwr.app import RecordDict
from flwr.common.serde import recorddict_to_proto
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.task_identity import TaskIdentity
from in_memory import InMemory, difference
from messages import SENT, require_sent
from three_sites import SITES, STUDY, write
from toy import clients, network

from fedshift import study
from fedshift.core.errors import UserError
from fedshift.core.units import FLOAT_BYTES
from fedshift.engine.coordinator import Coordinator
from fedshift.engine.messages import Fault, Message, content_of
from fedshift.engine.specification import Specification
from fedshift.flower import keys, nodes, processes, wire
from fedshift.flower.wire import PUSHES, FlowerTransport, message_of, records_of
from fedshift.hospitals import agreed
from fedshift.hospitals.hospital import Hospital, leaves
from fedshift.io.paths import Paths
from fedshift.jobs.replay import Replay
from fedshift.jobs.run_files import SUMS
from fedshift.jobs.train import specification


def hospital(root: Path, site: str, **settings: Any) -> Hospital:
    """The side of a site, prepared; the current folder is the site's."""
    plan = study.load(Path("study.yaml"), "mini")
    new = Hospital(plan, site, Path("images.csv"), **{"rows": True, "offers": False} | settings)
    new.prepare()
    return new


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, STUDY | {"partition": STUDY["partition"] | {"internal": ["north"]}})
    return tmp_path


def test_a_message_comes_back_bit_by_bit() -> None:
    require_sent(message_of(records_of(SENT)))


@pytest.mark.parametrize("floats", [1_000, 7_598, 1_000_000])
def test_records_add_about_430_bytes_to_the_numbers_of_a_message(floats: int) -> None:
    """The figures of docs/federation.md, whatever the size of the network."""
    about: dict[str, Any] = {"digest": "0123456789", "round": 2, "since": 1, "means": 0, "images": []}
    about["run"] = "fedavg-aggregated-0123456789"

    def size(tensors: dict[str, torch.Tensor]) -> int:
        contents = {name: content_of(tensor) for name, tensor in tensors.items()}
        message = Message("train", about | {"contents": contents}, tensors)
        return len(recorddict_to_proto(records_of(message)).SerializeToString())

    received, c = {"received": torch.ones(floats)}, {"broadcast/c": torch.zeros(floats)}
    assert size(received) - FLOAT_BYTES * floats == pytest.approx(430, abs=20)
    assert size(received | c) - size(received) - FLOAT_BYTES * floats == pytest.approx(165, abs=20)


def test_a_fault_comes_back_as_a_fault() -> None:
    assert message_of(records_of(Fault("has another study"))) == Fault("has another study")


def test_records_without_a_message_are_a_fault() -> None:
    assert isinstance(message_of(RecordDict()), Fault)


class Grid:
    """Nodes in this process; each answers by its function, None stands for an answer that never comes."""

    def __init__(self, nodes: dict[int, Any]) -> None:
        self.nodes, self.sent, self.told = nodes, dict[str, Any](), list[tuple[int, Message]]()

    def get_node_ids(self) -> list[int]:
        return [*self.nodes]

    def push_messages(self, messages: list[Any]) -> list[str]:
        ids = [f"{len(self.sent) + k}" for k in range(len(messages))]
        self.sent |= dict(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, ids: list[str]) -> list[Any]:
        from types import SimpleNamespace

        out = []
        for key in ids:
            node = self.sent[key].metadata.dst_node_id
            asked = message_of(self.sent[key].content)
            assert isinstance(asked, Message)
            self.told.append((node, asked))
            answer = self.nodes[node](asked)
            if answer is not None:
                about = SimpleNamespace(reply_to_message_id=key)
                out.append(SimpleNamespace(metadata=about, content=records_of(answer), has_error=lambda: False))
        return out


@pytest.fixture
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's messages want to be made within a run."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def named(name: str) -> Any:
    return lambda asked: Message(asked.kind, {"name": name, "version": "1"}, asked.tensors)


@pytest.mark.usefixtures("in_a_run")
def test_answers_come_in_the_order_of_names_and_a_site_that_is_gone_gives_a_fault() -> None:
    said: list[str] = []
    transport = FlowerTransport(Grid({7: named("south"), 5: named("east")}), ["south", "north", "east"], said.append)
    question = Message("train", {}, {"w": torch.ones(3)})
    answers = dict(transport.ask(dict.fromkeys(transport.names, question)))
    assert [*answers] == ["east", "north", "south"]
    assert answers["north"] == Fault("is not connected")
    assert (transport.bytes_down, transport.bytes_up) == (24, 24), "three floats to each of two sites, and back"


@pytest.mark.usefixtures("in_a_run")
@pytest.mark.parametrize("lost", [1, PUSHES - 1, PUSHES])
def test_a_message_whose_pieces_are_lost_is_sent_again_and_then_is_a_missing_answer(lost: int) -> None:
    class Losing(Grid):
        pushes = 0

        def push_messages(self, messages: list[Any]) -> list[str]:
            if message_of(messages[0].content).kind != "hello":  # type: ignore[union-attr]
                self.pushes += 1
                if self.pushes <= lost:
                    raise ObjectPushError("an object", 1, "a session")
            return super().push_messages(messages)

    said: list[str] = []
    transport = FlowerTransport(Losing({5: named("east")}), ["east"], said.append)
    ((name, answer),) = transport.ask({"east": Message("train", {}, {"w": torch.ones(3)})})
    assert name == "east"
    assert answer == Fault("its message could not be sent") if lost == PUSHES else isinstance(answer, Message)
    assert sum("lost on the way" in line for line in said) == lost


@pytest.mark.usefixtures("in_a_run")
@pytest.mark.parametrize("ids", [[], [None, "1"]])
def test_a_message_that_the_superlink_does_not_take_is_a_missing_answer(ids: list[Any]) -> None:
    class Refusing(Grid):
        def push_messages(self, messages: list[Any]) -> list[str]:
            taken = super().push_messages(messages)
            if message_of(messages[0].content).kind == "hello":  # type: ignore[union-attr]
                return taken
            return [key and taken[k] for k, key in enumerate(ids)]

    transport = FlowerTransport(Refusing({5: named("east"), 7: named("south")}), ["east", "south"], [].append)
    answers = dict(transport.ask(dict.fromkeys(transport.names, Message("train", {}, {"w": torch.ones(3)}))))
    assert answers["east"] == Fault("its message could not be sent")
    assert isinstance(answers["south"], Message) == bool(ids)


def test_a_site_gives_up_a_message_of_which_no_further_piece_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    pieces = iter([False, True, False, False])
    client: Any = SimpleNamespace(PullObject=lambda _: SimpleNamespace(object_available=next(pieces)))
    now = iter([0.0, 80.0, 85.0, 170.0, 176.0])  # begins; waits; a piece comes after 85 s; 85 s and 91 s after it
    monkeypatch.setattr(wire.time, "monotonic", lambda: next(now))
    pulling = wire._Pulling(client)
    assert [pulling.PullObject(None).object_available for _ in range(3)] == [False, True, False]
    with pytest.raises(TimeoutError):
        pulling.PullObject(None)


@pytest.mark.usefixtures("in_a_run")
def test_a_second_site_of_one_name_and_an_unknown_one_are_turned_away_with_the_reason() -> None:
    grid, said = Grid({1: named("east"), 2: named("east"), 3: named("west")}), list[str]()
    transport = FlowerTransport(grid, ["east"], said.append)
    assert transport.here() == ["east"]
    reasons = {node: message.about["reason"] for node, message in grid.told if message.kind == "refused"}
    assert "another site is connected as 'east'" in reasons[2]
    assert "'west' is not a site of this study" in reasons[3]
    assert 1 not in reasons
    assert sum("turned away" in line for line in said) == 2


@pytest.mark.usefixtures("in_a_run")
def test_a_site_with_the_key_of_another_name_is_turned_away() -> None:
    grid = Grid({1: named("east"), 2: named("north")})
    transport = FlowerTransport(grid, ["east", "north"], print, lambda: {1: "north", 2: "north"})
    assert transport.here() == ["north"]
    (reason,) = [message.about["reason"] for node, message in grid.told if (node, message.kind) == (1, "refused")]
    assert reason == "its key is not that of 'east'"


class Watch(Clock):
    """A clock that goes on while somebody sleeps, and a little whenever it is read."""

    def monotonic(self) -> float:
        self.now += 0.001
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def late(site: Any, clock: Watch, seconds: float, number: int) -> Any:
    """A node whose answer in one round comes after some seconds."""
    asked_at: list[float] = []

    def answer(asked: Message) -> Message | None:
        if asked.kind == "hello":
            return Message("hello", {"name": site().client.name, "version": "1"}, {})
        if (asked.kind, asked.about.get("round")) == ("train", number):
            asked_at.append(clock.now)
            if clock.now - asked_at[0] < seconds:
                return None
        return site().answer(asked)  # type: ignore[no-any-return]

    return answer


@pytest.mark.usefixtures("in_a_run")
@pytest.mark.parametrize(("seconds", "lost"), [(0.5, []), (math.inf, [("train", 2, "c")])])
def test_a_round_waits_for_a_slow_link_until_its_deadline(
    seconds: float, lost: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Watch()
    monkeypatch.setattr(wire, "time", clock)
    monkeypatch.setattr(wire, "AT_LEAST", 2.0)
    monkeypatch.setattr(wire, "SLOWER", 0)
    about: dict[str, Any] = {"training": {"rounds": 3, "batch_size": 6, "lr": 0.05}, "seed": 3, "algorithm": "scaffold"}
    sites = InMemory(lambda: Specification.open(network(), **about), clients(), tmp_path)
    waits = {"a": 0.0, "b": 0.0, "c": seconds}
    nodes = {k: late(partial(sites.site, name), clock, waits[name], 2) for k, name in enumerate(waits)}
    coordinator = Coordinator.open(sites.opened(), FlowerTransport(Grid(nodes), "abc", print)).run()
    assert [(m["kind"], m["round"], m["site"]) for m in coordinator.missing] == lost
    assert [m["reason"] for m in coordinator.missing] == ["did not answer within 2 s"] * len(lost)
    simulated = Replay(sites.opened(), clients(), missing=coordinator.missing).run()
    assert difference(simulated, sites, coordinator) == 0


class Alone:
    """One site in this process, with a record of every message that it has sent."""

    def __init__(self, side: Hospital, run: str) -> None:
        self.side, self.run, self.names = side, run, (side.name,)
        self.sent: list[Message] = []

    def ask(self, messages: Any) -> Any:
        for name, message in messages.items():
            there = message_of(records_of(message._replace(about=message.about | {"run": self.run})))
            assert isinstance(there, Message)
            answer = self.side.answer(there)
            if isinstance(answer, Message):
                self.sent.append(answer)
            yield name, answer


def test_no_image_name_patient_or_local_tensor_leaves_a_site(root: Path) -> None:
    with contextlib.chdir(root / "north"):
        side = hospital(root, "north")
        plan = study.load(Path("study.yaml"), "mini")
        (run,) = plan.runs.values()
        alone = Alone(side, agreed.name_of(run))
        trained = Coordinator.open(specification(run, (3, 16, 16)), alone, digest=agreed.digest_of(run)).run()
        about = {"since": 2, "round": 2, "digest": agreed.digest_of(run)}
        site = next(alone.ask({"north": Message("rows", about, {"received": trained.server.shared})}))[1]
    own = set(trained.trainer.own_names)
    assert own, "the study keeps batch norm at home"
    shared = trained.server.shared.numel()
    by_kind = {m.kind: {k: t.numel() for k, t in m.tensors.items()} for m in alone.sent}
    # SCAFFOLD sends its parameters and the change of its control variate, and nothing of batch norm.
    assert by_kind["train"].keys() == {"shared", "c"} or sum(by_kind["train"].values()) <= 2 * shared
    assert all(not tensors for kind, tensors in by_kind.items() if kind not in ("train", "rows"))
    text = json.dumps([m.about for m in alone.sent])
    assert isinstance(site, Message)
    assert "secret" not in text
    assert "Doe" not in text
    # 20 images of 10 patients, half of them for training: the rows of the others leave, as numbers and one list.
    assert {*site.tensors} == {"sample", "patient", "split", "label", "p0", "p1"}
    assert site.about == {"texts": {"split": ["test", "val"]}}
    assert {len(column) for column in site.tensors.values()} == {10}
    assert len(site.tensors["patient"].unique()) == 5


def test_what_is_said_to_leave_is_what_leaves(root: Path) -> None:
    with contextlib.chdir(root / "north"):
        side = hospital(root, "north")
        plan = study.load(Path("study.yaml"), "mini")
        (run,) = plan.runs.values()
        said = "\n".join(leaves(side))
        alone = Alone(side, agreed.name_of(run))
        Coordinator.open(specification(run, (3, 16, 16)), alone, digest=agreed.digest_of(run)).run()
    train = next(m for m in alone.sent if m.kind == "train")
    for name, tensor in train.tensors.items():
        assert f"train: {name}, {tensor.numel():,} numbers, at most 22 times" in said


def test_a_site_that_keeps_its_rows_says_so(root: Path) -> None:
    with contextlib.chdir(root / "north"):
        side = hospital(root, "north", rows=False)
        plan = study.load(Path("study.yaml"), "mini")
        (run,) = plan.runs.values()
        said = "\n".join(leaves(side))
        alone = Alone(side, agreed.name_of(run))
        trained = Coordinator.open(specification(run, (3, 16, 16)), alone, digest=agreed.digest_of(run)).run()
        about = {"since": 2, "round": 2, "digest": agreed.digest_of(run)}
        answer = next(alone.ask({"north": Message("rows", about, {"received": trained.server.shared})}))[1]
    assert SUMS in said
    assert isinstance(answer, Fault)
    # 10 patients, of whom two or three are for the test
    assert "sums of fewer than 5 never leave" in answer.reason


def test_another_study_is_refused(root: Path) -> None:
    with contextlib.chdir(root / "north"):
        answer = hospital(root, "north").answer(Message("join", {"run": "fedavg-local-0"}, {}))
    assert isinstance(answer, Fault)
    assert "different studies" in answer.reason


def test_the_name_of_a_run_does_not_depend_on_the_place_of_the_table(root: Path) -> None:
    names = set()
    for folder in ("east", "south"):
        for place in (root / folder, root):
            with contextlib.chdir(place):
                plan = study.load((root / folder / "study.yaml").relative_to(place), "mini")
            names |= {agreed.name_of(run) for run in plan.runs.values()}
    assert len(names) == 1


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"partition": STUDY["partition"] | {"truncate": True}}, "truncate"),
        ({"runs": [{"algorithm": "pooled"}]}, "pooled needs the images of all sites in one place"),
        ({"training": STUDY["training"] | {"lr": [0.1, 0.2], "select": "best_validation"}}, "searches settings"),
        ({"transforms": ["scale_intensity", "fedrdn"]}, "fedrdn sends statistics"),
    ],
)
def test_what_real_sites_cannot_do_is_said_before_anything_starts(
    tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    write(tmp_path, STUDY | change)
    with contextlib.chdir(tmp_path / "server"), pytest.raises(UserError, match=word):
        agreed.require(study.load(Path("study.yaml"), "mini"))


def test_certificates_fit_and_are_written_once(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("title: a\n")
    files = keys.Keys(tmp_path / "federation")
    keys.write(files, "server.example", 8000, SITES, tmp_path / "study.yaml")
    pem, key = files.server
    verify = ["openssl", "verify", "-CAfile", str(files.ca), "-verify_hostname", "server.example", str(pem)]
    assert subprocess.run(verify, capture_output=True, text=True, check=True).stdout.strip().endswith("OK")
    assert key.stat().st_mode & 0o077 == 0
    assert (files.site("east") / "key").stat().st_mode & 0o077 == 0
    assert files.names == [*SITES]
    assert {f.name for f in files.site("east").iterdir()} == {"ca.crt", "key", "address.txt", "study.yaml"}
    assert not [*files.folder.rglob("ca.key")]
    with pytest.raises(UserError, match="has certificates already"):
        keys.write(files, "server.example", 8000, SITES, tmp_path / "study.yaml")


@pytest.mark.parametrize(
    ("address", "refused"),
    [("127.0.0.1:1", False), ("localhost:1", False), ("[::1]:1", False), ("10.0.0.1:1", True), ("server:1", True)],
)
def test_nothing_goes_over_a_network_without_tls(address: str, refused: bool) -> None:
    with pytest.raises(UserError) if refused else contextlib.nullcontext():
        processes.require_tls(address, None)
    processes.require_tls(address, Path("ca.crt"))


def test_a_path_with_a_space_is_reached_by_one_without(tmp_path: Path) -> None:
    """Flower splits the folders of its database's migrations at spaces, and would make no table."""
    programs = tmp_path / "with a space" / "bin"
    programs.mkdir(parents=True)
    (programs / "program").write_text("x")
    with processes._without_space(programs) as folder:
        assert " " not in str(folder)
        assert (folder / "program").read_text() == "x"
    assert not folder.exists()
    assert (programs / "program").exists(), "the link is removed, and not what it leads to"
    with processes._without_space(tmp_path) as same:
        assert same == tmp_path


@pytest.mark.parametrize(("failures", "rounds"), [(2, 0), (nodes.STARTS, 0), (4 * nodes.STARTS, 1)])
def test_a_superlink_that_ends_is_started_again_as_long_as_rounds_are_finished(
    failures: int, rounds: int, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends so often, and finishes so many rounds before."""
    ended = iter(range(failures))

    def served(plan: Any, *_: Any) -> list[str]:
        state = Paths().run_files(next(iter(plan.runs))).state
        for number in ended:
            if rounds:
                state.parent.mkdir(parents=True, exist_ok=True)
                state.write_text("")
                os.utime(state, ns=(number + 1, number + 1))
            raise processes.EndedError("flower-superlink", "has ended with code -9", "see its log")
        return ["north"]

    monkeypatch.setattr(nodes, "_served", served)
    with contextlib.chdir(root / "server"):
        plan = study.load(Path("study.yaml"), "mini")
        if failures == nodes.STARTS:
            with pytest.raises(UserError, match="has ended 5 times in one round; see its log"):
                nodes.serve(plan, None, "127.0.0.1:1", 1, 1, False)
        else:
            assert nodes.serve(plan, None, "127.0.0.1:1", 1, 1, False) == ["north"]
