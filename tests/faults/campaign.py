"""Faults at every rule of the workflow and in every file of a finished study, each followed by the same call again.

`FAULTS=1000 make faults`, or `python tests/faults/campaign.py [TRIALS] [SEED]`. Each trial takes a copy of a finished
study, does one harm to it, and calls `snakemake` again, as a user would: where Snakemake has nothing to do,
`fedshift verify` is called, and what a message tells to call is called. Then every file must have the bytes of the
undisturbed study. Harms: a job of any rule is killed (SIGKILL, SIGTERM, SIGINT) at a moment or a disk event in its
middle, also with the loss of all that was not synced; Snakemake is killed while the job is at work; the disk is full
from some disk event on; any file is flipped in one bit, cut, emptied or deleted, with a new time or with its old one.

With FAULTS_LOG=FILE, finished trials are kept in FILE, a JSON line for each, and a campaign that was stopped goes on
there. WORKERS sets how many trials go on at a time. Trials depend on the seed and their number alone.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import harm
import numpy as np
import small
import snakemake.cli
from warm import Called, Disturbance, Warm

from fedshift import study
from fedshift.core import registry
from fedshift.io.paths import Paths, checksum
from fedshift.io.tables import read_table
from fedshift.io.text import read_json
from fedshift.jobs import accept
from fedshift.planning.call import SOURCES, outputs

ROOT = Path(__file__).parents[2]
TRIALS, SEED = 120, 0
STUDY = (
    small.STUDY.replace("images/", "../../images/").replace("lr: 0.05", "lr: [0.05, 0.02]")  # in config/studies
    + """
published:
  tables: [faults-table]
  words: { SCAFFOLD: { algorithm: scaffold } }
"""
)
PUBLISHED = "study,method,variant,site,metric,value,std\nfaults-table,SCAFFOLD,,,exchanged_MB_per_iteration,1.5,\n"
CALL = ["--cores", "1", "--config", "study=faults"]
VERIFY = ["verify", "faults", "--scale", "paper"]
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT")
PLACES = ("at a moment", "at a disk event")
LOSS = "SIGKILL, unsynced lost"
SPOILS = ("nothing", "nothing", "cut", "flip", "flip the log", "stale lock")
PATTERN = (
    *("damage", "kill", "damage", "snakemake", "kill", "damage", "kill", "damage", "disk", "snakemake", "damage"),
    *("kill", "damage", "kill", "snakemake", "damage", "disk", "kill", "damage", "snakemake", "kill", "damage"),
    *("disk", "snakemake", "damage"),
)
"""The kinds of 25 trials in a row: 10 files damaged, 7 jobs killed, 5 times Snakemake killed, 3 full disks."""
TIMED = re.compile(r'<td class="num ">(\d+:\d\d</td>\n<td class="num ">[\d,]+|\d{4}-\d\d-\d\d \d\d:\d\d)</td>')
"""Training time and peak memory of a run on the page, and when it began: another training has others."""
MOST = 8
"""Calls of Snakemake after which a study counts as not coming back."""
COLD = 50
"""One trial of so many starts its jobs with Python anew, as the workflow does; this takes ten times as long."""


@dataclass(frozen=True)
class Trial:
    """One harm: its kind, the rule that it meets, and how."""

    number: int
    kind: str
    rule: str
    how: str
    file: str = ""
    shares: tuple[float, float] = (0.5, 0.5)
    """Where in a file or job, as a share of it; the second says how much of a file is left."""
    spoil: str = "nothing"
    """What happens to the checkpoint of a killed training before the next call."""
    stored: bool = True
    """True where the store has the run, so that a training job brings it back."""
    at_once: bool = False
    """True where the next call does not wait for jobs that outlived Snakemake."""
    cold: bool = False
    """True where Python starts the jobs anew."""


@dataclass
class Outcome:
    """What a trial met with. The lists hold what must not happen."""

    trial: dict[str, Any]
    hit: bool = False
    ended: str = ""
    noticed: str = ""
    calls: int = 0
    unlocked: int = 0
    waited: int = 0
    retrained: bool = False
    cpu: float = 0.0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    partial: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    clean_ups: list[str] = field(default_factory=list)
    tracebacks: list[str] = field(default_factory=list)


BAD = ("wrong", "lost", "partial", "silent", "clean_ups", "tracebacks")


class Project:
    """A study in a folder of its own, and what it consists of when it is finished."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def create(cls, root: Path) -> Project:
        root.mkdir(parents=True)
        for name in ("Snakefile", "workflow", "profiles", "envs", "src"):
            (root / name).symlink_to(ROOT / name)
        for folder in ("studies", "published"):
            (root / "config" / folder).mkdir(parents=True)
        shutil.copy(ROOT / "config" / "config.yaml", root / "config")
        (root / "config" / "studies" / "faults.yaml").write_text(STUDY)
        (root / "config" / "published" / "faults-table.csv").write_text(PUBLISHED)
        small.images(root / "images")
        return cls(root)

    def plan(self) -> study.plan.Plan:
        with contextlib.chdir(self.root):
            return study.load(Path("config/studies/faults.yaml"), "paper")

    def outputs(self) -> dict[str, list[Path]]:
        """Return the files that each rule writes, in the order of the rules; paths in the project."""
        with contextlib.chdir(self.root):
            made = {output.rule: list(output.every) for output in outputs(self.plan(), Paths())}
        return made | {"index": [Paths().page("index")]}

    def damageable(self) -> list[tuple[str, Path]]:
        """Return all files of the study with their rules: outputs, the first record of each rule, and kept copies."""
        made = self.outputs()
        files = [(rule, file) for rule, files in made.items() for file in files]
        files += [(rule, checksum(files[0])) for rule, files in made.items()]
        with contextlib.chdir(self.root):
            kept, _ = accept.kept(Paths())  # one for each training of the search
            return [*files, *(("train", file) for file in kept.files.trained), ("train", checksum(kept.files.model))]

    def contents(self, timed: bool = True) -> dict[str, Any]:
        """Return what must agree of all outputs: bytes, or without `timed` content without the times of a training."""
        files = [file for files in self.outputs().values() for file in files]
        read = bytes_of if timed else content
        return {str(file): read(self.root / file) for file in files if (self.root / file).exists()}

    def copy(self, root: Path) -> Project:
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.root, root, symlinks=True)
        return Project(root)


def bytes_of(path: Path) -> bytes:
    return path.read_bytes()


def content(path: Path) -> Any:
    """Return what must agree after another training: no seconds, no times, no memory."""
    try:
        if path.name == "manifest.json":
            read = read_json(path)
            return {k: v for k, v in read.items() if k not in ("started", "seconds", "peak_memory_mb", "git")}
        if path.name == "rounds.parquet":
            return read_table(path).drop(columns="seconds").to_csv(index=False)
        if path.suffix == ".html":
            return TIMED.sub("", path.read_text())
    except ValueError as error:
        return str(error)
    return path.read_bytes()


STAGES = (
    *(
        "datasets._base",
        "jobs.control",
        "jobs.train",
        "jobs.choose",
        "jobs.predict",
        "jobs.prepare",
        "data.partition",
        "analysis.score",
    ),
    *("analysis.study_results", "analysis.communication", "page.summary", "page.page", "page.gallery"),
)


def warm_up(plan: study.plan.Plan) -> None:
    """Digest the code of all rules and find Snakemake's plug-ins once, for all that is forked after this."""
    snakemake.cli.get_argument_parser()
    for run in plan.trainings.values():
        plugins = [run.data.dataset, *run.data.prepare, *run.plugins, *plan.inferences.values()]
        plugins += [registry.get(kind, name) for kind in ("metric", "figure") for name in registry.discover(kind)]
        for stage in STAGES:
            study.code(stage, *plugins)


# ---- which trials there are


class Deck:
    """Cases that come one after the other in a random order, and again in another one when all have come."""

    def __init__(self, cases: Iterable[Any], rng: np.random.Generator) -> None:
        self.cases, self.rng, self.left = list(cases), rng, list[Any]()

    def draw(self) -> Any:
        if not self.left:
            self.left = [self.cases[n] for n in self.rng.permutation(len(self.cases))]
        return self.left.pop()


def trials(project: Project, seed: int) -> Iterator[Trial]:
    """Yield trials without an end: each kind of harm comes to each rule and each file before any comes again."""
    rng = np.random.default_rng(seed)
    rules = list(project.outputs())
    hows = [f"{name} {place}" for name in SIGNALS for place in PLACES] + [LOSS]
    times = [(kind, keep) for kind in harm.DAMAGES for keep in ("new time", "old time") if kind != "delete"]
    decks = {
        "kill": Deck([(rule, how) for how in hows for rule in rules], rng),
        "snakemake": Deck([(rule, how) for how in SIGNALS for rule in rules], rng),
        "disk": Deck([(rule, "from a disk event on") for rule in rules], rng),
        "damage": Deck(
            [
                (rule, how, str(file))
                for rule, file in project.damageable()
                for how in [*(f"{kind}, {time}" for kind, time in times), "delete"]
            ],
            rng,
        ),
    }
    number = 0
    while True:
        kind = PATTERN[number % len(PATTERN)]
        rule, how, *file = decks[kind].draw()
        shares = (float(rng.uniform(0.02, 0.98)), float(rng.uniform()))
        spoil, stored, at_once = str(rng.choice(SPOILS)), bool(rng.random() < 0.5), bool(rng.random() < 0.5)
        chance = {"shares": shares, "spoil": spoil, "stored": stored, "at_once": at_once}
        yield Trial(number, kind, rule, how, *file, **chance, cold=number % COLD == COLD - 1)
        number += 1


# ---- one trial


@dataclass(frozen=True)
class Times:
    """How long each rule's job takes, and how many disk events it has."""

    warm: dict[str, float]
    counts: dict[str, int]
    restoring: int
    """The disk events of a training that the store brings back."""

    def seconds(self, rule: str, cold: bool) -> float:
        return 3 * self.warm[rule] + 2 if cold else self.warm[rule]

    def events(self, rule: str, restored: bool) -> int:
        return self.restoring if rule == "train" and restored else self.counts[rule]


class Worker:
    """One trial after the other, in a folder of its own."""

    def __init__(self, campaign: Campaign, place: Path) -> None:
        self.reference, self.times, self.place = campaign.project, campaign.times, place
        place.mkdir()
        self.root = place / "project"
        self.whole, self.content = self.reference.contents(), self.reference.contents(timed=False)
        self.made = self.reference.outputs()

    @contextlib.contextmanager
    def warm(self, name: str, cold: bool) -> Iterator[Warm]:
        warm = Warm(self.place / name, self.root, cold)
        try:
            yield warm
        finally:
            warm.quiet()
            warm.close()
            shutil.rmtree(warm.place)

    def run(self, trial: Trial) -> Outcome:
        """Do one harm until it meets its job, and see what becomes of the study."""
        began, spent = time.monotonic(), cpu()
        for attempt in range(5):
            self.reference.copy(self.root)
            outcome = Outcome(asdict(trial))
            with self.warm(f"trial-{trial.number}-{attempt}", trial.cold) as warm:
                Run(self, trial, warm, outcome, 0.5**attempt).play()
            if outcome.hit:
                break
        outcome.cpu, outcome.seconds = round(cpu() - spent, 2), round(time.monotonic() - began, 2)
        return outcome


class Run:
    """A trial in a copy of the study."""

    def __init__(self, worker: Worker, trial: Trial, warm: Warm, outcome: Outcome, sooner: float) -> None:
        self.worker, self.trial, self.warm, self.outcome, self.sooner = worker, trial, warm, outcome, sooner
        self.project = Project(worker.root)
        self.paths = Paths(worker.root)
        self.trains = trial.kind != "damage" and trial.rule == "train" and not trial.stored

    def play(self) -> None:
        if self.trial.kind == "damage":
            self.damage()
        else:
            self.disturb()
            if not self.outcome.hit:
                return
            self.require_whole()
        self.mend()
        self.judge()

    # ---- harms

    def damage(self) -> None:
        file = self.project.root / self.trial.file
        kind, _, kept = self.trial.how.partition(", ")
        if not harm.damage(file, kind, kept == "old time", self.trial.shares[0]):
            harm.damage(file, "flip", kept == "old time")  # an empty file cannot be emptied
        self.outcome.hit, self.outcome.ended = True, kind

    def disturb(self) -> None:
        """Let the rule run again, and disturb it."""
        trial, rule, words = self.trial, self.trial.rule, CALL
        if rule in SOURCES:
            words = [*CALL, "--forcerun", str(self.worker.made[rule][0])]
        else:
            for file in self.worker.made[rule]:
                (self.project.root / file).unlink()
        if self.trains:
            shutil.rmtree(self.paths.store)
        after = trial.shares[0] * self.sooner * self.worker.times.seconds(rule, self.warm.cold)
        event = 1 + int(trial.shares[0] * self.sooner * self.worker.times.events(rule, restored=not self.trains))
        number = getattr(signal, trial.how.split()[0].rstrip(","), signal.SIGKILL)
        disturbance = None
        if trial.kind == "disk":
            self.warm.fault = harm.Fault("no space", event, share=trial.shares[1])
        elif trial.how == LOSS:
            self.warm.fault = harm.Fault("cut and kill", event, share=trial.shares[1])
        elif trial.how.endswith("event"):
            self.warm.fault = harm.Fault("signal", event, number)
        else:
            to = "job" if trial.kind == "kill" else "all" if number == signal.SIGINT else "snakemake"
            disturbance = Disturbance(rule, after, number, to)
        self.warm.rule = rule
        called = self.call(words, disturbance)
        self.warm.rule = ""
        self.outcome.hit = called.code != 0
        self.outcome.ended = f"{called.code}"
        if not (trial.kind == "snakemake" and trial.at_once):
            self.warm.quiet()
        if trial.kind == "kill" and self.trains:
            spoil(self.checkpoint, trial.spoil, trial.shares[1])

    @property
    def checkpoint(self) -> Path:
        (file, *_) = self.worker.made["train"]
        return (self.project.root / file).parent / "checkpoint"

    # ---- the same call again

    def call(self, words: list[str], disturbance: Disturbance | None = None) -> Called:
        """Call Snakemake, and look for tracebacks in what it and its jobs say."""
        self.outcome.calls += 1
        called = self.warm.snakemake(words, disturbance)
        logs = [log.read_text(errors="replace") for log in (self.paths.results / "logs").rglob("*.log")]
        for text in (called.said, *logs):
            if "Traceback (most" in text and text[-600:] not in self.outcome.tracebacks:
                self.outcome.tracebacks.append(text[text.index("Traceback (most") :][-1500:])
        return called

    def mend(self) -> None:
        """Do what a user does: the same call again, and then what is told to call."""
        words = CALL
        for _ in range(MOST):
            called = self.call(words)
            if called.code == 0:
                if "Nothing to be done" not in called.said:
                    self.notice("snakemake")
                self.warm.quiet()
                code, said = self.warm.command(VERIFY)
                if code == 0:
                    self.remarks(said)
                    return
                self.notice("verify")
                if not (told := told_call(said)):
                    self.outcome.clean_ups.append(f"verify tells no call: {said[-500:]}")
                    return
                words = told
                continue
            self.notice("snakemake")
            if "LockException" in called.said or "cannot be locked" in called.said:
                self.outcome.unlocked += 1
                self.call([*CALL, "--unlock"])
            elif "another process is at work here" in called.said and self.warm.jobs:
                self.outcome.waited += 1
                self.warm.quiet()
            elif told := told_call(called.said):
                words = told
            else:
                self.outcome.clean_ups.append(f"the same call ends with {called.code}: {called.said[-800:]}")
                return
        self.outcome.clean_ups.append(f"not mended after {MOST} calls")

    def notice(self, who: str) -> None:
        self.outcome.noticed = self.outcome.noticed or who

    def remarks(self, said: str) -> None:
        """Take up what `verify` says of a study that is whole: a damaged copy, or files without a record."""
        if told := re.search(r"\(a second copy of a run, .*: rm -r (.*)\)", said):
            self.notice("verify")
            shutil.rmtree(self.project.root / told[1])
        if "no recorded checksum" in said:
            self.notice("verify")

    # ---- what must hold

    def require_whole(self) -> None:
        """Require that no file with its record is there in part, after a kill and before the next call."""
        now = self.project.contents(timed=False)
        for name, found in now.items():
            if found != self.worker.content[name]:
                self.outcome.partial.append(name)

    def judge(self) -> None:
        """Require all bytes of the undisturbed study, and that no finished run was trained again."""
        if self.trial.kind == "damage" and not self.outcome.noticed and not self.harmless():
            self.outcome.silent.append(f"{self.trial.file}: nobody noticed it")
        exact, agreed = self.project.contents(), self.project.contents(timed=False)
        self.outcome.wrong += [name for name, known in self.worker.content.items() if agreed.get(name) != known]
        timed = [name for name, known in self.worker.whole.items() if exact.get(name) != known]
        self.outcome.retrained = any(name.endswith("manifest.json") for name in timed)
        if self.outcome.retrained and not self.trains:
            self.outcome.lost.append("a finished run was trained again")
        if not self.outcome.retrained and self.trains:
            self.outcome.lost.append("the run was not trained: the trial tried nothing")

    def harmless(self) -> bool:
        """Return whether the remark in a record changed alone, which counts for large files only."""
        file = self.trial.file
        lines = [(root / file).read_bytes().split(b"\n")[0] for root in (self.project.root, self.worker.reference.root)]
        return file.endswith(".sha256") and lines[0] == lines[1]


def told_call(said: str) -> list[str]:
    """Return the words of the call of Snakemake that a message tells, with one core; empty if it tells none."""
    if told := re.search(r"make it again: snakemake ([^\n]*)", said):
        return ["1" if word == "all" else word for word in shlex.split(told[1])]
    if told := re.search(r"make it again: the same call of Snakemake with ([^\n]*)", said):
        return [*CALL, *shlex.split(told[1])]
    return []


def spoil(checkpoint: Path, how: str, share: float) -> None:
    """Spoil what a killed training has left."""
    state, log = checkpoint / "state.safetensors", checkpoint.parent / "rounds.jsonl"
    if how in ("cut", "flip") and state.exists() and state.stat().st_size:
        harm.damage(state, how, False, share)
    if how == "flip the log" and log.exists() and log.stat().st_size:
        harm.damage(log, "flip", False, share)
    if how == "stale lock":  # and a half-written file, of a machine that is gone
        checkpoint.mkdir(parents=True, exist_ok=True)
        (checkpoint / "lock").write_text("gone 4711")
        (checkpoint.parent / ".model.safetensors.tmp-gone-4711-1.safetensors").write_bytes(b"half")


def cpu() -> float:
    """Processor seconds of this process and of all that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


# ---- the campaign


@dataclass
class Campaign:
    """A finished study made by a call of Snakemake, and the trials that it lives through."""

    root: Path
    seed: int = SEED

    def __post_init__(self) -> None:
        self.project = Project.create(self.root / "reference")
        warm_up(self.project.plan())
        warm = Warm(self.root / "first", self.project.root)
        called = warm.snakemake(CALL)
        if called.code:
            raise RuntimeError(called.said)
        counts = {rule: warm.events(rule) for rule in self.project.outputs()}
        seconds = dict(warm.seconds)
        warm.root = self.project.copy(self.root / "again").root
        *_, run = self.project.plan().trainings  # the files of the rule `train` are those of the last training
        shutil.rmtree(Paths(warm.root).run(run))
        code, said = warm.command(["train", "faults", run, "--scale", "paper"])
        if code or "without training" not in said:
            raise RuntimeError(said)
        self.times = Times(seconds, counts, warm.events("train"))
        warm.close()

    def trials(self, count: int, workers: int = 1, log: Path | None = None) -> list[dict[str, Any]]:
        """Return the outcomes of the first trials; those that `log` holds are not tried again."""
        log = log or self.root / "log.jsonl"
        done = read_log(log)
        every = (trial for _, trial in zip(range(count), trials(self.project, self.seed), strict=False))
        due = [trial for trial in every if trial.number not in done]
        gc.collect()
        gc.freeze()  # what is forked from here on shares its memory for longer
        pids = [self._fork(due[n::workers], self.root / f"worker{n}", log) for n in range(workers)]
        codes = [os.waitpid(pid, 0)[1] for pid in pids]
        gc.unfreeze()
        if any(codes):
            raise RuntimeError(f"workers ended with {codes}")
        return [outcome for number, outcome in sorted(read_log(log).items()) if number < count]

    def _fork(self, due: list[Trial], place: Path, log: Path) -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            worker = Worker(self, place)
            for trial in due:
                line = json.dumps(asdict(worker.run(trial))) + "\n"
                with log.open("a") as file:
                    file.write(line)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
        raise AssertionError


def read_log(log: Path) -> dict[int, dict[str, Any]]:
    """Return the outcomes in a log by the numbers of their trials. A line that was cut off is not one."""
    outcomes = {}
    for line in log.read_text().splitlines() if log.exists() else ():
        with contextlib.suppress(ValueError):
            outcome = json.loads(line)
            outcomes[outcome["trial"]["number"]] = outcome
    return outcomes


def found(outcomes: list[dict[str, Any]]) -> list[str]:
    """Return a line for each thing that must not happen, and for each harm that met no job."""
    lines = [f"{o['trial']}: {name}: {what}" for o in outcomes for name in BAD for what in o[name]]
    return lines + [f"{o['trial']}: met no job" for o in outcomes if not o["hit"]]


def table(outcomes: list[dict[str, Any]]) -> str:
    """Return the trials by kind in Markdown: how many, what went wrong, and the processor seconds of each."""
    names = {"damage": "file damaged", "kill": "job killed", "snakemake": "Snakemake killed", "disk": "disk full"}
    head = ["kind", "trials", "wrong results", "lost runs", "partial files", "unnoticed", "clean-ups", "tracebacks"]
    head += ["unlocked", "CPU s a trial"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for outcome in outcomes:
        kinds[names[outcome["trial"]["kind"]]].append(outcome)
    for kind, of in [*kinds.items(), ("all", outcomes)]:
        bad = [sum(bool(o[name]) for o in of) for name in BAD]
        spent = sum(o["cpu"] for o in of) / max(1, len(of))
        cells = [kind, len(of), *bad, sum(bool(o["unlocked"]) for o in of), f"{spent:.1f}"]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    cold = sum(o["trial"]["cold"] for o in outcomes)
    noticed = Counter(o["noticed"] for o in outcomes if o["trial"]["kind"] == "damage")
    lines += ["", f"{cold} trials started their jobs with Python anew. Damage was noticed first by: {dict(noticed)}."]
    return "\n".join(lines)


def main(trials: int, seed: int = SEED) -> int:
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    log = os.environ.get("FAULTS_LOG")
    workers = int(os.environ.get("WORKERS", "2"))
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Campaign(Path(folder) / "faults", seed).trials(trials, workers, Path(log) if log else None)
    lines = found(outcomes)
    print(table(outcomes), *lines, sep="\n")
    return 1 if lines else 0


if __name__ == "__main__":
    numbers = [*map(int, sys.argv[1:])] or [int(os.environ.get("FAULTS", TRIALS))]
    sys.exit(main(*numbers))
