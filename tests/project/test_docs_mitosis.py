"""The tables of docs/mitosis.md have the numbers of its studies' kept tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from markdown_tables import tables

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reproductions"
PAGE = (ROOT / "docs" / "mitosis.md").read_text(encoding="utf-8")
CONDITIONS = {
    "benchmark-mitosis": {
        "FedAvg, aggregated BN": "FedAvg [prepare=none], aggregated BN",
        "FedAvg, local BN": "FedAvg, local BN",
        "FedAvg, stain normalised (Macenko)": "FedAvg [prepare=macenko], aggregated BN",
        "each site alone": "SingleSet, local BN",
    }
}
"""The names of conditions on the page and in the kept tables, by study."""


def of_page(title: str) -> list[list[list[str]]]:
    """Return the cells of each table of the page whose first column has this title, row by row."""
    return [rows for head, *rows in tables(PAGE) if head[0] == title]


def shown(number: float, sign: str = "") -> str:
    """Return a number as the page writes it."""
    return f"{number:{sign}.3f}".replace("-", "−")


@pytest.mark.parametrize(("number", "study"), list(enumerate(CONDITIONS)))
def test_claims_are_those_of_the_study(number: int, study: str) -> None:
    kept = pd.read_csv(FOLDER / study / "hypotheses.csv").query("without == 0")
    written = [row[1:3] for row in of_page("claim (margin)")[number]]
    for row, (_, claim) in zip(written, kept.iterrows(), strict=True):
        mean = shown(claim["mean"], "" if " loses " in claim["claim"] else "+")
        assert row == [f"{mean} ({shown(claim['low'])} to {shown(claim['high'])})", claim["answer"]]


@pytest.mark.parametrize("study", CONDITIONS)
def test_levels_are_those_of_the_study(study: str) -> None:
    kept = pd.read_csv(FOLDER / study / "overview.csv").set_index(["Condition", "Inference"])
    levels = kept[["Internal mean", "External mean"]].apply(lambda column: column.str.split(" ").str[0])
    rows = {name: cells for table in of_page("") for name, *cells in table}
    for name, condition in CONDITIONS[study].items():
        without, adapted = (levels.loc[(condition, inference)] for inference in ("Source", "TsmoBN"))
        assert rows[name] == [without.iloc[0], adapted.iloc[0], without.iloc[1], adapted.iloc[1]]
