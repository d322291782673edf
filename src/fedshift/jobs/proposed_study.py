"""The study that `fedshift new --table` proposes: from counts and sizes alone, with the reason for each choice."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.errors import UserError
from ..core.spelling import PLACEHOLDERS, counted, folded
from ..datasets._own_rows import label_texts
from ..io.images import located
from ..study.declaration import MARGIN
from .found_images import MOST_CLASSES, Choose, Found

FIRST = (
    *("benign", "normal", "negative", "healthy", "control", "none", "no", "absent", "nevus", "naevus", "false", "0"),
    *("gutartig", "negativ", "gesund", "kontrolle", "nein", "unauffällig", "background"),
)
"""Beginnings of names of the negative class, which comes first; the other one is the positive class."""
SOUGHT = (
    *("malign", "tumor", "tumour", "cancer", "carcinoma", "melanoma", "metasta", "lesion", "positiv", "disease"),
    *("bösartig", "karzinom", "krebs", "krank"),
)
"""Parts of names of the positive class, used if none of FIRST decides."""
UNKNOWN = (PLACEHOLDERS - {"0"}) | {"", "unklar", "fehlt"}
"""Labels, as `folded` spells them, that say that the class is unknown. The number 0 is a class."""
ENOUGH = 20
"""Patients of the rarest class that an external site should have: with fewer, its interval says little."""
FEW_IMAGES = 10
"""The least number of images of each class at a site that trains."""
FEW_PATIENTS = 25
"""If a site that trains has fewer patients, folds are proposed, which test each patient once: a single split tests
few."""
LEAST_PATIENTS = 6
"""The least number of patients at a site that trains: with fewer, its images are not split."""
UNEQUAL = 0.35
"""Share of the rarest class below which accuracy is not proposed: it is high for a network that never predicts that
class."""
LARGEST = {False: 64, True: 128}
"""The largest side of images that is proposed, without and with masks: a laptop gives a first page in minutes."""
STEP = 16
LEAST_STEPS = 5
"""The least number of steps of the smallest site in a round, by which the batch size is proposed."""
STEPS = {False: 500, True: 250}
"""Local steps of a mean site in all rounds together, by whether there are masks: steps with masks take longer."""
ROUNDS = (20, 60)


@dataclass
class Proposal:
    """A proposed study: the content of its YAML file, and sentences with the reason for each choice."""

    study: dict[str, Any]
    reasons: list[str]


def propose(found: Found, folder: Path, choose: Choose) -> Proposal:
    """Propose a study of the images in `found`, for a YAML file in `folder`.

    Choices follow from counts and sizes alone, since no result exists; `choose` asks the user what counts cannot tell.
    Raises UserError if there are no two classes.
    """
    reasons = list[str]()
    dataset, rows = _dataset(found, folder, choose, reasons)
    masked, names = "mask" in found.rows, dataset["classes"]
    sites = _sites(rows, names if not masked else [])
    internal, external, why = _roles(sites, masked, "patients" if "patient" in rows else "images")
    if external and len(sites) > 2:
        asked = choose("which site took no part, and is to be tested?", [*sites], external[0])
        if asked not in external:
            internal, external = [site for site in sites if site != asked], [asked]
            why = "it was chosen"
    reasons.append(why if not external else f"external: {', '.join(external)}, since {why}")
    rarest = 1.0 if masked else float(rows["label"].value_counts(normalize=True).min())
    unequal = rarest < UNEQUAL
    headline = "dice" if masked else ("accuracy" if not unequal else "auc" if len(names) == 2 else "balanced_accuracy")
    if unequal:
        share = f"the rarest class is {100 * rarest:.0f} % of the images"
        reasons.append(f"headline {headline} and class_weights balanced, since {share}")
    split, train = _split([sites[site] for site in internal], reasons)
    training = _training([sites[site].images * train for site in internal], masked, reasons)
    if unequal:
        training["class_weights"] = "balanced"
    turns = found.colours
    reasons.append(
        "images in colours are flipped and turned in training: leave that out where up and down matter"
        if turns
        else "grey images and scans are neither flipped nor turned: add flip where left and right do not matter"
    )
    if external:
        reasons.append(f"margin {MARGIN}: a larger loss outside does not hold up; set it before results are seen")
    title, question = _texts(names, internal, external, masked)
    study: dict[str, Any] = {
        "title": title,
        "question": question,
        "notes": ["Settings were proposed from counts and sizes alone, before any result was seen."],
        "task": "segmentation" if masked else None,
        "dataset": dataset,
        "partition": {"internal": internal, "external": external, "split": split},
        "model": "unet_small" if masked else "densenet_small",
        "transforms": ["scale_intensity", *(["flip", "rotate90"] if turns else [])],
        "training": training,
        "runs": [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}],
        "seeds": [0, 1, 2],
        "inferences": ["source", "tsmobn"],
        "headline": headline,
        "margin": MARGIN if external else None,
    }
    return Proposal({key: value for key, value in study.items() if value is not None}, reasons)


def text(proposal: Proposal, name: str) -> str:
    """Return the text of the YAML file of a proposed study called `name`, with the reasons as comments above it."""
    import yaml

    head = [
        f"Written by fedshift new. `fedshift check {name}` checks it, `fedshift run {name}` ends with a page of it.",
        "What was taken, and why. Change what does not fit; title and question stand on the page.",
        *(f"- {reason}" for reason in proposal.reasons),
    ]
    keys = yaml.safe_dump(proposal.study, sort_keys=False, allow_unicode=True, width=110, default_flow_style=None)
    apart = re.sub(r"^(?=(?:title|dataset|partition|model|runs):)", "\n", keys, flags=re.M)
    return "".join(f"# {line}\n" for line in head) + apart


def _dataset(found: Found, folder: Path, choose: Choose, reasons: list[str]) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the settings of the dataset, and the rows whose label names a class, with that class as the label.

    Paths are relative to `folder`. Sentences on the choices are added to `reasons`.
    """
    dataset: dict[str, Any] = {"name": "own_images", "table": _relative(found.table, folder)}
    if found.folder:
        dataset["folder"] = _relative(found.folder, folder)
    if found.encoding != "utf-8":
        dataset["encoding"] = found.encoding
    if found.columns:
        dataset["columns"] = found.columns
    rows = found.rows
    masked = "mask" in rows
    if masked:
        dataset |= _masks(found, reasons)
    else:
        classes = _classes(rows, choose, reasons)
        names = list(dict.fromkeys(name for name in classes.values() if name is not None))
        names = _ordered(names, rows["label"], classes, choose, reasons)
        dataset["classes"] = names
        numbers = {str(k): name for k, name in enumerate(names)}
        if any(name is None or name not in (text, numbers.get(text)) for text, name in classes.items()):
            dataset["labels"] = classes
        rows = rows.assign(label=label_texts(rows["label"]).fillna("").map(classes))
        rows = rows[rows["label"].notna()]
    dataset["size"] = _size(found, LARGEST[masked], reasons)
    files = found.rows["path"].dropna().unique()
    if lost := sum(not located(found.base, cell)[0].is_file() for cell in files):
        dataset["skip_unreadable"] = True
        reasons.append(f"{counted(lost, 'image')} of the table are not there: skip_unreadable leaves them out")
    return dataset, rows


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.absolute(), folder.absolute())).as_posix()


def _classes(rows: pd.DataFrame, choose: Choose, reasons: list[str]) -> dict[str, str | None]:
    """Return the class of each label, by label; None for a label that says that the class is unknown.

    Spellings of one label are one class. `choose` asks what numbers mean, and sentences on the choices are added to
    `reasons`. Raises UserError for fewer than two classes, and for too many.
    """
    texts = label_texts(rows["label"]).fillna("")
    counts = texts.value_counts()
    spelt: dict[str, str] = {}
    classes: dict[str, str | None] = {}
    for label in sorted(counts.index, key=lambda text: (not text.isdecimal(), text.rjust(9, "0"))):
        if folded(label) in UNKNOWN:
            classes[label] = None
            reasons.append(f"{counted(int(counts[label]), 'image')} with the label {label!r} left out")
            continue
        name = spelt.setdefault(folded(label), label)
        if name != label:
            reasons.append(f"labels {name!r} and {label!r} are one class")
        classes[label] = name
    named = {name for name in classes.values() if name is not None}
    if not 2 <= len(named) <= MOST_CLASSES:
        shown = ", ".join(map(repr, sorted(named)[:5]))
        problem = f"names {len(named)} classes ({shown})"
        raise UserError("the column of labels", problem, f"2 to {MOST_CLASSES} are needed: say --column label=NAME")
    if named <= {str(k) for k in range(MOST_CLASSES)}:
        meant = _in_paths(rows["path"], texts)
        for label in (label for label, name in classes.items() if name is not None):
            classes[label] = choose(f"what does label {label} mean?", [], meant.get(label, f"class {label}"))
    return classes


def _in_paths(paths: pd.Series, labels: pd.Series) -> dict[str, str]:
    """Return, by label, the folder that holds all images of the label and no others; {} if no folders do so."""
    parts = paths.str.split("/").str[:-1]
    for k in range(int(parts.str.len().max() or 0)):
        pairs = labels.to_frame("label").assign(folder=parts.str[k]).dropna().drop_duplicates()
        if len(pairs) == labels.nunique() == pairs["folder"].nunique():
            return dict(zip(pairs["label"], pairs["folder"], strict=True))
    return {}


def _ordered(
    names: Sequence[str],
    cells: pd.Series,
    classes: Mapping[str, str | None],
    choose: Choose,
    reasons: list[str],
) -> list[str]:
    """Return the names of the classes in the order of the proposed study: of two, the positive one comes second.

    Where no name tells, `choose` asks, and proposes the rarer class in `cells`, the labels of the table, which
    `classes` maps to names; a line on the choice is added to `reasons`.
    """
    if len(names) != 2 or all(name.startswith("class ") for name in names):
        return list(names)
    negative = [name for name in names if any(folded(name).startswith(word) for word in FIRST)]
    if len(negative) == 1:
        return sorted(names, key=lambda name: name not in negative)
    sought = [name for name in names if any(word in folded(name) for word in SOUGHT)]
    if len(sought) == 1:
        return sorted(names, key=lambda name: name in sought)
    counts = label_texts(cells).fillna("").map(classes).value_counts()
    rarer = str(counts.index[-1])
    positive = choose("which class is to be found?", names, rarer)
    reasons.append(f"{positive!r} is the positive class, whose share that is found is the sensitivity")
    return sorted(names, key=lambda name: name == positive)


def _masks(found: Found, reasons: list[str]) -> dict[str, Any]:
    """Return the settings of masks: a class for each value in them; the lowest value is the background.

    A sentence on the choice is added to `reasons`. Raises UserError for too many values.
    """
    values = found.masks or (0, 1)
    if len(values) > MOST_CLASSES:
        shown = ", ".join(map(str, values[:6]))
        problem = f"have {len(values)} values ({shown}, ...), too many for classes"
        raise UserError("the masks", problem, "save them as PNG, with a value for each class; JPEG changes values")
    structures = ["structure"] if len(values) == 2 else [f"structure {k}" for k in range(1, len(values))]
    reasons.append(f"the masks' values {', '.join(map(str, values))} are classes, and the first one is the background")
    return {"classes": ["background", *structures], "masks": {value: k for k, value in enumerate(values)}}


def _size(found: Found, largest: int, reasons: list[str]) -> int:
    """Return the side of prepared images in pixels: the median of the shorter sides, but at most `largest`."""
    median = found.sides[len(found.sides) // 2] if found.sides else largest
    size = max(32, min(median, largest) // STEP * STEP)
    if median > largest:
        reasons.append(f"size {size}, for a first page on a laptop: images have {median} pixels, and results want more")
    return size


@dataclass(frozen=True)
class Site:
    """Numbers of a site's images and patients (of images, if patients are unknown), in all and of the rarest class."""

    images: int
    patients: int
    rarest_images: int
    rarest_patients: int


def _sites(rows: pd.DataFrame, classes: Sequence[str]) -> dict[str, Site]:
    """Return the counts of each site, the largest site first. Without `classes`, all images count as one class."""
    sites = {}
    for name, part in rows[rows["site"].notna()].groupby("site"):
        images = [len(part)]
        patients = [_people(part)]
        if classes:
            by_class = [part[part["label"] == label] for label in classes]
            images, patients = ([count(p) for p in by_class] for count in (len, _people))
        sites[str(name)] = Site(len(part), _people(part), min(images), min(patients))
    return dict(sorted(sites.items(), key=lambda item: -item[1].images))


def _people(part: pd.DataFrame) -> int:
    if "patient" not in part:
        return len(part)
    return int(part["patient"].nunique() + part["patient"].isna().sum())


def _roles(sites: Mapping[str, Site], masked: bool, unit: str) -> tuple[list[str], list[str], str]:
    """Return the sites that train, the sites that only test, and a clause that says why.

    `unit` is what is known and counted: patients, or images. `masked` says that the study is one of masks.
    """
    least = LEAST_PATIENTS if masked else FEW_IMAGES
    able = [name for name, site in sites.items() if site.rarest_images >= least and site.patients >= LEAST_PATIENTS]
    other = [name for name in sites if name not in able]
    if len(sites) == 1:
        return [*sites], [], "there is one site: nothing says how the model does elsewhere; add a hospital to the table"
    unfit = other if able else []
    tells = any(sites[name].rarest_images for name in unfit)  # what compares classes has a value somewhere outside
    if unfit and (tells or len(able) < 3):
        return able, unfit, "fewer images of a class, or fewer patients, than training and a split need"
    # the smallest site that says something, so that most images train
    rest = able or [*sites]
    good = [name for name in rest if sites[name].rarest_patients >= ENOUGH]
    chosen = (good or rest[:1])[-1]
    of_class = "" if masked else " of the rarest class"
    why = f"is the largest site, and no site has enough {unit}{of_class} for an interval"
    if good:
        why = f"is the smallest site with {ENOUGH} {unit}{of_class} or more, as an interval needs"
    why = f"{chosen} {why}, and the others lack a class" if unfit else f"it {why}"
    return [name for name in rest if name != chosen], [chosen, *unfit], why


def _split(sites: Sequence[Site], reasons: list[str]) -> tuple[dict[str, float], float]:
    """Return the settings of the split of the sites that train, and the share of their images that is for training.

    A sentence on the choice is added to `reasons`.
    """
    least = min(site.patients for site in sites)
    if least >= FEW_PATIENTS:
        return {"train": 0.6, "val": 0.15, "test": 0.25}, 0.6
    folds = 5 if least >= 10 else 3
    val = 0.15 if folds == 5 else 0.2
    reasons.append(f"{folds} folds, since a site that trains has {least} patients: each is tested once")
    return {"folds": folds, "val": val}, 1 - 1 / folds - val


def _training(images: Sequence[float], masked: bool, reasons: list[str]) -> dict[str, Any]:
    """Return the settings of the training: rounds, batch size, learning rate and schedule.

    `images` are the numbers of training images of the sites. A sentence on the choice is added to `reasons`.
    """
    sizes = (4, 2) if masked else (32, 16, 8, 4, 2)
    batch = next((size for size in sizes if min(images) >= LEAST_STEPS * size), 2)
    steps = sum(images) / len(images) / batch
    rounds = min(max(math.ceil(STEPS[masked] / steps), ROUNDS[0]), ROUNDS[1])
    reasons.append(
        f"{rounds} rounds of about {steps:.0f} steps in batches of {batch}: the smallest site trains on "
        f"{min(images):.0f} images"
    )
    rates = {"lr": 0.2} if masked else {"lr": 0.1 * batch / 32, "momentum": 0.9}
    return {"rounds": rounds, "batch_size": batch, **rates, "schedule": "cosine"}


def _texts(names: Sequence[str], internal: Sequence[str], external: Sequence[str], masked: bool) -> tuple[str, str]:
    """Return the title and the question of a study, from the names of its classes and its sites."""
    what = "outline structures" if masked else f"tell {', '.join(names[:-1])} from {names[-1]}"
    trained, there, alone = _listed(internal), _listed(external), len(internal) == 1
    model = f"a model of {trained}" if alone else f"a model of {len(internal)} sites"
    training = f"{trained} trains a model" if alone else f"{trained} train a model together"
    question = f"{training} to {what}. How well does it work there"
    if not external:
        return f"How well does {model} work at home?", f"{question}?"
    return f"Does {model} hold up at {there}?", f"{question}, and at {there}, which took no part?"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
