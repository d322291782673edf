"""Reading of the tables that a study writes, and of its list of what is missing."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import UserError
from ..io.guards import require_object
from ..io.paths import Paths
from ..io.result_tables import TEXT
from ..io.tables import restored
from ..io.text import read_json, readable
from ..study.plan import Plan
from .predictions import TYPES


def read_table(path: Path) -> pd.DataFrame:
    """Read scores.csv, or a table that is made of it. A site called `01` or `NA` keeps its name."""
    if not path.exists():
        raise UserError(path, "no such file", "score the study first")
    with readable(path, "table"):
        content = path.read_bytes()
    return parse_table(content, path)


def parse_table(content: bytes, path: Path) -> pd.DataFrame:
    """Return the table in the content of the file `path`; see `read_table`.

    Raises UserError where it is not a table, or a column of numbers holds anything else.
    """
    with readable(path, "table"):
        columns = pd.read_csv(io.BytesIO(content), nrows=0).columns
        text = {c: "str" for c in TEXT if c in columns}
        empty: dict[Any, Any] = {c: [] if c in text else [""] for c in columns}
        table = pd.read_csv(io.BytesIO(content), dtype=text, keep_default_na=False, na_values=empty)
        table = table.assign(**{k: table[k].astype(v) for k, v in TYPES.items() if k in columns})
    others = [c for c, kind in table.dtypes.items() if kind.kind not in "iufb" and c not in text]
    if words := [c for c in others if table[c].notna().any()]:
        raise UserError(path, f"the column {words[0]!r} holds words in the place of numbers", "make it again")
    return restored(table)


def missing(plan: Plan, paths: Paths) -> list[dict[str, str]]:
    """Return the predictions that could not be scored: run, inference and why."""
    path = paths.study_files(plan.name).missing
    if not path.exists():
        return []
    content = read_json(path)
    text = dict.fromkeys(("run", "inference", "why"), "text")
    remedy = "score the study again"
    if not isinstance(content, list):
        raise UserError(path, "does not hold a list", remedy)
    return [require_object(path, item, text, remedy=remedy) for item in content]
