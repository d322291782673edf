"""Reading of Excel tables, which needs a package beyond those of fedshift (`fedshift[excel]`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .shipped import extra
from .text import readable

if TYPE_CHECKING:
    import pandas as pd


def excel_cells(path: Path) -> pd.DataFrame:
    """Return the cells of the first sheet of an Excel file without blank rows; the index counts rows from 0.

    Raises UserError for a damaged or empty file, and where the package that reads it is missing.
    """
    import pandas as pd

    with extra("excel", f"reading {path}"):
        import openpyxl  # noqa: F401 - pandas loads it
    with readable(path, "Excel"):
        cells = pd.read_excel(path, header=None, dtype=object, keep_default_na=False, na_values=[""], engine="openpyxl")
        filled = cells.dropna(how="all")
        if filled.empty:
            raise ValueError("its first sheet is empty")
    return filled
