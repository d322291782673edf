"""The commands table, patches and sources, and the part of `fedshift check` that looks at data."""

from __future__ import annotations

import argparse
import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..core import digest, registry
from ..core.console import say
from ..core.errors import UserError, did_you_mean, require_none
from ..core.spelling import plural, quoted
from ..data.inspection import Inspection, SiteSamples, inspect
from ..data.prepared import read_samples
from ..datasets import Dataset
from ..datasets._own_rows import further_columns
from ..datasets.own_images import TABLE, OwnImages
from ..io.checksums import remembered
from ..io.download import Source
from ..io.paths import Paths, memory, one_spelling
from ..io.text import read_json
from ..nn.policies import BATCH
from ..study import Plan
from .group import Group

if TYPE_CHECKING:
    import pandas as pd

KEY = Path("pseudonyms.key")
"""The default file of the secret from which pseudonyms are made."""


def add_scans(group: Group) -> None:
    """Add the command `fedshift table` to a group."""
    command = group.add(table, work="reading the headers of its files")
    command.add_argument("folder", type=Path, help="a folder of DICOM, NIfTI or image files, with all folders in it")
    command.add_argument("--site", required=True, metavar="NAME", help="the hospital or scanner, as the study names it")
    command.add_argument(
        "--out",
        type=Path,
        default=Path("images.csv"),
        help="table to write, which must not exist (default: %(default)s)",
    )
    command.add_argument(
        "--labels", type=Path, metavar="CSV", help="table of labels, with columns label and patient, or label and study"
    )
    command.add_argument(
        "--key",
        type=Path,
        default=KEY,
        help="file with the secret from which pseudonyms are made; it is written if it does not exist; never share it "
        "(default: %(default)s)",
    )


def table(args: argparse.Namespace) -> None:
    """Write a table of the images in a folder of scans, for the dataset own_images, with pseudonyms for patients."""
    from ..jobs.found_images import write_scan_table

    listed = write_scan_table(args.folder, args.site, args.out, args.key, args.labels)
    for line in listed.report():
        say(f"{args.out}: {line}")
    say(f"wrote {args.out}; {args.key} makes the same pseudonyms again: keep it here, and apart from what you share")


SETTINGS = {
    "mpp": (1.0, "micrometres per pixel of a patch"),
    "size": (96, "pixels along a side of a patch"),
    "core": (32, "pixels along a side of the central square, of which the label speaks"),
    "tissue": ("otsu", "otsu, or the saturation (0 to 254) above which a pixel is tissue"),
    "tissue-share": (0.2, "a square without tumour is normal if more than this share of it is tissue"),
    "tumour-share": (0.0, "a square is tumour with this share of it or more; squares with less are left out"),
    "per-slide": (2000, "the most patches of a slide"),
    "seed": (0, "seed of the choice of patches"),
    "mask-mpp": (4.0, "micrometres per pixel of the masks of tissue and tumour, about"),
}
"""The options of `fedshift patches`: default and help by name. An option has the type of its default."""


def add_slides(group: Group) -> None:
    """Add the command `fedshift patches` to a group."""
    command = group.add(patches, work="reading the table of slides")
    command.add_argument("slides", type=Path, help="a CSV with the columns slide, annotation, site and patient")
    command.add_argument("out", type=Path, metavar="OUT", help="folder to write, which must not exist")
    for name, (default, text) in SETTINGS.items():
        command.add_argument(f"--{name}", type=type(default), default=default, help=f"{text} (default: %(default)s)")
    command.add_argument(
        "--groups",
        action="append",
        default=[],
        metavar="NAME=ROLE",
        help="role of an annotation group, by its name in the annotations: tumour, hole or ignore; may be repeated",
    )
    command.add_argument(
        "--pseudonyms",
        type=Path,
        metavar="KEY",
        help="replace names of patients and slides by pseudonyms, made from the secret in this file; the file is "
        "written if it does not exist",
    )


def patches(args: argparse.Namespace) -> None:
    """Cut whole slides into patches, and write a table of the patches for the dataset own_images."""
    from ..slides.annotations import GROUPS
    from ..slides.cut_slides import cut
    from ..slides.squares import Settings

    names = [field.name for field in dataclasses.fields(Settings) if field.name != "groups"]
    settings = Settings(**{name: getattr(args, name) for name in names}, groups=GROUPS | _roles(args.groups))
    written = cut(args.slides, args.out, settings, version=__version__, key=args.pseudonyms, threads=args.threads)
    counts = ", ".join(f"{number:,} {label}" for label, number in sorted(written.patches.items()))
    say(f"wrote {written.table}: {counts}; before you go on, look at {', '.join(map(str, written.sheets))}")


def _roles(texts: list[str]) -> dict[str, str]:
    """Return the role of each annotation group, given texts `NAME=ROLE`. Raises UserError for an unknown role."""
    from ..slides.annotations import ROLES

    roles = dict[str, str]()
    for text in texts:
        name, _, role = text.rpartition("=")
        if not name or role not in ROLES:
            raise UserError("--groups", f"{text!r} is not NAME=ROLE", did_you_mean(role, ROLES))
        roles[name] = role
    return roles


def add_sources(group: Group) -> None:
    """Add the command `fedshift sources` to a group."""
    command = group.add(sources)
    command.add_argument("dataset", nargs="?", help="name of a dataset, with its default settings; default: all")


def sources(args: argparse.Namespace) -> int:
    """Print the addresses, licences, sizes and checksums of the raw files of datasets."""
    for name in [args.dataset] if args.dataset else registry.names("dataset"):
        cls = registry.get("dataset", name)
        needs_settings = any(field.is_required() for field in cls.model_fields.values())
        for line in _lines(cls.name, None if needs_settings else registry.build("dataset", name)):
            print(line)
    return 0


def _lines(name: str, dataset: Dataset | None) -> Iterator[str]:
    """Yield the lines about a dataset: its title and licence, and each origin (a publication) with its files.

    `dataset` is None for a dataset of a user's own files.
    """
    if dataset is None:
        yield f"{name}: your own files, which the study names"
        return
    card = dataset.card()
    origins = dataset.origins()
    yield f"{name}: {card.title}; licence: {card.licence}"
    if not origins:
        yield "  made by fedshift: nothing is downloaded"
    for origin in origins:
        licence = origin.licence and f"; licence: {origin.licence}"
        yield f"  {origin.name}{licence}"
        for source in origin.sources:
            yield f"    {source.filename}: {_known(source)}"
            yield f"      {source.url or f'no lasting address: put it into the mirror by hand, from {source.page}'}"


def _known(source: Source) -> str:
    """Return the text of a raw file's published size and checksums."""
    size = "size not published" if source.size is None else f"{source.size:,} bytes"
    sums = [f"{kind} {value}" for kind, value in (("sha256", source.sha256), ("md5", source.md5)) if value]
    return f"{size}, {' and '.join(sums) or 'checksum not published'}"


def inspected(plan: Plan) -> list[str]:
    """Return a text about each of a study's tables of a user's own images: counts of sites, patients and classes.

    Raises UserErrors with all faults of the tables.
    """
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
    """Return lines on the statistical power of a study: the smallest losses and differences that its patients can show.

    `key` is the id of the dataset, and `samples` its table of images. Warnings say where prediction sets guarantee
    nothing.
    """
    from ..analysis import conformal, power  # import the statistics of SciPy

    design = power.design(plan, samples, key)
    units = plural(plan.study.resampled(known=bool(samples["patient"].notna().any())))
    warnings = [f"  warning: {text}" for text in conformal.unpromised(plan, key, samples, units)]
    return [*(power.lines(design, units) if design else ()), *warnings]


def unknown_sites(plan: Plan) -> Iterator[str]:
    """Yield a warning for each entry of the study's key `sites` that names no site of the study.

    Also yield one for each `of` that names a hospital to which no other site belongs. Scales other than paper are
    not checked, since they may leave out sites.
    """
    if plan.scaled and plan.scale != "paper":
        return
    words = plan.study.sites
    there = {site for partition in plan.partitions for site in (*partition.sources, *partition.internal)}
    there |= {site for partition in plan.partitions for site in partition.external}
    for site in words:
        if site not in there:
            hint = did_you_mean(site, sorted(there))
            yield f"  warning: sites: the study has no site {site!r}, so no page shows its kind; {hint}"
    named = Counter(one.of for site, one in words.items() if site in there)
    for site, one in words.items():
        if site in there and one.of and one.of not in there and named[one.of] == 1:
            hint = did_you_mean(one.of, sorted({*there, *named} - {"", one.of, site}))
            yield f"  warning: sites.{site}.of: no other site belongs to {one.of!r} or has this name; {hint}"


def partitions(plan: Plan) -> Iterator[str]:
    """Yield a line for each partition that expands into several, or whose clients are simulated, not real sites."""
    for partition in plan.study.partition:
        if partition.leave_one_out:
            sites = ", ".join(partition.internal)
            yield f"  leave one out: {len(partition.internal)} partitions, each without one of {sites}"
        if partition.split.folds:
            yield f"  folds: {len(partition.each())} partitions, each with other patients of the internal sites to test"
        if partition.deal:
            yield f"  clients {', '.join(partition.internal)}: {partition.deal.words}"


def require_transforms(plan: Plan) -> None:
    """Raise UserErrors for transforms that cannot be applied to the images of the study, by their channels or size."""
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


def norms(plan: Plan) -> list[str]:
    """Return a remark for each BN policy that keeps no tensors local, or the same tensors as another policy.

    Only runs whose model or `norms` is not plain batch norm are looked at. Their networks are built on torch's meta
    device, without memory and pretrained weights. Raises UserErrors for networks that cannot be built for images of
    the shape that the dataset states.
    """
    chosen = [run for run in plan.runs.values() if run.norms != BATCH or getattr(run.model, "norm", "batch") != "batch"]
    if not chosen:
        return []
    from ..models import shaped
    from ..nn.norms import remarks
    from ..transforms import shape_after

    lines, faults = dict[str, None](), dict[str, UserError]()
    parts = ("model", "transforms", "bn", "norms")
    alike = {digest.of([run.data.id, run.model_dump(mode="json", include={*parts})]): run for run in chosen}
    for run in alike.values():
        dataset = run.data.dataset
        try:
            shape = shape_after(run.transforms, run.data.shape or (3, 96, 96))
            model = shaped(run.model, shape, len(dataset.classes))
        except UserError as fault:
            # Other images may fit than those of a size that was only guessed.
            if run.data.shape and not run.data.prepare:
                faults[str(fault)] = fault
            continue
        if model and run.algorithm.collaboration.has_global_model:
            lines |= dict.fromkeys(f"{plan.path}: {line}" for line in remarks(model, run.bn, run.norms))
    require_none(faults.values())
    return [*lines]


def lines(table: str, inspection: Inspection) -> Iterator[str]:
    """Yield lines about the table of images with the path `table`: one for the whole, one for each site, warnings."""
    images = sum(site.samples for site in inspection.sites)
    yield f"  {table}: {images:,} images of {len(inspection.sites):,} sites, {_patients(inspection.patients)}"
    yield from (f"    {_line(site, inspection.classes)}" for site in inspection.sites)
    yield from (f"    {_line(client, inspection.classes)}" for client in inspection.clients)
    yield from (f"  warning: {text}" for text in inspection.warnings())


def _line(site: SiteSamples, classes: tuple[str, ...]) -> str:
    """Return the line about one site: its role and its numbers of images, patients and images of each class."""
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
    """Return the number of patients as text, or `patients unknown` if it is 0."""
    return f"{number:,} patients" if number else "patients unknown"


def moved(plan: Plan, paths: Paths) -> Iterator[str]:
    """Yield a warning for each table of a user's images that was probably moved.

    Its images are not prepared, but images of a table with the same bytes and another path are.
    """
    for key, data in plan.data.items():
        dataset = data.dataset
        if not isinstance(dataset, OwnImages) or dataset.archive or paths.data(key).exists():
            continue
        rows = digest.of_file(dataset.table)
        for card in sorted(paths.data("*").parent.glob(f"*/{paths.data_files(key).card.name}")):
            earlier = read_json(card)["dataset"].get("table")
            elsewhere = earlier is not None and one_spelling(Path(earlier)) != data.dataset.identity().get("table")
            if elsewhere and remembered(memory(card.parent)).get(TABLE) == rows:
                yield f"  warning: {earlier} has the same rows, and results: was it moved? See moved_from"


def problems(plan: Plan, paths: Paths) -> Iterator[str]:
    """Yield warnings from the preparation of data, and the failed checks of the cohort, such as copies in two splits.

    The checks need prepared data and a partition. Without these, only the warnings are yielded.
    """
    for key in plan.data:
        card = paths.data_files(key).card
        if card.exists():
            yield from (f"  warning: {note}" for note in read_json(card).get("notes", ()))
    if not any(paths.partition(run.partition_id).exists() for run in plan.runs.values()):
        return
    from ..analysis.study_results import load
    from ..page.cohort import cohorts
    from ..page.cohort import problems as failed

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
    """Yield True or False for each prepared table of a user's own images: True if it now lists other images."""
    for key, data in plan.data.items():
        samples = paths.data_files(key).samples
        if data.dataset.inputs() and samples.exists():
            named = data.dataset.own_files().keys() - {TABLE}
            prepared = set(read_samples(samples)["sample"])
            yield not {sample.rpartition("#")[0] if sample not in named else sample for sample in prepared} <= named
