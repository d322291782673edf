"""The commands that are steps of the workflow, from raw data to pages. Snakemake calls them, and users may."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import study
from ..analysis.published_words import of_ledger
from ..core.console import announce, say
from ..core.errors import UserError, did_you_mean
from ..io.checksums import record, require
from ..io.paths import Paths
from ..jobs.accept import download_code, partition_code, prepare_code, train_code
from ..jobs.record import one_gpu
from ..planning.call import read_by
from ..study.plan import VALIDATION
from .group import Group, call, checked, heading, member, number_from, one_plan, plans


def add(group: Group) -> None:
    """Add the commands from `fedshift download` to `fedshift predict` to a group."""
    command = group.add(download, "study", "id", work="getting raw files")
    command.add_argument("--mirror", type=Path, help="folder that is searched for files before they are downloaded")
    group.add(prepare, "study", "id", work="preparing images")
    group.add(partition, "study", "id", work="dividing samples")
    group.add(control, "study", "id", work="fitting the control")
    group.add(train, "study", "id", work="opening images and network of a training")
    group.add(choose, "study", "id", work="comparing the trainings of a search")
    group.add(predict, "study", "id", "inference", work="opening images and network of a prediction")


def download(args: argparse.Namespace) -> None:
    """Download the raw files of a dataset, or copy them from a mirror folder."""
    data = member(args, "raw data", lambda plan: {d.raw: d for d in plan.data.values()})
    from ..jobs.prepare import obtain

    with checked(args, (), [Paths().source(data.raw)]):
        obtain(data, Paths().raw(data.raw), args.mirror, download_code(data))


def prepare(args: argparse.Namespace) -> None:
    """Prepare a dataset: read its raw images, and write them as arrays with a table of samples."""
    data = member(args, "dataset", lambda plan: plan.data)
    from ..jobs.prepare import prepare as job

    reads = [Paths().source(data.raw)]
    writes = Paths().data_files(data.id).written
    with checked(args, reads, writes, Paths().benchmark("prepare", data.id)):
        job(data, Paths().raw(data.raw), Paths().data(data.id), args.threads, prepare_code(data))


def partition(args: argparse.Namespace) -> None:
    """Assign the samples of a dataset to sites and to training, validation and test splits."""
    run = member(args, "partition", lambda plan: {run.partition_id: run for run in plan.runs.values()})
    from ..jobs.prepare import assign

    samples = Paths().data_files(run.data.id).samples
    out = Paths().partition(args.id)
    with checked(args, [samples], [out]):
        assign(run, samples, out, partition_code())


def control(args: argparse.Namespace) -> None:
    """Train and test the control: a linear classifier on pooled data, without a network."""
    run = member(args, "partition with a control", lambda plan: plan.controls)
    from ..jobs.control import control as job

    reads = [*Paths().data_files(run.data.id).written, Paths().partition(args.id)]
    out = Paths().control(args.id)
    with checked(args, reads, [out], Paths().benchmark("control", args.id)):
        job(run, Paths(), out)


def train(args: argparse.Namespace) -> None:
    """Train one run of a study, or resume it from its checkpoint."""
    run = member(args, "run", lambda plan: plan.trainings)
    from ..jobs.train import train as job

    reads = [*Paths().data_files(run.data.id).written, Paths().partition(run.partition_id)]
    with checked(args, reads, usage=Paths().benchmark("train", run.id)), one_gpu():
        job(run, Paths(), code=train_code(run), threads=args.threads, keep=True)


def choose(args: argparse.Namespace) -> None:
    """Choose the best training of a search, and copy its files to the run."""
    plan, run = member(args, "search", lambda plan: {key: (plan, run) for key, run in plan.searches.items()})
    from ..jobs.choose import choose as job
    from ..jobs.choose import oracle

    sweep = next((plan.oracles[key] for key in run.candidates if run.search.rule == "oracle"), "")
    inferences = {key: plan.inferences[key] for key in plan.sweeps.get(sweep, ())}
    looks = oracle(plan.study.headline, sweep, inferences) if sweep else None
    reads = [file for key in run.candidates for file in Paths().run_files(key).trained]
    reads += [Paths().predictions(key, sweep) for key in run.candidates if sweep]
    with checked(args, reads):
        job(run, Paths(), looks)


def predict(args: argparse.Namespace) -> None:
    """Predict all test images with a trained run, by one inference (way to predict a site) or several."""
    sweeps = {
        key: {inference: plan.inferences[inference] for inference in inferences}
        for plan in plans(args).values()
        for key, inferences in plan.sweeps.items()
    }
    if args.inference not in sweeps:
        raise UserError("inference", f"no study asks for {args.inference!r}", did_you_mean(args.inference, sweeps))
    from ..jobs.predict import load_run
    from ..jobs.predict import predict as job

    files = Paths().run_files(args.id)
    out = Paths().predictions(args.id, args.inference)
    require(files.trained, lambda: call(args))
    run = load_run(files.folder)
    # The files of a choice are those of the chosen training.
    named = [args.id, *(key for plan in plans(args).values() if args.id in plan.searches for key in plan.candidates)]
    if run.id not in named:
        raise UserError(files.spec, f"belongs to run {run.id}", f"remove the file, and make it again: {call(args)}")
    if not Paths().data_files(run.data.id).card.exists():
        raise UserError(files.spec, f"needs the data {run.data.id}, which are not prepared", call(args))
    reads = [*Paths().data_files(run.data.id).written, Paths().partition(run.partition_id)]
    benchmark = Paths().benchmark("predict", f"{args.id}-{args.inference}")
    with checked(args, reads, [out], benchmark), one_gpu():
        val = args.inference.endswith(VALIDATION)
        job(files.folder, sweeps[args.inference], Paths(), out, threads=args.threads, val=val)


def add_reports(group: Group) -> None:
    """Add the commands that make scores, figures and pages, from `fedshift score` to `fedshift index`, to a group."""
    group.add(score, "study", work="scoring its predictions")
    group.add(divergence, "study", work="comparing the features of its sites")
    group.add(figure, "study", "figure", work="drawing").add_argument(
        "--width",
        default="174mm",
        choices=("85mm", "174mm"),
        help="width of the figure `answer`: one or two columns of a journal (default: %(default)s)",
    )
    group.add(report, "study", work="computing its tables, drawing and writing its page")
    command = group.add(ledger, "study", work="measuring the traffic of a round of each condition")
    command.add_argument("--write", action="store_true", help="write the study's ledger.csv instead of printing")
    command = group.add(diff, "one", "other", work="comparing settings and scores")
    group.add_scale(command)
    help_text = "ignore differences of scores up to this value (default: %(default)s)"
    command.add_argument("--threshold", type=number_from(0), default=0.0, help=help_text)
    group.add(index, work="reading the results of all studies")


def score(args: argparse.Namespace) -> None:
    """Score the predictions of a study, and write scores.csv."""
    plan = one_plan(args)
    from ..analysis.score import score as job

    files = Paths().study_files(plan.name)
    with checked(args, read_by("score", plan, Paths()), [files.scores, files.missing]):
        say(f"wrote {job(plan, Paths())}")


def divergence(args: argparse.Namespace) -> None:
    """Measure the distance between network features of external and of internal sites, for each inference."""
    plan = one_plan(args)
    from ..analysis.divergence import write

    with checked(args, read_by("divergence", plan, Paths()), [Paths().study_files(plan.name).divergence]):
        say(f"wrote {write(plan, Paths(), args.threads)}")


def figure(args: argparse.Namespace) -> None:
    """Draw one figure of a study as SVG; the figure `answer`, with which the page begins, also as PDF."""
    plan = one_plan(args)
    if args.figure == "answer":
        from ..page.page import write_answer

        with checked(args, read_by("figure", plan, Paths())):
            for file in write_answer(plan, Paths(), args.width):
                say(f"wrote {file}")
        return
    from ..analysis.study_results import draw, load

    with checked(args, read_by("figure", plan, Paths()), [Paths().study_files(plan.name).figure(args.figure)]):
        say(f"wrote {draw(load(plan, Paths()), args.figure)}")


def report(args: argparse.Namespace) -> None:
    """Write tables, figures and page of a study from the results that exist; runs may be missing.

    If predictions are new, missing or changed since the last scoring, the study is scored first.
    """
    plan = one_plan(args)
    paths = Paths()
    files = paths.study_files(plan.name)
    from ..analysis.score import is_outdated
    from ..analysis.study_results import draw, load
    from ..page.page import write
    from ..page.summary import summarise

    require((files.scores, files.missing), lambda: call(args))
    if is_outdated(plan, paths):
        score(args)
    if of_ledger(plan) and not files.ledger.exists():
        ledger(argparse.Namespace(**vars(args) | {"write": True}))
    if plan.measures_divergence and not files.divergence.exists():
        divergence(args)
    figures = [files.figure(name) for name in plan.figures]
    with checked(args, read_by("report", plan, paths), [paths.page(plan.name), *files.reported, *figures]):
        # Snakemake waits for the folder, also where a study has no figures.
        files.figures.mkdir(parents=True, exist_ok=True)
        results = load(plan, paths)
        say(f"wrote {summarise(results)}")
        for name in plan.figures:
            say(f"wrote {draw(results, name)}")
        say(f"wrote {write(results)}")


def ledger(args: argparse.Namespace) -> None:
    """Print the traffic of each condition of a study in a round: floats, messages and bytes.

    A condition is a combination of algorithm, batch norm policy and settings.
    """
    plan = one_plan(args)
    from ..analysis.communication import tables, write

    if args.write:
        with checked(args, read_by("ledger", plan, Paths()), [Paths().study_files(plan.name).ledger]):
            say(f"wrote {write(plan, Paths())}")
        return
    for line in heading([plan]):
        print(f"{line}\n")
    for table in tables(plan, Paths()):
        print(table.md())
    for note in plan.study.notes:
        print(f"Note: {note}")


def diff(args: argparse.Namespace) -> int:
    """Print differences in runs, settings and scores of two studies or two folders of results. Returns 1 if any."""
    from ..analysis import diff as sides

    def side(name: str) -> sides.Side:
        """Return the settings and scores of a folder of results or of a study."""
        if Path(name).is_dir():
            return sides.of_folder(Path(name))
        plan = study.load(study.find(name, args.studies), args.scale, args.settings)
        announce(f"{plan.label}: reading its settings and scores")
        return sides.of_study(name, plan, Paths())

    first = side(args.one)
    second = side(args.other)
    for note in sides.notes(first, second):
        say(note)
    lines = list(sides.differences(first, second, args.threshold))
    print("\n".join(lines or ["no differences"]))
    return int(bool(lines))


def index(args: argparse.Namespace) -> None:
    """Write reports/index.html, a page that lists all studies, the papers that they reproduce, and their outcomes."""
    from ..page.gallery import write

    # Nothing is checked before: the index reads what is there of all studies, also of unfinished ones.
    out = write(args.studies, Paths())
    record(out)
    say(f"wrote {out}")
