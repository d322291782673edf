"""Write the tables of docs/leaderboard.md from kept tables of studies on real data: `make claims`.

`docs/reproductions/leaderboard.yaml` lists the studies, the tables and the words of the first paragraph. A gain is the
difference of two rounded means; intervals are only those that a table holds. All numbers are in points.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import yaml

from fedshift.core import registry

FOLDER, PAGE = Path(__file__).parent / "reproductions", Path(__file__).with_suffix(".md")
SETTINGS = yaml.safe_load((FOLDER / "leaderboard.yaml").read_text(encoding="utf-8"))
PLACES = {"external": "outside", "internal": "at home"}
LABEL = r"^(?P<algorithm>.+?)(?: \+ (?P<addon>.+?))?(?: \[(?P<setting>.*)\])?, (?P<policy>[\w ]+) BN$"
"""The name of a condition, such as `FedAvg + MixStyle [prepare=none], aggregated BN`."""
KEYS, VALUES = ["place", "condition", "inference"], ["mean", "std", "low", "high"]
PLUGINS = {kind: registry.discover(kind).values() for kind in ("algorithm", "addon", "inference")}
TITLES = {p.display_name.replace("-", "").lower(): p.display_name for kind in PLUGINS.values() for p in kind}


def title(name: str) -> str:
    """Return the present name of a method, with its settings: tables of older code say `AlphaBN` for `alpha-BN`."""
    head, bracket, settings = name.partition("(")
    return TITLES.get(head.replace("-", "").lower(), head) + (f" ({settings}" if bracket else "")


def read(path: Path) -> pd.DataFrame:
    """Return a table as text, empty where a study kept none."""
    return pd.read_csv(path, dtype=str, keep_default_na=False) if path.is_file() else pd.DataFrame()


def numbers(texts: pd.Series[str]) -> pd.DataFrame:
    """Return both numbers of cells such as `−0.3 ± 1.6` and `−4.3 to +3.7`; a dash has none."""
    return texts.str.replace("−", "-").str.extract(r"^([-+]?[\d.]+)(?:(?: ± | to )([-+]?[\d.]+))?$").astype(float)


def signed(*values: float) -> str:
    """Return a difference, with its interval if both ends are given too."""
    value, *ends = (f"{value:+.1f}".replace("-", "−") for value in values)
    return f"{value} ({' to '.join(ends)})" if ends else value


def cell(row: pd.Series) -> str:
    """Return a level with its interval, else with its deviation over seeds, and the gain over the reference."""
    forms = [("low", "{mean:.1f} ({low:.1f} to {high:.1f})"), ("std", "{mean:.1f} ± {std:.1f}"), ("mean", "{mean:.1f}")]
    text = next(form for name, form in forms if pd.notna(row[name])).format(**row)
    return text if row["reference"] and row["as_trained"] else f"{text}, {signed(row['gain'])}"


def levels_of(folder: Path, scale: float) -> pd.DataFrame:
    """Return the levels of a study, with the parts of their conditions and their gains over the reference."""
    overview, parts = read(folder / "overview.csv"), []
    for role, place in PLACES.items() if len(overview) else ():
        column = f"{role.capitalize()} mean"
        values = [numbers(overview[name]) for name in (column, f"95% interval ({column})")]
        heads = overview[["Condition"]].assign(inference=overview["Inference"].map(title))
        parts.append(pd.concat([heads, *values], axis=1).set_axis([*KEYS[1:], *VALUES], axis=1).assign(place=place))
    if not parts:  # a study of a paper has fractions, a row for each site, and no site outside
        parts, scale = [read(folder / "comparison.csv").assign(place="at home", inference="Source")], 100
    table = pd.concat(parts, ignore_index=True).reindex(columns=[*KEYS, *VALUES]).dropna(subset="mean")
    table[VALUES] = scale * table[VALUES].astype(float)
    # Of a mean over trainings that each leave out a site, or over sites, the table has neither deviation nor interval.
    table.loc[table.duplicated(KEYS, keep=False), VALUES[1:]] = None
    table = table.groupby(KEYS, sort=False, as_index=False).mean()
    table = table.join(table["condition"].str.extract(LABEL).fillna(""))
    table[["algorithm", "addon"]] = table[["algorithm", "addon"]].map(title)
    table.loc[table["condition"].str.startswith("Control"), "algorithm"] = "Control"
    first = table.query("algorithm == 'FedAvg' and addon == '' and policy == 'aggregated'").iloc[0]
    table["reference"] = table["condition"] == first["condition"]
    table["usual"] = table["setting"].isin(["", first["setting"]]) & (table["addon"] == "")
    apart = table["algorithm"].isin(["Centralised", "SingleSet", "Control"])
    table["control"] = apart & table["usual"] & table["inference"].isin(["Source", "–"])
    table["as_trained"] = ~apart & (table["inference"] == "Source")
    base = table.query("reference and as_trained").set_index("place")["mean"]
    table["gain"] = table["mean"] - table["place"].map(base)
    return table.assign(cell=table.apply(cell, axis=1))


def gathered(folder: Path, sets: dict[str, str]) -> dict[str, pd.DataFrame]:
    """Return the tables of all studies by kind; `set` is the name of the data, and `first` the reference."""
    found: dict[str, list[pd.DataFrame]] = {"levels": [], "sites": [], "conditions": [], "hypotheses": []}
    for study, name in sets.items():
        declared = FOLDER.parents[1] / "config" / "studies" / f"{study}.yaml"
        metric = registry.get("metric", yaml.safe_load(declared.read_text(encoding="utf-8"))["headline"])
        scale = 1 if metric.percent else 100
        levels = levels_of(folder / study, scale)
        first = levels.query("reference")["condition"].iloc[0]
        for kind, tables in found.items():
            table = levels if kind == "levels" else read(folder / study / f"{kind}.csv")
            tables.append(table.assign(set=name, study=study, first=first, metric=metric.title, scale=scale))
    return {kind: pd.concat(tables, ignore_index=True) for kind, tables in found.items()}


def markdown(frame: pd.DataFrame) -> str:
    """Return a table as Markdown."""
    head = [*[""] * frame.index.nlevels, *frame.columns]
    rows = [head, ["---"] * len(head), *frame.fillna("–").reset_index().to_numpy()]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def drawn(table: pd.DataFrame, levels: str, rows: str, columns: str) -> Iterator[str]:
    """Yield a table for sites outside and one for sites at home, of the data that have something to compare."""
    chosen = table.query(levels).groupby(["set", "place"]).filter(lambda part: len(part) > 1)
    for place, part in chosen.groupby("place", sort=False):
        frame = part.pivot(index=rows, columns=columns, values="cell").loc[part[rows].unique(), part[columns].unique()]
        yield f"{str(place).capitalize()}:\n\n{markdown(frame)}"


def at_sites(sites: pd.DataFrame) -> pd.DataFrame:
    """Return each gain of the reference at a single site that has an interval, and whether it is sure."""
    sites = sites[sites["Condition"] == sites["first"]].assign(place=sites["Role"].map(PLACES))
    gains = [column for column in sites if column.startswith("95% interval (Gain, ")]
    rows = sites.melt(["set", "place", "Site"], gains, "method", "interval").dropna()
    ends = numbers(rows["interval"]).dropna()
    return rows.loc[ends.index].assign(method=rows["method"].str[20:-1].map(title), gain=ends[0] > 0, loss=ends[1] < 0)


def single(sites: pd.DataFrame) -> pd.DataFrame:
    """Return at how many single sites each method surely gains and loses."""
    parts = at_sites(sites).groupby(["set", "place", "method"], sort=False)
    texts = parts.apply(lambda part: f"{part['gain'].sum()} gain, {part['loss'].sum()} lose, of {len(part)}")
    return texts.unstack("method")


def ranked(conditions: pd.DataFrame) -> pd.DataFrame:
    """Return what each study says of its best mean outside, and of the other conditions against it."""
    rows = conditions[(conditions["Compared with"] != "–") & ~conditions["Conclusion"].str.startswith("primary")]
    ends = pd.concat([numbers(rows["Difference"])[0], numbers(rows["95% interval"])], axis=1).mul(rows["scale"], axis=0)
    texts = pd.Series([signed(*line[~pd.isna(line)]) for line in ends.to_numpy()], ends.index)
    own = texts.where(rows["Condition"] == rows["first"])
    rows = rows.assign(own=own, told=ends.notna().all(axis=1), worse=rows["Conclusion"].str.startswith("worse"))
    frame = rows.groupby("set", sort=False).agg(
        {"Compared with": "first", "own": "first", "told": "sum", "worse": "sum"}
    )
    return frame.set_axis(["best federated mean", "FedAvg against it", "others with interval", "surely worse"], axis=1)


def claimed(hypotheses: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of studies about two ways to train or predict at the same sites, with their differences."""
    rows = hypotheses[(hypotheses["without"] == "0") & (hypotheses["at"] == hypotheses["than_at"])]
    rows = rows.assign(difference=[signed(*line) for line in 100 * rows[["mean", "low", "high"]].to_numpy(float)])
    rows["claim"] = rows["claim"].str.replace(r"0\.\d+", lambda x: f"{100 * float(x[0]):g} points", regex=True)
    return rows.set_index("set")[["number", "claim", "difference", "answer"]]


def missing(levels: pd.DataFrame) -> pd.DataFrame:
    """Return what was not run on each data set though on another, and what of the catalogue stands in no table."""
    frame = levels.drop_duplicates("set").set_index("set")[["study", "metric"]]
    for kind in ("algorithm", "policy", "addon", "inference"):
        names = levels[kind].str.replace(r" \(.*", "", regex=True)
        run = {name: set(part) - {"", "–", "Control"} for name, part in names.groupby(levels["set"])}
        every = set().union(*run.values())
        for name, done in run.items():
            few, absent = ", ".join(sorted(done)), ", ".join(sorted(every - done))
            frame.loc[name, kind] = f"all but {few}" if few and len(few) < len(absent) else absent or "–"
        known = {plugin.display_name for plugin in PLUGINS.get(kind, ()) if not getattr(plugin, "stands_for", "")}
        frame.loc["in no table", kind] = ", ".join(sorted(known - every)) or "–"
    return frame


def lead(levels: pd.DataFrame, sites: pd.DataFrame, conditions: pd.DataFrame, hypotheses: pd.DataFrame) -> str:
    """Return the first paragraph with the numbers of the tables."""
    adapted = levels.query("reference and inference == 'TsmoBN'").groupby("place")
    sure = at_sites(sites).query("method == 'TsmoBN' and place == 'outside'").groupby("Site")
    sure = sure.agg({"gain": "all", "loss": "any"})  # a site of two studies counts once
    bounded = levels.query("reference and place == 'outside' and low.notna()")
    lame = bounded[bounded["inference"] == "LAME"].merge(bounded[bounded["as_trained"]], on="set", suffixes=("", "_0"))
    return SETTINGS["lead"].format(
        up={place: f"{(part['gain'] > 0).sum()} of {len(part)}" for place, part in adapted},
        gains={place: ", ".join(part["set"] + " " + part["gain"].map(signed)) for place, part in adapted},
        sure=f"{sure['gain'].sum()} of {len(sure)} single sites with an interval, a loss at {sure['loss'].sum()}",
        claim={f"{name} {row['number']}": row["difference"] for name, row in claimed(hypotheses).iterrows()},
        margin=f"{100 * hypotheses['margin'].dropna().astype(float).abs().min():g}",
        harmed=f"{(lame['high'] < lame['low_0']).sum()} of {len(lame)}",
        lame=", ".join(lame["set"] + " " + lame["gain"].map(signed)),
        worst=" of ".join(map(str, ranked(conditions)[["surely worse", "others with interval"]].sum())),
    )


def written(page: str, folder: Path = FOLDER, sets: dict[str, str] = SETTINGS["sets"]) -> str:
    """Return the page with each part between its two marks."""
    tables = gathered(folder, sets)
    made = {"sites": single, "conditions": ranked, "hypotheses": claimed, "levels": missing}
    parts = {"lead": lead(**tables)} | {kind: markdown(make(tables[kind])) for kind, make in made.items()}
    parts |= {name: "\n".join(drawn(tables["levels"], **how)) for name, how in SETTINGS["tables"].items()}
    for name, text in parts.items():
        begin, end = f"<!-- Begin {name}: make claims writes it -->", f"<!-- End {name} -->"
        page = f"{page.partition(begin)[0]}{begin}\n\n{text}\n{end}{page.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
