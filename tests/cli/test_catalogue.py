"""The generated table of algorithms: it is in the documentation, and says what papers say about exchange and state."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

from fedshift.cli import main
from fedshift.core.registry import build, discover
from fedshift.nn.policies import POLICIES

PAGE = Path(__file__).parents[2] / "docs" / "algorithms.md"
ALGORITHMS = sorted(discover("algorithm"))
BOTH = [(kind, name) for kind in ("algorithm", "addon") for name in discover(kind)]
FLOATS, LOCAL, MESSAGES, CLIENT, SERVER = (
    "Down, up",
    "Down, up with local BN",
    "Messages",
    "Client keeps",
    "Server keeps",
)
NONE = "–"
EXPECTED = {
    "fedavg": ("P + S", "W", "1", NONE, NONE),
    "fixbn": ("P + S", "W", "1", NONE, NONE),  # frozen statistics travel, as in FedTAN's tables
    "fedprox": ("P + S", "W", "1", NONE, NONE),
    "perfedavg": ("P + S", "W", "1", NONE, NONE),
    "moon": ("P + S", "W", "1", "P + S", NONE),  # its previous model
    "fedbn": (NONE, "W", "1", "A + S", NONE),
    "silobn": ("P", NONE, "1", "S", NONE),
    "scaffold": ("2P + S", "2W", "1", "P", "P"),  # c_i; c
    "fednova": ("P + S, P + S + 1", "W, W + 1", "1", NONE, NONE),  # a_i on the way up
    "fedadam": ("P + S", "W", "1", NONE, "2P"),  # m and v
    "feddc": ("2P + S", "2W", "1", "2P", "2P"),  # h_i and s_i; s and the mean of h
    "fedtan": ("P + 3S", NONE, "3 L + 1", NONE, NONE),
    "fedavg_alg2": ("P + 2S", NONE, "2 L + 1", NONE, NONE),
    "fedtan2": ("P + 3S, then P + S", NONE, "3 L + 1, then 1", NONE, NONE),
    "local": (NONE, "0", "0", "P + S", NONE),  # a whole model each
    "pooled": ("0", NONE, "0", "P + S", NONE),  # a whole model
}
"""Section 1.14 of the facts; state beside the model that travels."""
AGGREGATED_ONLY = {"fedtan", "fedtan2", "fedavg_alg2", "pooled"}
ONE_POLICY = {
    "fedbn": "local",
    "local": "local",
    "silobn": "local_statistics",
    **dict.fromkeys(AGGREGATED_ONLY, "aggregated"),
}


KEEPING = [("addon", "csd")] + [("algorithm", k) for k, v in EXPECTED.items() if {*v[3:]} != {NONE} and k != "pooled"]
"""Plug-ins that keep something between rounds, at a client or at the server; pooled data leave nothing else."""


def docstring(kind: str, name: str) -> str:
    return (discover(kind)[name].__doc__ or "").lower()


@pytest.fixture(scope="module")
def page() -> str:
    """Return what the command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["algorithms"]) == 0
    return out.getvalue()


@pytest.fixture(scope="module")
def rows(page: str) -> dict[str, dict[str, str]]:
    """The rows of the table by name."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in page.splitlines() if line.startswith("|")]
    header, _, *cells = [[re.sub(r"\\(.)", r"\1", cell.strip()) for cell in line] for line in lines]
    found = [dict(zip(header, line, strict=True)) for line in cells]
    assert len({row["Name"] for row in found}) == len(found)
    return {row["Name"]: row for row in found}


def test_the_page_on_disk_is_that_of_the_plugins(page: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == page, "run: make schema"


def test_every_algorithm_has_a_row(rows: dict[str, dict[str, str]]) -> None:
    assert list(rows) == ALGORITHMS, "in the order of the alphabet"
    for name, row in rows.items():
        assert row["Paper"] == build("algorithm", name).paper
        assert len(row["What it does"]) > 20
        assert all(row.values()), "no cell is empty"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_row_says_what_is_sent_and_kept(name: str, rows: dict[str, dict[str, str]]) -> None:
    row = rows[name]
    assert tuple(row[column] for column in (FLOATS, LOCAL, MESSAGES, CLIENT, SERVER)) == EXPECTED[name]
    assert row["BN policies"] == ONE_POLICY.get(name, "all")


def test_a_row_is_measured_on_what_a_plugin_really_sends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An algorithm that sends its running statistics twice, and two numbers more on the way down."""
    fedavg: Any = discover("algorithm")["fedavg"]

    def report(self: Any, local: Any) -> dict[str, Any]:
        return {"shared": local.shared, "again": local.shared[local.trainable.stop :]}

    monkeypatch.setattr(fedavg, "report", report)
    monkeypatch.setattr(fedavg, "broadcast", lambda self, server: {"two": server.params[:2]})
    assert main(["algorithms"]) == 0
    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| fedavg |")]
    assert "| P + S + 2, P + 2S | W + 2, W |" in row


@pytest.mark.parametrize(("kind", "name"), BOTH)
def test_a_plugin_names_its_paper(kind: str, name: str) -> None:
    paper = discover(kind)[name].paper  # type: ignore[attr-defined]
    assert re.fullmatch(r"control|[A-Z]\w+ et al\. (19|20)\d\d[a-z]?", paper), paper


@pytest.mark.parametrize(("kind", "name"), BOTH)
def test_a_docstring_says_what_is_exchanged(kind: str, name: str) -> None:
    assert re.search(
        r"\b(down|exchanged?|messages|floats each way|nothing moves|no floats move)\b", docstring(kind, name)
    )


@pytest.mark.parametrize(("kind", "name"), KEEPING)
def test_a_docstring_says_what_is_kept(kind: str, name: str) -> None:
    assert re.search(r"\b(kept|keeps?|stays?)\b", docstring(kind, name))


@pytest.mark.parametrize(("kind", "name"), BOTH)
def test_every_setting_has_a_description(kind: str, name: str) -> None:
    described = {key: field.description for key, field in discover(kind)[name].model_fields.items()}
    assert [key for key, text in described.items() if not text or len(text) < 5] == []


def test_words_of_the_page_are_those_of_the_policies(page: str, rows: dict[str, dict[str, str]]) -> None:
    """Letters in the columns are explained above them; policies have the names that a study uses."""
    intro = page.partition("| Name |")[0]
    for letter in "PWASL":
        assert re.search(rf"\b{letter}\b", intro), letter
    named = {policy for row in rows.values() for policy in row["BN policies"].split(", ")}
    assert named <= {"all", *POLICIES}
