"""FedTAN's table 3, counted without training: `make reproduce STUDY=fedtan-table3`.

The study itself trains ResNet-20 for 10,000 rounds. What a round sends depends on neither data nor weights, so this
counts it alone, and writes docs/reproductions/fedtan-table3/comparison.csv as the study would.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from fedshift.analysis import communication, published_values, study_results
from fedshift.analysis.published_values import Values
from fedshift.analysis.published_words import Words
from fedshift.io.paths import SCORES, Paths
from fedshift.io.tables import write_table
from fedshift.study import plan as plans

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "config" / "studies" / "fedtan-table3.yaml"
OUT = ROOT / "docs" / "reproductions" / STUDY.stem / "comparison.csv"


def counted(root: Path) -> pd.DataFrame:
    """Return the printed traffic beside ours; the ledger and an empty table of scores are written below `root`."""
    plan, paths = plans.load(STUDY, "paper"), Paths(root)
    communication.write(plan, paths)
    write_table(paths.study_files(plan.name).scores, pd.DataFrame(columns=[*SCORES.columns]))
    return published_values.table(Words(plan), Values(study_results.load(plan, paths)))


def main() -> None:
    """Write the table."""
    with TemporaryDirectory() as folder:
        counted(Path(folder)).to_csv(OUT, index=False)
    print(f"wrote {OUT.name}")
