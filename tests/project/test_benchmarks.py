"""Results of benchmarks that are kept can be compared between machines."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "benchmarks" / "results").glob("*.json"))


def test_the_newest_results_say_what_was_measured_and_with_what() -> None:
    newest = json.loads(FILES[-1].read_text(encoding="utf-8"))
    assert newest.keys() == {"date", "versions", "cores", "threads", "device", "measurements"}
    assert newest["date"] == FILES[-1].stem
    assert newest["versions"].keys() == {"python", "fedshift", "torch", "numpy"}
    assert newest["cores"] >= 1
    assert newest["threads"] >= 1
    assert newest["measurements"]
    for row in newest["measurements"]:
        assert {"part", "what", "value", "unit", "pairs"} <= row.keys() <= {*row.keys(), "goal", "low", "high"}
        assert row["unit"] in ("ratio", "times", "MiB"), "seconds cannot be compared between machines"
        assert row["value"] > 0 or row["unit"] == "MiB"
        assert row.get("low", row["value"]) <= row["value"] <= row.get("high", row["value"])


def test_results_are_named_by_their_day() -> None:
    assert FILES
    for path in FILES:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", path.stem), path.name
