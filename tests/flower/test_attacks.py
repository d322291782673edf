"""Attacks over real processes: a site that answers wrongly in each round, and a server that asks what it must not.

`tests/sites/attacks` tries all of these messages in one process; here some of them pass Flower, the gate and TLS.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from three_sites import SITES

pytestmark = pytest.mark.slow

ATTACKER, ROUNDS = "north", 12
SUPPORT = str(Path(__file__).parents[1] / "support")
WRONG_SITE = f"""
import runpy, sys
sys.path.insert(0, {SUPPORT!r})
from wrong_messages import wrong_about, wrong_tensors
from fedshift.engine.messages import Message
from fedshift.hospitals.hospital import Hospital

honest, sent = Hospital.answer, []
SHOWN = ("accuracy", "seconds", "counters", "loss: half", "loss: large")

def answer(self, message):
    told = honest(self, message)
    if message.kind == "train" and isinstance(told, Message):
        wrong = [w for name, w in (*wrong_about(told), *wrong_tensors(told)) if not name.startswith(SHOWN)]
        told = wrong[len(sent) * len(wrong) // {ROUNDS}]
        sent.append(1)
    return told

Hospital.answer = answer
runpy.run_module("fedshift", run_name="__main__", alter_sys=True)
"""
"""A site whose answer to each round of training is wrong in another way; what is only shown may hold anything."""
WRONG_SERVER = f"""
import json, runpy, sys
from pathlib import Path
sys.path.insert(0, {SUPPORT!r})
from wrong_messages import wrong_about, wrong_tensors
from fedshift.engine.messages import Fault
from fedshift.flower.wire import FlowerTransport

honest = FlowerTransport.ask
HARMLESS = ("share: half", "channels_last: true", "images: a list")

def ask(self, messages):
    asked = next(iter(messages.values()))
    if asked.kind == "train" and asked.about["round"] == 2:
        wrong = [(n, w) for n, w in (*wrong_about(asked), *wrong_tensors(asked)) if n not in HARMLESS]
        outcomes = []
        for what, message in wrong[:: len(wrong) // 20]:
            for site, told in honest(self, dict.fromkeys((name for name in messages if name != "east"), message)):
                outcomes.append([what, site, told.reason if isinstance(told, Fault) else None])
        Path("outcomes.json").write_text(json.dumps(outcomes))
    yield from honest(self, messages)

FlowerTransport.ask = ask
runpy.run_module("fedshift", run_name="__main__", alter_sys=True)
"""
"""A server that asks two of the sites twenty wrong things before the second round.

Some make a site forget which tensors it was sent, so that the honest message behind them is refused, too. A server that
does this to all sites at once ends its own study, with a line.
"""


def test_a_site_that_answers_wrongly_in_each_round_costs_itself_alone(towns: Any) -> None:
    town = towns(rounds=ROUNDS)
    server = town.serve()
    sites = {name: town.site(name) for name in SITES if name != ATTACKER}
    town.site(ATTACKER, program=("-c", WRONG_SITE))
    assert server.wait(2 * PATIENCE) == 0, town.said("server")
    assert [site.wait(PATIENCE) for site in sites.values()] == [0, 0]
    missing = town.trained()[1]["missing"]
    assert {entry["site"] for entry in missing} == {ATTACKER}
    assert [entry["round"] for entry in missing if entry["kind"] == "train"] == [*range(1, ROUNDS + 1)]
    assert not any("Traceback" in town.said(folder) for folder in ("server", *sites))
    town.require_replay()


def test_a_server_that_asks_wrong_things_is_refused_by_each_site_and_learns_nothing_else(towns: Any) -> None:
    town = towns(rounds=3)
    server = town.serve(program=("-c", WRONG_SERVER))
    sites = [town.site(name) for name in SITES]
    assert server.wait(2 * PATIENCE) == 0, town.said("server")
    assert [site.wait(PATIENCE) for site in sites] == [0, 0, 0]
    outcomes = json.loads((town.root / "server" / "outcomes.json").read_text(encoding="utf-8"))
    assert len(outcomes) >= 20 * 2
    assert [outcome for outcome in outcomes if not outcome[2] or outcome[2].startswith("failed at")] == []
    assert not any("Traceback" in town.said(folder) for folder in ("server", *SITES))
    missing = {(entry["site"], entry["round"]) for entry in town.trained()[1]["missing"]}
    assert missing <= {("north", 2), ("south", 2)}
    town.require_replay()
