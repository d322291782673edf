"""Damage to every file of a finished study, and the commands that read it: each ends well or with one line.

`python tests/faults/misread.py [TRIALS] [SEED] [FILE]`: so many kinds of damage to each file whose path has FILE in it;
every second leaves a whole file of the same kind that holds something else. Pipes take the place of files, too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import harm
import numpy as np
import pandas as pd
import small
from PIL import Image

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io import checksums
from fedshift.io.paths import DataFiles, Paths, StudyFiles

TRIALS, SEED = 40, 0
PATIENCE = 600
"""Seconds after which a command counts as hanging."""
STUDY = """
title: Damage
dataset: { name: own_images, table: images/samples.csv, size: 8 }
partition: { internal: [A, B], external: [C], split: { train: 0.6, val: 0.2, test: 0.2 } }
model: { name: mlp, hidden: 4 }
training: { rounds: 2, batch_size: 4 }
runs: [{ algorithm: fedavg, bn: [aggregated, local] }]
seeds: [0]
inferences: [source, tsmobn]
figures: [sites, divergence]
"""
DATABASE = "sqlite:///{}.db"
"""With a number for each call: MLflow keeps its connection to a database, and `restore` deletes the file."""
Damage = Callable[[bytes, np.random.Generator], bytes]


# ---- damage to any file


def empty(content: bytes, rng: np.random.Generator) -> bytes:
    return b""


def truncated(content: bytes, rng: np.random.Generator) -> bytes:
    return harm.cut(content, rng.random())


def flipped(content: bytes, rng: np.random.Generator) -> bytes:
    return harm.flip(content, rng.random())


def overwritten(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with noise over a tenth of it."""
    start, length = int(rng.integers(len(content) + 1)), 1 + len(content) // 10
    return content[:start] + rng.bytes(length) + content[start + length :]


def noise(content: bytes, rng: np.random.Generator) -> bytes:
    return rng.bytes(200)


def other_type(content: bytes, rng: np.random.Generator) -> bytes:
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    return (picture.getvalue(), b"<!DOCTYPE html><title>404</title>", b"{}\n", b"a,b\n1,2\n")[int(rng.integers(4))]


PIPE = b"a pipe"


def pipe(content: bytes, rng: np.random.Generator) -> bytes:
    return PIPE


ANY: tuple[Damage, ...] = (empty, truncated, flipped, overwritten, noise, other_type, pipe)


# ---- files that are well formed and hold something else

VALUES = (None, [], {}, "text", -1, 10**9, 10**30, 1e300, True, [[]], {"a": 1}, [{"a": 1}], "\ud800", "")


def other_json(content: bytes, rng: np.random.Generator) -> bytes:
    """The content with one value, at any depth, replaced or left out."""

    def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        yield above
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            yield from places(inner, (*above, key))

    known = json.loads(content)
    every = list(places(known))
    place = every[int(rng.integers(len(every)))]
    value = VALUES[int(rng.integers(len(VALUES)))]
    if not place:
        return json.dumps(value).encode()
    inner = known
    for key in place[:-1]:
        inner = inner[key]
    if rng.random() < 0.4:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return json.dumps(known).encode()


def other_table(table: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """The table without a column or its rows, or with a column of other type, missing cells or repeated rows."""
    column = table.columns[int(rng.integers(table.shape[1]))]
    values = (None, "text", "\u202e", -1, 10**9, float("nan"), float("inf"), True, "")
    changes: tuple[Callable[[], pd.DataFrame], ...] = (
        lambda: table.drop(columns=column),
        lambda: table.iloc[:0],
        lambda: table.iloc[: len(table) // 2],
        lambda: pd.concat([table, table]),
        lambda: table.assign(**{column: values[int(rng.integers(len(values)))]}),
        lambda: table.assign(**{column: table[column].where(rng.random(len(table)) < 0.5)}),
        lambda: table.assign(**{column: table[column].sample(frac=1, random_state=0).to_numpy()}),
        lambda: table.rename(columns={column: "other"}),
        lambda: pd.DataFrame({"other": [1]}),
    )
    return changes[int(rng.integers(len(changes)))]()


def other_parquet(content: bytes, rng: np.random.Generator) -> bytes:
    out = io.BytesIO()
    other_table(pd.read_parquet(io.BytesIO(content)), rng).to_parquet(out, index=False)
    return out.getvalue()


def other_csv(content: bytes, rng: np.random.Generator) -> bytes:
    table = other_table(pd.read_csv(io.BytesIO(content), dtype=object), rng)
    return table.to_csv(index=False).encode()


def other_array(content: bytes, rng: np.random.Generator) -> bytes:
    array = np.load(io.BytesIO(content))
    others = (
        array[:-1],
        array[..., :1],
        array.astype(np.float64),
        array.reshape(-1),
        np.float32(1),
        array.astype("U1"),
        array[:, :-1],
        np.zeros((len(array), 3), np.complex64),
    )
    out = io.BytesIO()
    np.save(out, others[int(rng.integers(len(others)))])
    return out.getvalue()


def other_tensors(content: bytes, rng: np.random.Generator) -> bytes:
    """A whole file with other names, shapes or values, or without a checksum."""
    from safetensors.torch import load, save

    tensors = load(content)
    names = sorted(tensors)
    changes: tuple[Callable[[], bytes], ...] = (
        lambda: save(tensors),
        lambda: signed({}),
        lambda: signed({f"other/{k}": v for k, v in tensors.items()}),
        lambda: signed({k: v.reshape(-1)[:1] for k, v in tensors.items()}),
        lambda: signed({k: v for k, v in tensors.items() if k != names[0]}) if names else signed({}),
        lambda: signed({k: v.double() * float("nan") for k, v in tensors.items()}),
    )
    return changes[int(rng.integers(len(changes)))]()


def signed(tensors: dict[str, Any]) -> bytes:
    from fedshift.io.arrays import write_tensors

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.safetensors")
        write_tensors(path, tensors, {})
        return path.read_bytes()


def other_yaml(content: bytes, rng: np.random.Generator) -> bytes:
    import yaml

    return yaml.safe_dump(json.loads(other_json(json.dumps(yaml.safe_load(content)).encode(), rng))).encode()


def other_svg(content: bytes, rng: np.random.Generator) -> bytes:
    added = (b"<script>alert(1)</script>", b"<path onload='alert(1)'/>", b"<use href='http://x.org/y'/>", b"<!--x-->")
    return content.replace(b"</svg>", added[int(rng.integers(len(added)))] + b"</svg>")


SAME_KIND: dict[str, Damage] = {
    ".json": other_json,
    ".csv": other_csv,
    ".parquet": other_parquet,
    ".npy": other_array,
    ".safetensors": other_tensors,
    ".yaml": other_yaml,
    ".svg": other_svg,
}


# ---- the study


@dataclass
class Figures:
    """The results of a campaign."""

    calls: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    traces: list[str] = field(default_factory=list)


class Campaign:
    """A finished study in a folder, whose files are damaged one after the other, and then put back."""

    def __init__(self, root: Path) -> None:
        signal.signal(signal.SIGALRM, late)
        self.root = root
        small.images(root / "images", size=8, each=20)
        (root / "study.yaml").write_text(STUDY)
        with contextlib.chdir(root):
            plan = study.load(Path("study.yaml"), "paper")
            (data,) = plan.data.values()
            self.run_id = run = next(iter(plan.runs))
            part = next(iter(plan.runs.values())).partition_id
            for words in small.commands(plan, "study.yaml"):
                self.must(*words)
            paths = Paths()
            made, files = paths.data_files(data.id), paths.study_files(plan.name)
            runs = paths.run_files(run)
            checkpoint = runs.checkpoint / "state.safetensors"
            self.checkpoint(checkpoint, paths, run)
            stamp = {"code": "a", "was": "b", "stamp": "c", "reason": "r", "date": "d", "version": "v", "git": {}}
            paths.accepted.write_text(json.dumps({"train": {run: {"a": stamp}}}))
        self.files = self.readers(
            data.raw, data.id, part, run, plan.prediction_jobs[run], made, files, paths, plan.name
        )
        self.files[checkpoint] = [["train", "study.yaml", run], ["status", "study.yaml"]]
        self.folders = {path for path in root.rglob("*") if path.is_dir()}
        self.whole = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def checkpoint(self, file: Path, paths: Paths, run: str) -> None:
        """Leave what a training that was cut off after its first round leaves."""
        from fedshift.jobs import train

        class StopError(Exception):
            pass

        def save(self: Any, federation: Any) -> None:
            real(self, federation)
            raise StopError

        shutil.rmtree(paths.store)  # or the finished run would be taken from there
        real, train._Checkpoint.save = train._Checkpoint.save, save  # type: ignore[method-assign]
        try:
            with contextlib.suppress(StopError):
                self.must("train", "study.yaml", run)
        finally:
            train._Checkpoint.save = real  # type: ignore[method-assign]
        assert file.is_file()

    def readers(
        self,
        raw: str,
        data: str,
        part: str,
        run: str,
        job: str,
        made: DataFiles,
        files: StudyFiles,
        paths: Paths,
        name: str,
    ) -> dict[Path, list[list[str]]]:
        """Return every file with the commands that read it."""
        of = "study.yaml"
        train, report, status = ["train", of, run], ["report", of], ["status", of]
        predict, apply = ["predict", of, run, job], ["apply", run, "images", "--out", "applied"]
        partition, score = ["partition", of, part], ["score", of]
        bundle, accept = ["bundle", run, "--out", "bundled"], ["accept", of, "--reason", "none"]
        export = ["export", "mlflow", of, "--to", DATABASE]
        runs = paths.run_files(run)
        figure = ["figure", of, "sites"]
        return {
            Path("study.yaml"): [["check", of], status, score],
            Path("images/samples.csv"): [["check", of], ["prepare", of, data], ["apply", run, "images/samples.csv"]],
            made.card: [train, report, predict, ["check", of]],
            made.samples: [partition, train, predict, report, ["check", of]],
            made.pixels: [report, ["check", of]],
            made.images: [train, predict, report, figure],
            paths.partition(part): [train, predict, score, report, accept],
            runs.spec: [predict, apply, bundle, status, report],
            runs.manifest: [report, apply, status, export, accept],
            runs.rounds: [report, export, figure, ["ledger", of]],
            runs.model: [predict, apply, bundle],
            runs.clients: [predict, apply, bundle],
            paths.predictions(run, job): [score, report],
            **{f: [figure] for f in files.summarised if f.parent == files.folder},
            files.scores: [report, figure, export],
            paths.control(part): [report],
            files.missing: [report],
            files.ledger: [report],
            files.divergence: [report, ["figure", of, "divergence"]],
            files.headline: [["index"]],
            paths.accepted: [train, status, accept, partition],
        }

    def must(self, *words: str) -> None:
        code, said = call(words)
        if code:
            raise RuntimeError(f"{words}: {said}")

    def trial(self, file: Path, damage: Damage, rng: np.random.Generator, figures: Figures) -> None:
        """Damage a file, call all commands that read it, and put everything back.

        A recorded checksum is that of the damaged file: only the reading itself can find what is wrong.
        """
        content = damage(self.whole[self.root / file], rng)
        for words in self.files[file]:
            with contextlib.chdir(self.root):
                put(file, content)
                if file.is_file() and checksums.recorded(file):
                    checksums.record(file)
                figures.calls += 1
                try:
                    code, said = call(word.format(figures.calls) if word == DATABASE else word for word in words)
                except BaseException as error:
                    last = traceback.extract_tb(error.__traceback__)
                    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in last if "fedshift" in f.filename]
                    what = f"{file} {damage.__name__}: {' '.join(words)}: {type(error).__name__}: {error}"
                    figures.faults.append(f"{what[:300]} [{' '.join(ours[-4:])}]")
                    figures.traces.append("".join(traceback.format_exception(error)))
                else:
                    if code not in (0, 2):
                        figures.faults.append(f"{file} {damage.__name__}: {' '.join(words)}: ends with {code}")
                    if code == 2:
                        figures.refused += 1
                        # each fault of a study or of a table has a line of its own
                        if not said or any(len(line) > 2000 for line in said.splitlines()) or "Traceback" in said:
                            figures.faults.append(f"{file} {damage.__name__}: {' '.join(words)}: says {said[:300]!r}")
                        elif damage in ANY and not names(said, file):
                            figures.faults.append(
                                f"{file} {damage.__name__}: {' '.join(words)}: does not name it: {said[-300:]!r}"
                            )
                self.restore()

    def restore(self) -> None:
        for path in self.root.rglob("*"):
            if not path.is_dir() and (path not in self.whole or not path.is_file()):
                path.unlink()
        for folder in sorted((p for p in self.root.rglob("*") if p.is_dir() and p not in self.folders), reverse=True):
            folder.rmdir()
        for path, content in self.whole.items():
            if not path.is_file() or path.read_bytes() != content:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def trials(self, number: int = TRIALS, seed: int = SEED, only: str = "") -> Figures:
        figures = Figures()
        for file in self.files:
            if only not in str(file):
                continue
            rng = np.random.default_rng([seed, *file.name.encode()])
            for n in range(number):
                damage = SAME_KIND[file.suffix] if n % 2 else ANY[int(rng.integers(len(ANY)))]
                self.trial(file, damage, rng, figures)
        return figures


def late(*_: object) -> None:
    raise TimeoutError


def put(file: Path, content: bytes) -> None:
    """Write a file, or put a pipe in its place, which nobody fills."""
    file.unlink(missing_ok=True)
    if content == PIPE:
        os.mkfifo(file)
    else:
        file.write_bytes(content)


def names(said: str, file: Path) -> bool:
    """Return whether a message names a file, or the folder that it belongs to."""
    return file.name in said or (len(file.parts) > 1 and file.parent.name in said)


def call(words: Any) -> tuple[int, str]:
    """The exit code of a command, and what it writes to standard error."""
    said = io.StringIO()
    signal.alarm(PATIENCE)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = cli.main(list(map(str, words)))
    signal.alarm(0)
    return code, said.getvalue()


def main(trials: int = TRIALS, seed: int = SEED, only: str = "") -> int:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        figures = Campaign(Path(folder)).trials(trials, seed, only)
    print(
        f"{figures.calls} calls, {figures.refused} refused in a line, {len(figures.faults)} not:",
        *figures.faults,
        sep="\n",
    )
    if "-v" in sys.argv:
        print(*figures.traces, sep="\n\n")
    return 1 if figures.faults else 0


if __name__ == "__main__":
    words = [w for w in sys.argv[1:] if w != "-v"]
    sys.exit(main(*map(int, words[:2]), *words[2:]))
