"""The folder of published images that some tests read.

`FEDSHIFT_TEST_DATA` names it; the default is `../shared/data`, beside the clone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("FEDSHIFT_TEST_DATA") or Path(__file__).parents[3] / "shared" / "data")


def needs(*names: str) -> pytest.MarkDecorator:
    """Return the mark that skips a test where the folder lacks one of these files or folders."""
    lacking = [name for name in names if not (FOLDER / name).exists()]
    return pytest.mark.skipif(bool(lacking), reason=f"FEDSHIFT_TEST_DATA has no {', '.join(lacking)}")
