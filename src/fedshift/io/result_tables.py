"""The tables of results of a study, in one list: what the workflow writes, and what readers and downloads follow.

A further table is a module with the function `table` and its COLUMNS, and one entry of the list.
"""

from __future__ import annotations

from dataclasses import dataclass

IDS = ("condition_id", "inference_id")
LEVELS = ("condition_id", "role", "site", "inference_id", "metric")
INFERENCE = ("inference", "momentum", "batch_size", "order")


@dataclass(frozen=True)
class ResultTable:
    """A table of numbers in the folder of a study.

    Attributes
    ----------
    name : the name of the CSV file, without its ending
    worker : the module of the package whose function `table` makes the rows; it asks for what it needs by the names of
        its parameters (see `page.summary`)
    keys : the columns in which no two rows agree
    title : the title among the downloads of the page; empty for a table that is not offered there
    columns : the columns that readers need; by default, these are COLUMNS of the worker
    text : columns of text that no other table has
    """

    name: str
    worker: str
    keys: tuple[str, ...] = ()
    title: str = ""
    columns: tuple[str, ...] = ()
    text: tuple[str, ...] = ()


SCORES = ResultTable(
    "scores",
    "analysis.score",
    ("run", "site", "role", *INFERENCE, "metric"),
    "All scores",
    columns=("run", "site", "role", *INFERENCE, "seed", "metric", "value", "n"),
)
"""Every score, written by the rule `score`. All other tables are made of it and of predictions."""
DIVERGENCE = ResultTable(
    "divergence",
    "analysis.divergence",
    (*IDS, "role", "site", "run"),
    "Divergence of features",
    columns=(*IDS, "role", "site", "run", "seed", "n", "n_internal", "features", "a_distance", "mmd"),
)
"""The divergence of features between sites, written by the rule `divergence` for studies with the figure."""
SUMMARISED = (
    ResultTable("summary", "page.summary", LEVELS, "Summary"),
    ResultTable("effects", "analysis.effects", (*LEVELS, "quantity"), "Effects"),
    ResultTable("controls", "analysis.controls", ("quantity", "partition", *IDS, "role", "site", "metric"), "Controls"),
    ResultTable(
        "calibration", "analysis.calibration", (*IDS, "role", "site", "quantity", "bin"), "Calibration", text=("of",)
    ),
    ResultTable("collapse", "analysis.collapse", (*IDS, "role", "site", "run"), "Test-time adaptation"),
    ResultTable(
        "operating_points",
        "analysis.operating_point",
        (*IDS, "role", "site", "run"),
        "Operating points",
        text=("rule", "positive"),
    ),
    ResultTable(
        "conformal", "analysis.conformal", (*IDS, "role", "site", "class"), "Prediction sets", text=("class", "verdict")
    ),
    ResultTable(
        "comparisons",
        "analysis.comparisons",
        ("condition_id", "inference_id", "than_condition_id", "than_inference_id", "role", "site", "metric"),
        "Comparisons of conditions",
        text=("than_condition_id", "than_inference_id", "than_condition", "than_inference"),
    ),
    ResultTable(
        "comparison",
        "analysis.published_values",
        columns=("table", "published", "mean", "difference", "combined", "verdict", "reason"),
        text=("table", "method", "variant", "verdict"),
    ),
    ResultTable(
        "trends",
        "analysis.trends",
        title="Trends",
        columns=("claim", "sentence", "held", "mean_difference", "se", "sites_for", "sites", "doubt", "reason"),
        text=("better_ids", "than_ids", "claim", "sentence", "held", "doubt"),
    ),
    ResultTable(
        "hypotheses",
        "analysis.hypotheses",
        ("number", "without"),
        "Registered hypotheses",
        text=("at", "than_condition_id", "than_inference_id", "than_at", "claim", "direction", "answer"),
    ),
    ResultTable("unseen", "analysis.unseen", (*IDS, "trained_on", "metric")),
    ResultTable(
        "subgroups",
        "analysis.subgroups",
        (*IDS, "column", "group", "role", "metric"),
        "Subgroups",
        text=("column", "group"),
    ),
    ResultTable("net_benefit", "analysis.net_benefit", (*IDS, "role", "site", "threshold")),
)
"""The tables that are made of scores and predictions, by the rule `report`."""
RESULT_TABLES = {table.name: table for table in (SCORES, DIVERGENCE, *SUMMARISED)}
TEXT = (
    *("study", "run", *IDS, "algorithm", "bn", "addon", "held_out", "site", "role", "inference", "metric"),
    *("quantity", "condition", "reason", "partition"),
    *(column for table in SUMMARISED for column in table.text),
)
"""The columns of text. All others hold numbers."""
