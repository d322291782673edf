"""Write the table of commands and that of the papers' claims into docs/reproductions.md: `make claims`.

`docs/reproductions/claims.yaml` lists the claims in the papers' words, where they are printed, and which rows of which
files test them. Whether a claim holds is read from these files, which studies wrote (`trends.csv`, `summary.csv`,
`comparison.csv`). A claim that nothing tests is untested, and its entry says why. The commands are those of
`docs/reproductions/studies.yaml`.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import yaml

from fedshift.analysis.trends import quantile

FOLDER = Path(__file__).parent / "reproductions"
PAGE = FOLDER.with_suffix(".md")
BEGIN = "<!-- The table begins: make claims writes it -->"
END = "<!-- The table ends -->"
COMMANDS_BEGIN = "<!-- The commands begin: make claims writes them -->"
COMMANDS_END = "<!-- The commands end -->"
HELD, FAILED, CANNOT_TELL, UNTESTED = VERDICTS = ("held", "failed", "cannot tell", "untested")
DECIDED = {"yes": HELD, "no": FAILED}
HEAD = ("claim", "printed in", "studies, margins", "ours", "verdict")
KINDS = ("trend", "levels", "deviations", "seeds", "printed")
"""Kinds of evidence; each names its file."""
ENTRIES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "studies.yaml").read_text(encoding="utf-8"))
"""The reproductions by study."""
STUDIES = {file: name for name, entry in ENTRIES.items() for file in entry["writes"]}
"""The study that writes each file."""
NOISE = ("noise", "chance", "one seed")
"""Words in the doubt of a trend with which it decides nothing."""
MARKS = {"within the noise of seeds": "†", "far from trained": "‡"}
"""Signs that stand in the table for doubts; the page says what they mean."""
ALPHA = 0.05


@dataclass(frozen=True)
class Finding:
    """What one piece of evidence says, and its numbers in words."""

    verdict: str
    numbers: str


def table() -> str:
    """Return the table of claims as Markdown, with a sentence that counts the verdicts."""
    claims = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    rows = [row(claim) for claim in claims]
    counts = Counter(cells[-1].partition(":")[0].strip("*") for cells in rows)
    counted = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    lines = [f"Of {len(rows)} claims: {counted}.", "", line(HEAD), line(["---"] * len(HEAD)), *map(line, rows)]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """Return the table of reproductions as Markdown: the command of each, or why there is none."""
    rows = [
        (f"{name} cannot be repeated: {entry['lost']}" if "lost" in entry else f"`make reproduce STUDY={name}`",)
        for name, entry in ENTRIES.items()
    ]
    return "\n".join([line(["command"]), line(["---"]), *map(line, rows)]) + "\n"


def row(claim: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a claim."""
    findings = [finding(evidence) for evidence in claim.get("evidence", ())]
    verdict = f"**{judged(findings, claim.get('each', False))}**"
    if "why" in claim:
        verdict += f": {claim['why']}"
    numbers = "; ".join(found.numbers for found in findings) or "–"
    for words, mark in MARKS.items():
        numbers = numbers.replace(f" ({words})", mark)
    told = [*dict.fromkeys(STUDIES[file] for file in files(claim)), *([claim["note"]] if "note" in claim else [])]
    source = f"{claim['paper']}, {claim['printed']}"
    return claim["claim"], source, ", ".join(told) or "–", numbers, verdict


def files(claim: Mapping[str, Any]) -> list[str]:
    """Return the files that test a claim, in the order of its parts."""
    return [piece[kind] for piece in claim.get("evidence", ()) for kind in KINDS if kind in piece]


def line(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def judged(findings: list[Finding], each: bool) -> str:
    """Return the verdict on a claim.

    A claim holds where all its parts hold and has failed where a part fails. With `each`, the findings are about the
    same claim on several data, and where these disagree nothing can be told.
    """
    verdicts = {found.verdict for found in findings}
    if not verdicts:
        return UNTESTED
    if len(verdicts) == 1:
        return verdicts.pop()
    return FAILED if FAILED in verdicts and not each else CANNOT_TELL


def finding(evidence: Mapping[str, Any]) -> Finding:
    """Return what a piece of evidence says, by its kind."""
    kinds = dict(zip(KINDS, (trend, levels, deviations, seeds, printed), strict=True))
    (kind,) = kinds.keys() & evidence.keys()
    found = kinds[kind](evidence)
    label = evidence.get("label", "")
    verdict, numbers = found.verdict, f"{label}: {found.numbers}" if label else found.numbers
    if evidence[kind] in untrained():
        verdict, numbers = CANNOT_TELL, f"{numbers} (far from trained)"
    return Finding(verdict, numbers)


def untrained() -> set[str]:
    """Return the files of studies whose networks are far from trained, which decide nothing either way."""
    entries = yaml.safe_load((FOLDER / "studies.yaml").read_text(encoding="utf-8"))
    return {file for entry in entries.values() if "untrained" in entry for file in entry["writes"]}


def records(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in the folder of reproductions."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def trend(evidence: Mapping[str, Any]) -> Finding:
    """Return what a row of a trends file says: `trend` is the file, `row` the claim there.

    With `by`, in points, its difference is held against this margin in the place of the trend's own.
    """
    (found,) = [r for r in records(evidence["trend"]) if r["claim"] == evidence["row"]]
    seeds = int(found["seeds"] or 1)
    verdict = DECIDED.get(found["held"], CANNOT_TELL)
    if any(word in found["doubt"] for word in NOISE) or _within_noise(found):
        verdict = CANNOT_TELL
    if "by" in evidence:
        error = float(found["se"])
        difference = interval(float(found["mean_difference"]), error, seeds, percent=True)
        return Finding(decided(float(found["mean_difference"]) - evidence["by"] / 100, error, seeds), difference)
    numbers = found["sentence"]
    if found["mean_difference"]:
        percent = " points" in found["sentence"]
        numbers = interval(float(found["mean_difference"]), float(found["se"] or math.nan), seeds, percent)
        if found["sites"] != "1":
            numbers += f", {found['sites_for']} of {found['sites']}"
    if found["doubt"]:
        numbers += f" ({found['doubt']})"
    return Finding(verdict, numbers)


def _within_noise(found: Mapping[str, str]) -> bool:
    """Return whether the difference of a trend lies no further from its margin than the noise of its seeds."""
    if not found["mean_difference"] or not found["se"]:
        return False
    distance = float(found["mean_difference"]) - float(found["by"] or 0)
    if found["within"]:
        distance = abs(float(found["mean_difference"])) - float(found["within"])
    return abs(distance) < quantile(int(found["seeds"])) * float(found["se"])


def decided(distance: float, error: float, seeds: int) -> str:
    """Return whether a claim holds that lies `distance` on the right side of its margin.

    Nothing is decided within the 95% interval over seeds, nor where it is not known (NaN).
    """
    if not abs(distance) >= quantile(seeds) * error:
        return CANNOT_TELL
    return HELD if distance >= 0 else FAILED


def interval(mean: float, error: float, seeds: int, percent: bool) -> str:
    """Return a difference with its 95% interval over seeds."""
    scale, digits = (100, 1) if percent else (1, 3)

    def text(value: float) -> str:
        return f"{scale * value:+.{digits}f}".replace("-", "−")

    if math.isnan(error):
        return text(mean)
    half = quantile(seeds) * error
    return f"{text(mean)} ({text(mean - half)} to {text(mean + half)})"


def chosen(rows: list[dict[str, str]], where: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the rows whose columns have the given values, or one of several."""
    for column, wanted in where.items():
        values = [str(value) for value in (wanted if isinstance(wanted, list) else [wanted])]
        rows = [r for r in rows if r[column] in values]
    if not rows:
        raise ValueError(f"no row has {dict(where)}")
    return rows


def levels(evidence: Mapping[str, Any]) -> Finding:
    """Return the difference of two mean levels of a summary file against `by`, or `within` in both directions.

    Each side is the mean over its rows of accuracy. Its standard error is the mean of theirs over seeds, as if all rows
    moved together, so that the interval is rather too wide.
    """
    rows = chosen(records(evidence["levels"]), {"metric": "accuracy"})
    sides = [chosen(rows, evidence[side]) for side in ("better", "than")]
    mean = [sum(float(r["mean"]) for r in side) / len(side) for side in sides]
    error = [sum(float(r["std"]) / math.sqrt(int(r["seeds"])) for r in side) / len(side) for side in sides]
    difference = mean[0] - mean[1]
    both = math.hypot(*error)
    distance = difference - evidence.get("by", 0) / 100
    if "within" in evidence:
        distance = evidence["within"] / 100 - abs(difference)
    fewest = min(int(r["seeds"]) for side in sides for r in side)
    return Finding(decided(distance, both, fewest), interval(difference, both, fewest, percent=True))


def deviations(evidence: Mapping[str, Any]) -> Finding:
    """Return at how many places the deviation over seeds is lower on one side, by a sign test.

    Rows are a pair where they agree in all columns that describe a place. `deviations` is a summary file, or a file
    whose `column` holds values such as `58.4 ± 3.8`.
    """
    rows = records(evidence["deviations"])
    column = evidence.get("column", "std")
    place = [name for name in rows[0] if name in PLACE and name not in evidence["better"]]
    if column == "std":
        rows = chosen(rows, {"metric": "accuracy"})
    sides = [
        {
            tuple(r[name] for name in place): float(r[column].rpartition("±")[2])
            for r in chosen(rows, evidence[side])
            if r[column] not in ("", "–")
        }
        for side in ("better", "than")
    ]
    pairs = [(sides[0][key], sides[1][key]) for key in sides[0] if key in sides[1]]
    lower = sum(first < second for first, second in pairs)
    higher = sum(first > second for first, second in pairs)
    verdict = HELD if lower > higher else FAILED
    if sign_test(lower, lower + higher) >= ALPHA:
        verdict = CANNOT_TELL
    return Finding(verdict, f"lower at {lower} of {len(pairs)}")


def seeds(evidence: Mapping[str, Any]) -> Finding:
    """Return the means of the sides `plus` minus those of the sides `minus`, within each seed, against `by`.

    `seeds` is a file with a row for each seed and place, whose numbers stand in the column `value`. With `over: rise`
    or `wobble` it has a row for each round, too, and the number of a place is made of its rounds.
    """
    rows = chosen(records(evidence["seeds"]), evidence.get("where", {}))
    differences: Counter[str] = Counter()
    for sign, selectors in ((1, evidence["plus"]), (-1, evidence["minus"])):
        for where in selectors:
            for seed, mean in by_seed(chosen(rows, where), evidence["value"], evidence.get("over")).items():
                differences[seed] += sign * mean
    values = list(differences.values())
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    verdict = decided(fmean(values) - evidence.get("by", 0), error, len(values))
    return Finding(verdict, interval(fmean(values), error, len(values), evidence.get("percent", False)))


def by_seed(rows: list[dict[str, str]], column: str, over: str | None) -> dict[str, float]:
    """Return the mean of a column over the places of each seed."""
    places: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    for r in rows:
        place = (r["seed"], *(value for name, value in r.items() if name not in ("seed", "round", column)))
        places[place].append((int(r.get("round", 0)), float(r[column])))
    found: dict[str, list[float]] = defaultdict(list)
    for (seed, *_), series in places.items():
        found[seed].append(OVER[over]([value for _, value in sorted(series)]))
    return {seed: fmean(values) for seed, values in found.items()}


def rise(series: list[float]) -> float:
    """Return how far the last round lies above the lowest."""
    return series[-1] - min(series)


def wobble(series: list[float]) -> float:
    """Return the sum of all rises from a round to the next."""
    return sum(max(0.0, after - before) for before, after in pairwise(series))


OVER = {None: fmean, "rise": rise, "wobble": wobble}
"""What is made of the rounds of a place."""

PLACE = ("algorithm", "bn", "addon", "held_out", "site", "role", "Condition")
"""Columns that describe a place at which two deviations are compared."""


def sign_test(first: int, count: int) -> float:
    """Return the two-sided p-value of `first` of `count` fair coins."""
    least = min(first, count - first)
    return min(1.0, 2 * sum(math.comb(count, k) for k in range(least + 1)) / 2**count)


def printed(evidence: Mapping[str, Any]) -> Finding:
    """Return how many printed values of a comparison file ours equal; misprints do not count."""
    judged_rows = [r for r in records(evidence["printed"]) if r["verdict"] in ("within", "outside")]
    equal = sum(r["verdict"] == "within" for r in judged_rows)
    return Finding(HELD if equal == len(judged_rows) else FAILED, f"{equal} of {len(judged_rows)} printed values")


def written(page: str) -> str:
    """Return a page with both tables, each between its two marks."""
    for begin, made, end in ((COMMANDS_BEGIN, commands(), COMMANDS_END), (BEGIN, table(), END)):
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{made}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.name}: {table().partition(chr(10))[0]}")
