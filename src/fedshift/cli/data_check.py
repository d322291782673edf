"""The part of `fedshift check` that looks at data: at users' own tables, and at what has been prepared from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..core import digest
from ..core.errors import UserError, did_you_mean, require_none
from ..core.spelling import plural, quoted
from ..data.inspection import Inspection, SiteSamples, inspect
from ..data.prepared import read_samples
from ..datasets.own_images import TABLE, further_columns
from ..io.checksums import remembered
from ..io.paths import Paths, memory, one_spelling
from ..io.text import read_json
from ..study import Plan

if TYPE_CHECKING:
    import pandas as pd


def inspected(plan: Plan) -> list[str]:
    """Return what is in the tables of the user's own images, one text for each. Raises UserErrors for all faults."""
    texts = list[str]()
    faults = dict[str, UserError]()
    for key, data in plan.data.items():
        tables = data.dataset.inputs()
        if not tables:
            continue
        examined = data.dataset.examine(Path())
        runs = [run for run in plan.runs.values() if run.data.id == key]
        uses = {(run.partition_id, run.training.batch_size): (run.partition, run.training) for run in runs}
        if plan.study.subgroups:
            from ..analysis import subgroups  # imports the statistics of SciPy

            subgroups.require(plan, ", ".join(map(str, tables)), further_columns(examined.samples))
        # Classes of masks are those of pixels: images have none.
        classes = data.dataset.classes if data.task.has_probabilities else ()
        if examined.faults and examined.samples["site"].isna().all():
            # Without a site, each one that the study names would be told to be unknown.
            faults |= {str(fault): fault for fault in examined.faults}
            continue
        inspection = inspect(examined.samples, classes, list(uses.values()), data.dataset.has_one_image_a_patient)
        faults |= {str(fault): fault for fault in (*examined.faults, *inspection.faults)}
        about = [f"    {fact}" for fact in examined.facts] + [f"  warning: {text}" for text in examined.warnings]
        if not (examined.faults or inspection.faults):
            about += _within_reach(plan, key, examined.samples)
        texts.append("\n".join([*lines(", ".join(map(str, tables)), inspection), *about]))
    require_none(faults.values())
    return texts


def _within_reach(plan: Plan, key: str, samples: pd.DataFrame) -> list[str]:
    """Return what the study can show with the patients of a dataset, before it runs."""
    from ..analysis import power  # imports the statistics of SciPy

    design = power.design(plan, samples, key)
    units = plural(plan.study.resampled(known=bool(samples["patient"].notna().any())))
    return [*power.lines(design, units)] if design else []


def unknown_sites(plan: Plan) -> Iterator[str]:
    """Yield a line for each site whose words the study gives in vain, and for each hospital that nothing else is of.

    A smaller scale may leave out sites that the study has.
    """
    if plan.scaled and plan.scale != "paper":
        return
    words = plan.study.sites
    there = {site for partition in plan.partitions for site in (*partition.sources, *partition.internal)}
    there |= {site for partition in plan.partitions for site in partition.external}
    for site in words:
        if site not in there:
            hint = did_you_mean(site, sorted(there))
            yield f"  warning: sites: the study has no site {site!r}, whose words no page shows; {hint}"
    named = Counter(one.of for site, one in words.items() if site in there)
    for site, one in words.items():
        if site in there and one.of and one.of not in there and named[one.of] == 1:
            hint = did_you_mean(one.of, sorted({*there, *named} - {"", one.of, site}))
            yield f"  warning: sites.{site}.of: no other site is of {one.of!r}, nor has its name; {hint}"


def partitions(plan: Plan) -> Iterator[str]:
    """Yield a line for each partition that stands for several, or whose clients are made, not real sites."""
    for partition in plan.study.partition:
        if partition.leave_one_out:
            sites = ", ".join(partition.internal)
            yield f"  leave one out: {len(partition.internal)} partitions, each without one of {sites}"
        if partition.split.folds:
            yield f"  folds: {len(partition.each())} partitions, each with other patients of the internal sites to test"
        if partition.deal:
            yield f"  clients {', '.join(partition.internal)}: {partition.deal.words}"


def require_transforms(plan: Plan) -> None:
    """Raise UserErrors for transforms that cannot work on the images of the study."""
    faults = list[UserError]()
    for data in plan.data.values():
        # Sizes of images that are not prepared yet are unknown: transforms ask for the number of channels.
        shape = data.dataset.shape or (3, 64, 64)
        if len(shape) != 3:
            continue
        for transform in plan.study.transforms:
            try:
                transform.require(shape)
            except UserError as fault:
                faults.append(fault)
    require_none({str(fault): fault for fault in faults}.values())


def lines(table: str, inspection: Inspection) -> Iterator[str]:
    """Yield what was seen in a table: a line for all of it, one for each site, and the warnings."""
    images = sum(site.samples for site in inspection.sites)
    yield f"  {table}: {images:,} images of {len(inspection.sites):,} sites, {_patients(inspection.patients)}"
    yield from (f"    {_line(site, inspection.classes)}" for site in inspection.sites)
    yield from (f"    {_line(client, inspection.classes)}" for client in inspection.clients)
    yield from (f"  warning: {text}" for text in inspection.warnings())


def _line(site: SiteSamples, classes: tuple[str, ...]) -> str:
    """Return the counts of a site in one line."""
    people = _patients(site.patients)
    if site.patients and site.unknown:
        people += f" (unknown for images: {site.unknown:,})"
    # Classes that are named by numbers would read like counts.
    names = [quoted(name) if name[:1].isdigit() else name for name in classes]
    counts = ", ".join(f"{number:,} {name}" for name, number in zip(names, site.classes, strict=True))
    if counts:
        people += f"; {counts}"
    return f"{site.name} ({' or '.join(site.roles) or 'no role'}): {site.samples:,} images, {people}"


def _patients(number: int) -> str:
    return f"{number:,} patients" if number else "patients unknown"


def moved(plan: Plan, paths: Paths) -> Iterator[str]:
    """Yield a hint for each table of own images without results, where one elsewhere with the same rows has some."""
    for key, data in plan.data.items():
        files = data.dataset.own_files()
        if TABLE not in files or paths.data(key).exists():
            continue
        rows = digest.of_file(files[TABLE])
        for card in sorted(paths.data("*").parent.glob(f"*/{paths.data_files(key).card.name}")):
            earlier = read_json(card)["dataset"].get("table")
            elsewhere = earlier is not None and one_spelling(Path(earlier)) != data.dataset.identity().get("table")
            if elsewhere and remembered(memory(card.parent)).get(TABLE) == rows:
                yield f"  warning: {earlier} has the same rows, and results: was it moved? See moved_from"


def problems(plan: Plan, paths: Paths) -> Iterator[str]:
    """Yield what preparation noted, and each check of the cohort that fails, where data are prepared and divided."""
    for key in plan.data:
        card = paths.data_files(key).card
        if card.exists():
            yield from (f"  warning: {note}" for note in read_json(card).get("notes", ()))
    if not any(paths.partition(run.partition_id).exists() for run in plan.runs.values()):
        return
    from ..analysis.results import load
    from ..report.cohort import cohorts
    from ..report.cohort import problems as failed

    results = load(plan, paths)
    for key, data in plan.data.items():
        # the miniature's patients are invented, and a user's own table has been asked already
        if not (data.synthetic or data.dataset.inputs()) and paths.data_files(key).card.exists():
            yield from _within_reach(plan, key, results.samples(key))
    found = cohorts(results)
    before = "of the images prepared before the table changed: " if any(_changed(plan, paths)) else ""
    for status in ("PROBLEM", "suspect"):
        yield from (f"  {status}: {before}{text}" for text in failed(found, status))


def _changed(plan: Plan, paths: Paths) -> Iterator[bool]:
    """Yield for each table of own images whether it lists other images than those that are prepared."""
    for key, data in plan.data.items():
        samples = paths.data_files(key).samples
        if data.dataset.inputs() and samples.exists():
            named = data.dataset.own_files().keys() - {TABLE}
            prepared = set(read_samples(samples)["sample"])
            yield not {sample.rpartition("#")[0] if sample not in named else sample for sample in prepared} <= named
