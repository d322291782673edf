"""The example of Python that needs a finished study."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_what_a_study_has_trained_is_opened_as_the_docs_say(here: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (code,) = [block for block in blocks if "load_study" in block]
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["x"].shape == (40, 8, 8, 3)
    assert set(names["rounds"]["split"]) == {"train", "val"}
    assert len(names["tables"].scores) == 2 * 2 * 3 * 2, "two seeds, inferences and metrics at three sites"
