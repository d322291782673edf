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
    "benchmark-mitosis-pretrained": {
        "from ImageNet, all layers": "FedAvg, aggregated BN",
        "from ImageNet, stain normalised (Macenko)": "FedAvg [prepare=macenko], aggregated BN",
        "from ImageNet, local BN": "FedAvg, local BN",
        "from ImageNet, FixBN": "FixBN, aggregated BN",
        "from ImageNet, last layer alone": 'FedAvg [lr=0.003, train="head"], aggregated BN',
        "from ImageNet, batch norm and last layer": 'FedAvg [lr=0.01, train=["norm", "head"]], aggregated BN',
        "small network, 96 pixels": 'FedAvg [model.name="densenet_small", model.norm="batch", lr=0.1], aggregated BN',
    },
    "benchmark-mitosis": {
        "small network": "FedAvg [prepare=none], aggregated BN",
        "small network, stain normalised (Macenko)": "FedAvg [prepare=macenko], aggregated BN",
        "small network, local BN": "FedAvg, local BN",
        "small network, each site alone": "SingleSet, local BN",
    },
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


def test_the_published_values_are_beside_those_of_the_studies_at_the_same_site() -> None:
    published = pd.read_csv(ROOT / "config" / "studies" / "mitosis-tcga.csv").set_index("method")["value"]
    (rows,) = of_page("their network")
    assert [row[:2] for row in rows] == [[name, shown(value)] for name, value in published.items()]
    of_study = {name: (study, condition) for study, names in CONDITIONS.items() for name, condition in names.items()}
    for *_, name, value in rows:
        name, adapted, _ = name.partition(", with TsmoBN")
        study, condition = of_study[name]
        kept = pd.read_csv(FOLDER / study / "sites.csv").query("Site == 'tcga'").set_index("Condition")
        assert kept.loc[condition, "TsmoBN" if adapted else "Source"].startswith(f"{value} ± ")


def test_cells_of_other_organs_have_the_numbers_of_their_table() -> None:
    kept = pd.read_csv(FOLDER / "benchmark-mitosis-pretrained" / "mitosis_md.csv").set_index("inference")
    source, adapted, gain = (kept.loc[name] for name in ("source", "tsmobn", "difference"))
    words = " ".join(PAGE.split())
    assert f"[{source['cells']:,.0f} cells](mitosis_md.py) in {source['blocks']:.0f} blocks" in words
    assert (
        f"an AUC of {shown(source['auc'])}, with TsmoBN {shown(adapted['auc'])}, a gain of [{shown(gain['auc'])}]("
        in words
    )
    assert f"mitosis_md.csv) ({shown(gain['low'])} to {shown(gain['high'])}) that was not registered" in words
