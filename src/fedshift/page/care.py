"""What can be wrong with a study: the checks of its data and the caveats of its runs, as one list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.study_results import StudyResults
from ..analysis.values import inner, listed
from ..core import registry
from ..core.spelling import plural
from ..core.units import SPACING
from ..data.looks import ALIKE
from ..figures._images import light, private
from .cohort import Check, Cohort, NearCopies
from .history import Trained, caveats, unfinished
from .html import ICONS, Concern, PicturedPair
from .phrases import capital, level, verb

LIGHT = 100_000
"""Characters of the pictures of near copies that one check may have."""


def concerns(results: StudyResults, people: list[Cohort], runs: list[Trained]) -> list[Concern]:
    """Return every check of the data and every caveat once, the gravest first."""
    late = list(unfinished(results.findings, runs, results.rounds))
    told = [*_checks(people, shows_images(results)), *(Concern("suspect", line) for line in late)]
    texts = {f"{check.what}: {check.detail}" for cohort in people for check in cohort.checks} | {*late}
    told += [Concern("caveat", line) for line in _caveats(results, people, runs) if line not in texts]
    # partitions and data often share a caveat
    return sorted(dict.fromkeys(told), key=lambda concern: list(ICONS).index(concern.status))


def shows_images(results: StudyResults) -> bool:
    """Return whether the page of a study may show images of its data: where one of its figures does."""
    return any(registry.build("figure", name).shows_images for name in results.plan.figures)


def about_pairs(synthetic: bool) -> str:
    """Return what is said of the pictures of near copies."""
    return (
        "The most alike pairs, prepared as for the network. The correlation is that of both as small grey images, "
        f"mirrored or cropped where they agree better then; the search ends where it reaches {ALIKE}, or more where "
        "images of different sites are alike."
        f"{private(synthetic)}"
    )


def _checks(people: Iterable[Cohort], pictures: bool) -> Iterator[Concern]:
    """Yield each check of the data; it names its partitions where these differ in it.

    Every problem has its own line. Other checks of one title and status share a line: the numbers of the first
    partition, and the names of the others. With `pictures`, near copies have images of the nearest.
    """
    people = list(people)
    found: dict[tuple[str, str, str], dict[Check, list[str]]] = {}
    for cohort in people:
        for check in cohort.checks:
            detail = check.detail if check.status == "PROBLEM" else ""
            found.setdefault((check.what, check.status, detail), {}).setdefault(check, []).append(cohort.title)
    for (what, status, _), checks in found.items():
        (first, titles), *others = checks.items()
        where = f" (held out: {listed(titles)})" if len(titles) < len(people) else ""
        if others:
            alike = [title for _, titles in others for title in titles]
            where += f". Alike, with other numbers, where {listed(alike)} {verb(len(alike), 'are')} held out"
        pairs: list[PicturedPair] = _pictured(first.nearest) if pictures and first.nearest else []
        yield Concern(status, f"{what}: {first.detail}{where}", pairs)


def _pictured(nearest: Sequence[NearCopies]) -> list[PicturedPair]:
    """Return the pairs with their pictures as PNGs, so small that all together have about LIGHT characters."""
    pngs = iter(light([tile.image for pair in nearest for tile in pair.images], LIGHT))
    return [PicturedPair([(next(pngs), tile.lines) for tile in pair.images], pair.likeness) for pair in nearest]


def _units(results: StudyResults) -> list[str]:
    """Return the units of distances in the prepared data of a study, as far as their files are there: mm, pixels."""
    units = set()
    for data in results.plan.data:
        if not results.paths.data_files(data).samples.exists():
            continue
        spaced = results.samples(data).reindex(columns=[*SPACING]).notna().all(axis=1)
        # Real sites prepare their images apart, so that some may know the size of pixels and others not.
        units |= {"mm" if has_spacing else "pixels" for has_spacing in spaced}
    return sorted(units) or ["pixels"]


def _caveats(results: StudyResults, people: list[Cohort], runs: list[Trained]) -> list[str]:
    """Return the notes of the study, then the caveats that data and runs give rise to."""
    findings = results.findings
    plan = results.plan
    lines = [*plan.study.notes]
    if plan.scale == "mini" and plan.scaled:
        lines.append("Mini scale: a small model of the study, to show that it runs; not its result.")
    lines += [note for card in results.cards for note in card.get("notes", ())]
    lines += [line for cohort in people for line in cohort.caveats]
    lines += plan.study.task.caveats(_units(results))
    lines += [metric.caveat for metric in findings.metrics.values() if metric.caveat]
    units = plural(plan.study.resampled(known=True))
    lines += [*_left_out(findings), *dict.fromkeys(_too_few(findings, units)), *_untested(findings)]
    with_labels = (inference.caveat(findings.name(key)) for key, inference in plan.inferences.items())
    lines += [caveat for caveat in with_labels if caveat]
    return [*lines, *_alone(findings), *_two_networks(findings), *caveats(findings, runs, results.rounds)]


def _alone(findings: Findings) -> Iterator[str]:
    """Yield a caveat for each reason, with the conditions that have no model for external sites for this reason."""
    titles: dict[str, dict[str, None]] = {}
    for condition in findings.conditions:
        together = condition.run.algorithm.collaboration
        if not together.has_global_model:
            titles.setdefault(together.apart, {})[condition.title] = None
    for reason, names in titles.items():
        yield f"{listed(list(names))}: {reason}, so there is no model for external sites."


def _two_networks(findings: Findings) -> Iterator[str]:
    """Yield a caveat that names the conditions whose losses outside compare two networks."""
    conditions = [c for c in findings.conditions if c.partition.external and c.run.algorithm.external]
    names = dict.fromkeys(c.title for c in conditions if c.run.algorithm.collaboration.has_global_model)
    if names:
        yield (
            f"{listed(list(names))}: internal sites are predicted with their own networks or layers, and external "
            "sites with common ones, so that a loss outside compares two networks. An inference with network: global "
            "predicts all sites with one."
        )


def _untested(findings: Findings) -> Iterator[str]:
    """Yield a caveat for the sites that train and are not tested."""
    for condition in findings.conditions:
        if not condition.tests_inside:
            training = f"With {condition.held_out} held out, training" if findings.several else "Training"
            yield (
                f"{training} is at {listed(list(condition.partition.internal))}, where all samples train or validate: "
                "there is no test result for them, and no gap to external sites."
            )


def _too_few(findings: Findings, units: str) -> Iterator[str]:
    """Yield a caveat for the sites with too few patients for an interval, with both means over sites."""
    metric = findings.headline
    for condition in findings.conditions:
        key = condition.level_inference
        for role in ("internal", "external"):
            if sites := findings.too_few(condition, role):
                means = (findings.effect(what, condition, key, role) for what in ("level", "level_of_all"))
                without, whole = (level(value.mean, metric) for value in means)
                few = f"fewer than {FEWEST} test {units}" + (" of a class" if metric.by_class else "")
                yield (
                    f"With {few} at {listed(sites)}, the mean over {role} sites leaves out these: it is {without} for "
                    f"{findings.full(condition)}, and {whole} with them."
                )


def _left_out(findings: Findings) -> Iterator[str]:
    """Yield a caveat for the sites that count in no mean, with the metrics that are not defined there."""
    where: dict[tuple[str, ...], list[str]] = {}
    for name, metric in findings.metrics.items():
        where.setdefault(tuple(findings.left_out(metric=name)), []).append(inner(metric))
    for sites, titles in where.items():
        if sites:
            otherwise = ""
            if findings.plan.study.task.has_probabilities:
                otherwise = f", or {verb(len(titles), 'mean')} something else where all test samples have one class"
            yield (
                f"{capital(listed(titles))} {verb(len(titles), 'are')} not defined at {listed(list(sites))}"
                f"{otherwise}: left out of means over sites."
            )
