"""The sections of a study's page. The tuple SECTIONS lists the function that makes each of them, in order."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from markupsafe import Markup

from ..analysis import published_values, trends, unseen
from ..analysis.conditions import Condition
from ..analysis.estimates import FEWEST
from ..analysis.findings import Findings
from ..analysis.published_values import Claim as Trend
from ..analysis.score import Level, metrics
from ..analysis.study_results import StudyResults
from ..analysis.values import inner, listed, spread
from ..core import registry
from ..core.spelling import plural
from ..core.units import SPACING
from ..data.looks import ALIKE
from ..figures import Figure
from ..figures._images import light, private
from ..jobs.run_files import LEAST_PATIENTS
from ..study import calls
from ..study.declaration import Author
from . import (
    behind_means,
    comparison_section,
    registered,
    summary,
    threshold_and_probabilities,
    who,
)
from .answer import by_lead
from .cohort import Check, Cohort, NearCopies
from .downloads import Checklist, checklists
from .history import Trained, broken_down, caveats, costs, facts, runs_table, unfinished
from .html import (
    ICONS,
    Block,
    Claim,
    Claims,
    Code,
    Concern,
    Concerns,
    Facts,
    Fold,
    Heading,
    Light,
    Note,
    PageCell,
    PageTable,
    Picture,
    PicturedPair,
    Section,
    further,
    linked,
    plain,
)
from .phrases import bounds, capital, counted, heading, in_samples, level, resampled, verb
from .protocol import between_sites, protocol
from .study_report import StudyReport

LONG = 24
"""The most rows of a table of runs that is shown without a collapsible block."""
LONG_PUBLISHED = 40
"""The most rows of a table of published values that is shown without a collapsible block."""
SUM_GROUPS = (
    f"The site drew the groups at random, each of at least {LEAST_PATIENTS} {{unit}}, and an interval takes each group "
    "as one: it is mostly wider than one over {unit}."
)
NO_INTERVAL = (
    "No interval: {cells}, with fewer than {fewest} groups, or fewer than {fewest} that have images of a class."
)
SUMS_SENT = "{names} sent sums over groups of patients, and no rows of single images:"
WITHOUT_ON_PAGE = (
    "but for the section Sites that sent sums, all scores, means and differences of this page are without {names}."
)
WITHOUT_ELSEWHERE = "the page of this study has their scores apart, and all that is said here is without {names}."
SUMS_LACK = (
    "Also missing are differences between conditions and between inferences, and all that asks for single images: "
    "thresholds, calibration, prediction sets, subgroups and examples."
)


def sections(report: StudyReport) -> list[Section]:
    """Return the sections of a study's page, each with the figures that belong to it."""
    made = [section for declared in SECTIONS if (section := declared(report)) is not None]
    drawn: dict[str, list[Block]] = {section.id: [] for section in made}
    for name in report.plan.figures:
        figure: Figure = registry.build("figure", name)
        drawn[figure.section if figure.section in drawn else FURTHER].append(report.drawn(name))
    filled = [replace(section, blocks=[*section.blocks, *drawn[section.id]]) for section in made]
    return [section for section in filled if section.blocks]


def _missing(report: StudyReport) -> Section | None:
    if not report.missing:
        return None
    header = ("Run", "Condition", "Seed", "Inference", "Why")
    rows = [[*map(PageCell, (one.run, one.condition, one.seed, one.inference, one.why))] for one in report.missing]
    blocks: list[Block] = [
        f"To resume the rest{_mirror(report)}:",
        Code("Command to resume", calls.snakemake(report.plan, report.results.paths)),
        PageTable("Runs and predictions that are missing", header, rows, 5),
    ]
    return Section("missing", "What is missing", blocks, short="What is missing")


def _care(report: StudyReport) -> Section:
    every = concerns(report.results, report.people, report.runs)
    if report.summed:
        every = [Concern("suspect", without_sums(report.sites_summed, WITHOUT_ON_PAGE)), *every]
    passed = [concern for concern in every if concern.status == "ok"]
    found = [concern for concern in every if concern.status != "ok"]
    about = about_pairs(report.results.synthetic)
    blocks: list[Block] = ["Nothing was found, which does not mean that nothing is wrong."]
    if found:
        blocks = [Concerns(found, about)]
    if passed:
        title = f"{counted(len(passed), 'check')} of the data found nothing"
        blocks.append(Fold(title, [Concerns(passed, about)], secondary=True))
    return Section("care", "What can be wrong", blocks, short="What can be wrong")


def _sites(report: StudyReport) -> Section:
    findings, unit = report.findings, report.nouns.units
    led, others = (
        [summary.sites_on_page(findings, one, unit, report.controls) for one in conditions]
        for conditions in by_lead(findings)
    )
    marks = {cell.mark for table in (*led, *others) for row in table.rows for cell in row}
    keys = []
    if "worst" in marks:
        keys.append('<span class="tag">worst</span> marks the external site with the worst value under that inference.')
    if marks & {"better", "worse"}:
        keys.append(
            'Gains in <span class="better">green</span> or <span class="worse">red</span> have a 95% interval that '
            "excludes zero."
        )
    metrics = [_metrics(findings, condition, unit) for condition in findings.conditions]
    blocks: list[Block] = [
        *behind_means.worst_sentences(report.results, unit),
        *behind_means.overlooked_sentences(report.overlooked, unit),
    ]
    blocks += [
        *led,
        *([Note(Markup(" ".join(keys)))] if keys else []),
        *further([], others),
        Fold("All metrics", metrics, secondary=True),
    ]
    return Section("sites", "Site by site", blocks, short="Site by site")


def _metrics(findings: Findings, condition: Condition, unit: str) -> PageTable:
    """Return a table of all metrics of one condition (algorithm x batch norm policy x settings) at all sites.

    `unit` names the resampled units, such as patients.
    """
    rows = []
    metrics = list(findings.metrics.values())
    for role, site in condition.sites():
        for key in condition.inferences:
            values = [findings.value(condition, role, site, key, metric.name) for metric in metrics]
            cells = [PageCell(spread(v, m), bounds(v, m)) for v, m in zip(values, metrics, strict=True)]
            people = summary.patients(max(values, key=lambda value: value.patients > 0))
            rows.append([*map(PageCell, (site, role, findings.name(key), people)), *cells])
    caption = f"{findings.full(condition)}. All metrics: mean ± standard deviation over seeds"
    if any(cell.below for row in rows for cell in row):
        caption += f"; below, the 95% interval {resampled(len(condition.seeds), unit)}"
    header = ("Site", "Role", "Inference", unit.capitalize(), *map(heading, metrics))
    return PageTable(caption, header, rows, 3)


def without_sums(sites: Sequence[str], where: str) -> str:
    """Return a caveat that scores do not include the `sites`, which sent sums over groups of patients; '' if none did.

    `where` is the end of the sentence: WITHOUT_ON_PAGE or WITHOUT_ELSEWHERE.
    """
    return f"{SUMS_SENT} {where}".format(names=listed([*sites])) if sites else ""


def sums_light(report: StudyReport) -> list[Light]:
    """Return a status light about sites that sent sums over groups of patients; an empty list if none did."""
    if not report.summed:
        return []
    said = f"{listed(report.sites_summed)}: in no number here, but in a section of their own"
    return [Light("Sites that sent sums", "suspect", said, "sums")]


def sums_section(report: StudyReport) -> Section | None:
    """Return the section on sites that sent sums over groups of patients, not predictions; None without such sites."""
    if not report.summed:
        return None
    found, unit = report.summed, report.nouns.units
    blocks: list[Block] = [
        without_sums(report.sites_summed, WITHOUT_ON_PAGE),
        SUM_GROUPS.format(unit=unit),
        *_missing_sums(report),
    ]
    for condition in dict.fromkeys(one.condition for one in found):
        levels = [one for one in found if one.condition is condition]
        header = ("Site", "Inference", "Images", unit.capitalize(), "Groups", *map(heading, levels[0].values))
        caption = (
            f"{report.findings.full(condition)}. Mean ± standard deviation over seeds; below, the 95% interval "
            f"{resampled(len(condition.seeds), f'groups of {unit}')}"
        )
        blocks.append(PageTable(caption, header, [_sum_cells(report, one) for one in levels], 2))
    return Section("sums", "Sites that sent sums", blocks, short="Sites that sent sums")


def _sum_cells(report: StudyReport, level: Level) -> list[PageCell]:
    counts = (f"{count:,}" for count in (level.images, level.patients, level.groups))
    scores = [
        PageCell(spread(value, metric), bounds(value, metric, otherwise="no interval" if value.known else ""))
        for metric, value in level.values.items()
    ]
    return [*map(PageCell, (level.site, report.findings.name(level.inference), *counts)), *scores]


def _missing_sums(report: StudyReport) -> list[str]:
    """Return sentences on the metrics and intervals that cannot be computed from sums over groups of patients."""
    lost = [inner(metric) for metric in metrics(report.plan) if not metric.decides]
    lines = []
    if lost:
        needs = f"{verb(len(lost), 'need')} probabilities"
        lines.append(f"Missing at {listed(report.sites_summed)}: {listed(lost)}, which {needs}, with the intervals.")
    cells = {
        f"{inner(metric)} at {level.site}": None
        for level in report.summed
        for metric, value in level.values.items()
        if value.known and math.isnan(value.low)
    }
    if cells:
        lines.append(NO_INTERVAL.format(cells=listed([*cells]), fewest=FEWEST))
    return [*lines, SUMS_LACK]


def _trends(report: StudyReport) -> Section | None:
    told = report.reproduction
    if not told.claims:
        return None
    missing = len(told.claims) - told.judged
    counts = {"in doubt": told.doubtful, "not run": missing}
    line = "; ".join([f"{told.held} of {told.judged} surely hold", *(f"{n} {what}" for what, n in counts.items() if n)])
    line += "."
    if told.reason:
        line = Markup(
            "<strong>Does not count: {}.</strong> The sentences only show what a study on real data at paper scale "
            "would say."
        ).format(told.reason)
    rows = [_trend(claim, bool(told.reason)) for claim in told.claims]
    blocks: list[Block] = [line, Claims(rows), Note(trends.MEANING)]
    return Section("trends", "Trends of the papers", blocks, short="Trends of papers")


def _trend(claim: Trend, without_count: bool) -> Claim:
    """Return a trend that a paper reports, with whether it holds here, for a list of claims.

    It is coloured only if the trends count and nothing weakens this one; `without_count` says that none counts.
    """
    tone = "" if without_count or claim.doubt else {"yes": "better", "no": "worse"}.get(claim.held, "")
    doubt = Markup(" <i>({})</i>").format(claim.doubt) if claim.doubt else ""
    return Claim(claim.held, Markup("{}{}").format(claim.claim, doubt), f"{claim.sentence}.", tone)


def _published(report: StudyReport) -> Section | None:
    blocks: list[Block] = []
    for found, line in report.reproduction.tables:
        table = plain(found, {"outside": "worse"})
        blocks += [Heading(table.caption.partition(";")[0]), f"{capital(line)}."]
        long = len(table.rows) > LONG_PUBLISHED
        blocks.append(Fold(f"All {len(table.rows)} values", [table]) if long else table)
    if not blocks:
        return None
    blocks.append(Note(published_values.MEANING))
    return Section("published", "Beside the published numbers", blocks, short="Published numbers")


def _cohort(report: StudyReport) -> Section:
    blocks: list[Block] = []
    for n, one in enumerate(who.sections(report.results, report.people)):
        title = f"Held out: {one.title}"
        if n:
            blocks.append(Fold(title, _shown(one), secondary=True))
        else:
            blocks += [*([Heading(title)] if report.findings.several else []), *_shown(one)]
    missing = "The samples or the partition of this study are missing."
    return Section("cohort", "Who was in it", blocks or [missing], short="Who was in it")


def _shown(one: who.Who) -> list[Block]:
    return [Picture(one.picture, "flow"), one.table, *([one.further] if one.further else [])]


def _comparison(report: StudyReport) -> Section:
    findings, unit = report.findings, report.nouns.units
    compared = comparison_section.blocks(findings, unit)
    new = unseen.shown(findings, report.results.table("unseen"))
    blocks: list[Block] = [report.told.compared] if report.told.compared else []
    blocks += [plain(summary.overview(findings, unit, report.controls)), *compared]
    if new:
        blocks.append(plain(new))
    return Section("comparison", "Conditions compared" if compared else "Means over sites", blocks, short="Conditions")


def _subgroups(report: StudyReport) -> Section | None:
    columns = report.plan.study.subgroups
    if not columns:
        return None
    blocks: list[Block] = [behind_means.MEANING.format(samples=report.nouns.samples)]
    for column in columns:
        blocks += [
            Heading(f"By {column}"),
            plain(behind_means.subgroup_table(report.results, column, report.nouns.units)),
        ]
    return Section("subgroups", "Subgroups", blocks, short="Subgroups")


def from_authors(author: Author) -> Section:
    """Return the section with the statements of the study's authors, or with a hint where to write them."""
    # fields are named like Python's, and shown as titles
    said = [(key.replace("_", " ").capitalize(), [linked(text)]) for key, text in author.statements().items()]
    nothing = Markup(
        "The authors have stated nothing yet. What only they know, such as the reference standard, eligibility and "
        "ethics approval, belongs under the key <code>author</code> of the study's YAML file."
    )
    return Section("author", "From the authors", [Facts(said) if said else nothing], short="Authors")


def _protocol(report: StudyReport) -> Section:
    blocks = [Facts([*between_sites(report), *protocol(report.findings)])]
    return Section("protocol", "Protocol", blocks, short="Protocol", late=True, printed=True)


def _provenance(report: StudyReport) -> Section:
    plan, paths = report.plan, report.results.paths
    blocks: list[Block] = [
        f"To repeat this study{_mirror(report)}:",
        Code("Command to repeat", calls.snakemake(plan, paths)),
    ]
    if plan.settings:
        named = Markup(", ").join(Markup("<code>{}</code>").format(setting) for setting in plan.settings)
        blocks.append(Markup("Settings of the call that replace those of the study's file: {}.").format(named))
    for card in report.results.cards:
        blocks += _data(card)
    blocks += [
        Heading("Code and software"),
        Facts([(name, [Markup("<code>{}</code>").format(value)]) for name, value in facts(report.runs)]),
        "Another processor, another number of threads or a GPU adds the same numbers in another order. Weights then "
        "differ in their last digits after one step, and by more after many: values and intervals move, as with other "
        "seeds.",
        Heading("Runs"),
        *_runs(report),
    ]
    every: list[Block] = ["Each is the specification of the first run. The others differ in their seed."]
    for one in report.findings.conditions:
        title, text = report.findings.full(one), json.dumps(one.run.spec, indent=1, ensure_ascii=False)
        every += [Heading(title), Code(f"Specification: {title}", text)]
    blocks.append(Fold("Full specification of each condition", every))
    return Section("provenance", "Provenance", blocks, short="Provenance", late=True)


def _data(card: dict[str, object]) -> Iterator[Block]:
    """Yield the provenance of prepared data: source, licence, what was verified, and checksums of its files.

    `card` is the data card.
    """
    keys = ("title", "version", "source", "licence", "citation")
    rows = [(key.capitalize(), [linked(str(card[key]))]) for key in keys if card[key]]
    received = card.get("received")
    if isinstance(received, dict):
        rows.append(("Obtained from", [linked(received["origin"])]))
        told = (("Verified", received["verified"]), ("Not verified", received["unverified"]))
        rows += [(title, ["; ".join(texts)]) for title, texts in told if texts]
    yield Heading("Data")
    yield Facts(rows)
    sums = card["checksums"]
    if isinstance(sums, dict) and sums:
        files = [[PageCell(name), PageCell(Markup("<code>{}</code>").format(sum_))] for name, sum_ in sums.items()]
        title = f"Checksums of {counted(len(files), 'file')}"
        yield Fold(title, [PageTable(f"{title}: {card['title']}", ("File", "Checksum"), files, 2)])


def _runs(report: StudyReport) -> Iterator[Block]:
    """Yield the table of runs, and the commands that train and predict a single run."""
    table = plain(runs_table(report.runs))
    yield Fold(f"{len(table.rows)} runs", [table]) if len(table.rows) > LONG else table
    yield Markup(
        "To train and predict one run alone{}, write its id in the place of RUN. To repeat a run that is finished, "
        "remove <code>results/store/RUN</code>, from which it would come back without a training, and add "
        "<code>--forcerun train</code> before <code>--</code>."
    ).format(_mirror(report))
    commands = calls.single_runs(report.plan, report.results.paths)
    for number, (text, names) in enumerate(commands.items(), 1):
        label = "Command to repeat one run"
        if len(commands) > 1:
            named = Markup(", ").join(Markup("<code>{}</code>").format(name) for name in names)
            yield Markup("For {}: {}").format(counted(len(names), "run"), named)
            label += f", {number}"
        yield Code(label, text)


def reporting(author: Author, sample: str = "image") -> Section:
    """Return the section with the reporting checklists, as far as page and authors have filled them.

    `sample` is the dataset's noun for an image.
    """
    blocks: list[Block] = [
        "Prefilled means that this page says something about the item. Whether it says enough is for the authors to "
        "judge."
    ]
    blocks += [Fold(one.summary, [_items(one, sample)]) for one in checklists(author)]
    return Section("checklists", "Reporting checklists", blocks, short="Checklists", late=True)


def _items(checklist: Checklist, sample: str) -> PageTable:
    """Return a table of a checklist's items, with links to the sections that answer them."""
    rows = []
    for item, is_open in checklist.lines:
        place = "–"
        if item.section:
            place = Markup('<a href="#{}">{}</a>').format(item.section, capital(in_samples(item.prefilled, sample)))
        elif not is_open:
            place = Markup('<a href="#author">From the authors</a>')
        state = "filled"
        if is_open:
            state = Markup("<strong>open</strong>: <code>author.{}</code>").format(item.field)
        rows.append([*map(PageCell, (item.number, item.topic, item.who, place, state))])
    caption = f"{checklist.name} ({checklist.source}): who fills each item, and where"
    return PageTable(caption, ("Item", "Topic", "Filled by", "On this page", "State"), rows, 5)


def _cite(report: StudyReport) -> Section:
    cited = report.cited
    digest = (
        f"{cited.digest} is the beginning of the digest of the study: two pages with the same one show the same "
        "declared study."
    )
    return Section("cite", "Cite this page", [cited.text, Code("BibTeX", cited.bibtex), Note(digest)], short="Cite")


def _mirror(report: StudyReport) -> str:
    """Return a clause that explains DIR in a command: the folder with the dataset's archives; '' if it needs none."""
    archives = calls.archives(report.plan)
    return f", with DIR the folder that holds {', '.join(archives)}" if archives else ""


FURTHER = "figures"
"""The id of the section that shows a figure whose own section is not on the page."""
SECTIONS: Sequence[Callable[[StudyReport], Section | None]] = (
    _missing,
    _care,
    lambda report: registered.hypotheses_section(report.results, report.nouns.units),
    _sites,
    sums_section,
    _trends,
    _published,
    _cohort,
    lambda report: threshold_and_probabilities.operating_point_section(report.results, report.nouns.units),
    lambda report: threshold_and_probabilities.calibration_section(report.findings, report.nouns.units),
    lambda report: threshold_and_probabilities.conformal_section(report.results, report.nouns),
    lambda report: behind_means.new_hospital_section(report.findings, report.nouns),
    _comparison,
    _subgroups,
    lambda report: behind_means.collapse_section(report.results),
    lambda _: Section("examples", "Examples and mistakes", short="Examples"),
    lambda _: Section(FURTHER, "Further figures"),
    lambda report: from_authors(report.plan.study.author),
    lambda _: Section("training", "Training curves", late=True),
    lambda report: Section("costs", "Communication and time", [plain(costs(report.runs))], "Communication", late=True),
    _protocol,
    lambda report: registered.searches_section(report.results),
    _provenance,
    lambda report: reporting(report.plan.study.author, report.nouns.sample),
    _cite,
)
"""The functions that make the page's sections, in order. Each returns None, or a section without content, to be left
out."""


LIGHT = 100_000
"""The most characters of the look-alike pictures that one check may embed in the page."""


def concerns(results: StudyResults, people: list[Cohort], runs: list[Trained]) -> list[Concern]:
    """Return all checks of the data and all caveats, without repetitions, the most serious first.

    `people` are the cohorts of the study's partitions, and `runs` the training records.
    """
    late = [*broken_down(runs, results.rounds), *unfinished(results.findings, runs, results.rounds)]
    # images of the data stand on the page only where one of its figures shows any
    pictures = any(registry.build("figure", name).shows_images for name in results.plan.figures)
    told = [*_checks(people, pictures), *(Concern("suspect", line) for line in late)]
    texts = {f"{check.what}: {check.detail}" for cohort in people for check in cohort.checks}
    told += [Concern("caveat", line) for line in _caveats(results, people, runs) if line not in texts]
    # partitions and data often share a caveat
    return sorted(dict.fromkeys(told), key=lambda concern: list(ICONS).index(concern.status))


def about_pairs(synthetic: bool) -> str:
    """Return the explanation below pictures of near copies; `synthetic` says whether the images are invented."""
    return (
        "The most alike pairs, prepared as for the network. The correlation is that of both as small grey images, "
        f"mirrored or cropped where they agree better then; the search ends where it reaches {ALIKE}, or more where "
        "images of different sites are alike."
        f"{private(synthetic)}"
    )


def _checks(people: Iterable[Cohort], pictures: bool) -> Iterator[Concern]:
    """Yield each check of the data, naming the partitions it holds for if these differ.

    Each failed check has its own entry. Other checks with equal title and status share one, with the numbers of the
    first partition and the names of the others. With `pictures`, near copies are shown as images. `people` are the
    cohorts of all partitions.
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
    """Return pairs of look-alike images as PNGs, made so small that all together have about LIGHT characters."""
    pngs = iter(light([tile.image for pair in nearest for tile in pair.images], LIGHT))
    return [PicturedPair([(next(pngs), tile.lines) for tile in pair.images], pair.likeness) for pair in nearest]


def _units(results: StudyResults) -> list[str]:
    """Return the units of distances between masks: mm if pixel sizes are known, pixels if not, or both."""
    units = set()
    for data in results.plan.data:
        if not results.paths.data_files(data).samples.exists():
            continue
        spaced = results.samples(data).reindex(columns=[*SPACING]).notna().all(axis=1)
        # Real sites prepare their images apart, so that some may know the size of pixels and others not.
        units |= {"mm" if has_spacing else "pixels" for has_spacing in spaced}
    return sorted(units) or ["pixels"]


def _caveats(results: StudyResults, people: list[Cohort], runs: list[Trained]) -> list[str]:
    """Return the study's own notes, then the caveats that follow from its data and runs."""
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
    return [*lines, *_alone(findings), *_two_networks(findings), *caveats(findings, runs)]


def _alone(findings: Findings) -> Iterator[str]:
    """Yield caveats that name the methods without a global model, which external sites cannot test, and why."""
    titles: dict[str, dict[str, None]] = {}
    for condition in findings.conditions:
        together = condition.run.algorithm.collaboration
        if not together.has_global_model:
            titles.setdefault(together.apart, {})[condition.title] = None
    for reason, names in titles.items():
        yield f"{listed(list(names))}: {reason}, so there is no model for external sites."


def _two_networks(findings: Findings) -> Iterator[str]:
    """Yield a caveat on methods that predict internal and external sites with different networks."""
    conditions = [c for c in findings.conditions if c.partition.external and c.run.algorithm.external]
    names = dict.fromkeys(c.title for c in conditions if c.run.algorithm.collaboration.has_global_model)
    if names:
        yield (
            f"{listed(list(names))}: internal sites are predicted with their own networks or layers, and external "
            "sites with common ones, so that a loss outside compares two networks. An inference with network: global "
            "predicts all sites with one."
        )


def _untested(findings: Findings) -> Iterator[str]:
    """Yield a caveat for each trained method whose internal sites have no test samples."""
    for condition in findings.conditions:
        if not condition.tests_inside:
            training = f"With {condition.held_out} held out, training" if findings.several else "Training"
            yield (
                f"{training} is at {listed(list(condition.partition.internal))}, where all samples train or validate: "
                "there is no test result for them, and no gap to external sites."
            )


def _too_few(findings: Findings, units: str) -> Iterator[str]:
    """Yield caveats on sites that are left out of means because they have too few test patients for an interval.

    Each states the mean with and without them. `units` is the plural noun for patients.
    """
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
    """Yield caveats that name the metrics that are not defined at some sites, which are left out of their means."""
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
