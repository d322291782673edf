"""Input that means harm: nothing is executed, nothing is written elsewhere, and what is refused gets a line."""

from __future__ import annotations

import contextlib
import copy
import csv
import io
import os
import pickle
import random
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import fake_study
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from patience import PATIENCE
from PIL import EpsImagePlugin, Image

from fedshift import study
from fedshift.analysis import score, study_results
from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.data.prepared import Prepared
from fedshift.datasets.own_images import OwnImages
from fedshift.io.disk import atomic_folder
from fedshift.io.download import unpack
from fedshift.io.images import read_image
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table, write_table
from fedshift.io.text import read_yaml
from fedshift.jobs.apply import apply, chosen
from fedshift.jobs.predict import predict
from fedshift.jobs.prepare import obtain, prepare
from fedshift.jobs.train import train
from fedshift.page import applied, gallery, page, summary
from fedshift.study.plan import Plan

ROOT = Path(__file__).parents[2]


# ---- pickles


class Payload:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def by_torch(payload: Payload, legacy: bool) -> bytes:
    out = io.BytesIO()
    torch.save({"weight": payload}, out, _use_new_zipfile_serialization=not legacy)
    return out.getvalue()


def by_numpy(payload: Payload) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([payload], dtype=object), allow_pickle=True)
    return out.getvalue()


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return out.getvalue()


def in_a_header(content: bytes) -> bytes:
    """The start of a safetensors file, whose header is the pickle."""
    return len(content).to_bytes(8, "little") + content


PICKLES: dict[str, Callable[[Payload], bytes]] = {
    "protocol 0": lambda p: pickle.dumps(p, 0),
    "protocol 2": lambda p: pickle.dumps(p, 2),
    "protocol 5": lambda p: pickle.dumps(p, 5),
    "torch": lambda p: by_torch(p, legacy=False),
    "torch, legacy": lambda p: by_torch(p, legacy=True),
    "numpy": by_numpy,
    "zip": lambda p: zipped(pickle.dumps(p)),
    "header": lambda p: in_a_header(pickle.dumps(p)),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    """A small project with a trained run."""
    changes: dict[str, Any] = {
        "dataset": OwnImages(table=Path("images.csv"), size=8),
        "model": {"name": "mlp", "hidden": 4},
        "training": {"rounds": 1, "batch_size": 8, "select": "last"},
        "runs": [{"algorithm": "fedavg", "bn": "local"}],
        "inferences": ["source"],
        "seeds": [0],
    }
    plan, paths = fake_study.build(tmp_path_factory.mktemp("trained"), **changes)
    for run in plan.runs.values():
        train(run, paths)
    return plan, paths


@pytest.fixture
def trained_study(trained: tuple[Plan, Paths], tmp_path: Path) -> tuple[Plan, Paths]:
    shutil.copytree(trained[1].root, tmp_path / "project")
    return trained[0], Paths(tmp_path / "project")


def test_the_payloads_would_work(tmp_path: Path) -> None:
    for name in ("protocol 0", "protocol 2", "protocol 5"):
        mark = tmp_path / name
        pickle.loads(PICKLES[name](Payload(mark)))
        assert mark.exists()
    mark = tmp_path / "torch"
    torch.load(io.BytesIO(PICKLES["torch"](Payload(mark))), weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_in_the_place_of_tensors_is_refused_unread(
    trained_study: tuple[Plan, Paths], tmp_path: Path, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, paths = trained_study
    (run,) = plan.runs.values()
    folder, mark = paths.run(run.id), tmp_path / "executed"
    content, good = PICKLES[kind](Payload(mark)), {}
    for name in ("model.safetensors", "clients.safetensors"):
        good[name] = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        for refused in (
            lambda: predict(folder, plan.inferences, paths, tmp_path / "p.parquet"),
            lambda: apply(folder, tmp_path, chosen("source", [], None), tmp_path / "out"),
        ):
            Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
            with pytest.raises(UserError, match=rf"{name}: not a readable safetensors file"):
                refused()
        (folder / name).write_bytes(good[name])
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "state.safetensors").write_bytes(content)
    train(run, paths)
    assert "starting anew: " in capfd.readouterr().err
    assert {name: (folder / name).read_bytes() for name in good} == good
    assert not mark.exists()
    assert not (tmp_path / "p.parquet").exists()


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_in_the_place_of_images_is_refused_unread(
    trained_study: tuple[Plan, Paths], tmp_path: Path, kind: str
) -> None:
    plan, paths = trained_study
    (data,) = plan.data
    mark = tmp_path / "executed"
    (paths.data(data) / "images.npy").write_bytes(PICKLES[kind](Payload(mark)))
    with pytest.raises(UserError, match=r"images\.npy: not a readable array file"):
        Prepared(paths.data(data))
    assert not mark.exists()


# ---- archives

OUTSIDE = ["../out", "a/../../out", "{out}/new", "..\\out", "{out}/keep", ".."]
INSIDE = [
    "a",
    "a/b",
    "dir/",
    "./",
    "",
    "~",
    "-rf",
    "$(id)",
    "n\nl",
    "\x1b[31m",
    "é",
    "\udcff",
    "x" * 300,
    "y/" * 99 + "z",
]
LINKS = ["{out}", "{out}/keep", "../out", "a", "."]
KINDS = [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.CONTTYPE, b"Z"]


def a_tar(path: Path, out: Path, rng: random.Random) -> None:
    how = rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
    with tarfile.open(path, "w", format=how) as archive:
        for _ in range(rng.randint(1, 5)):
            info = tarfile.TarInfo(rng.choice(OUTSIDE + 3 * INSIDE).format(out=out))
            if rng.random() < 0.3:
                info.type, info.linkname = rng.choice(KINDS), rng.choice(LINKS).format(out=out)
            info.mode, info.mtime = rng.choice([0o644, 0o4777, 0]), rng.choice([0, -1, 2**33])
            info.size = 4 if info.isreg() else 0
            if how == tarfile.PAX_FORMAT and rng.random() < 0.2:
                info.pax_headers = {"path": rng.choice(OUTSIDE).format(out=out), "mtime": "1e99"}
            try:
                archive.addfile(info, io.BytesIO(b"evil") if info.isreg() else None)
            except (ValueError, tarfile.TarError):
                continue  # a name that this format cannot hold


def a_zip(path: Path, out: Path, rng: random.Random) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in rng.sample(OUTSIDE + 2 * INSIDE, rng.randint(1, 5)):
            info = zipfile.ZipInfo("x")
            info.filename = name.format(out=out)
            info.external_attr = rng.choice([0, stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR, stat.S_IFIFO]) << 16
            if name not in archive.namelist() and name != "\udcff":
                archive.writestr(info, str(out / "keep"))


def entries(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All below a folder: its kind and mode, and its content."""
    found = sorted(folder.rglob("*"))
    return {str(p): (p.lstat().st_mode, p.read_bytes() if stat.S_ISREG(p.lstat().st_mode) else b"") for p in found}


def test_archives_of_hostile_members_write_nothing_outside(tmp_path: Path) -> None:
    """Links, devices, absolute and climbing names, set-uid bits, flipped bytes: whole inside, or nothing at all."""
    rng = random.Random(0)
    out, folder, archive = tmp_path / "out", tmp_path / "work" / "target", tmp_path / "archive"
    out.mkdir()
    folder.parent.mkdir()
    (out / "keep").write_text("keep")
    before, kept, refused = entries(out), 0, 0
    for n in range(120):
        (a_tar if n % 2 else a_zip)(archive, out, rng)
        if rng.random() < 0.2:
            content = bytearray(archive.read_bytes())
            content[rng.randrange(len(content))] = rng.randrange(256)
            archive.write_bytes(content)
        try:
            with atomic_folder(folder) as new:
                unpack(archive, new, None)
        except UserError as error:
            assert str(error).startswith(f"{archive}: ")
            assert "\n" not in str(error)
            refused += 1
            assert list(folder.parent.iterdir()) == []
        else:
            kept += 1
            for mode, _ in entries(folder).values():
                assert stat.S_ISREG(mode) or stat.S_ISDIR(mode)
                assert not mode & (stat.S_ISUID | stat.S_ISGID)
            shutil.rmtree(folder)
        assert entries(out) == before
        assert {p.name for p in tmp_path.iterdir()} == {"archive", "out", "work"}
    assert min(kept, refused) > 10, "both happen"


# ---- names

NAMES = (
    "<script>alert(1)</script>",
    "../../up",
    "/etc/passwd",
    "$(touch pwned); touch pwned",
    'it\'s "quoted" & %s {0} {run}',
    "first\nsecond",
    "..",
    "é ü \u202e",
    "n" * 300,
    "=cmd()|'x'!A1",
)
CLASSES = ("benign</title><img src=x onerror=alert(1)>", "tumour\n$(touch pwned)")
FLAWED = {
    "title": "</title><script>alert(2)</script>",
    "question": "<img src=x>",
    "notes": ["<script>alert(3)</script>"],
    "partition": {"internal": NAMES[:4], "external": NAMES[4:], "by": "sample", "held_out": "<script>x</script>"},
    "model": {"name": "mlp", "hidden": 4},
    "transforms": ["scale_intensity"],
    "training": {"rounds": 1, "batch_size": 2},
    "runs": [{"algorithm": "fedavg", "bn": "local"}],
    "seeds": [0],
    "inferences": ["source", "tsmobn"],
}


def test_names_are_text_in_files_and_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hostile sites, classes, patients and titles, through every job from the images to the pages."""
    monkeypatch.chdir(tmp_path)
    rng, rows = np.random.default_rng(0), []
    (tmp_path / "own").mkdir()
    for k, site in enumerate(NAMES):
        for i in range(10):
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "own" / f"{k}-{i}.png")
            row = {"path": f"{k}-{i}.png", "label": CLASSES[i % 2], "site": site, "patient": f"<script>{site}{i // 2}"}
            rows.append(row)
    pd.DataFrame(rows).to_csv(tmp_path / "own" / "table.csv", index=False)
    words = dict.fromkeys(("title", "licence", "caveat"), "<script>") | {"citation": 'https://x.org/"onclick=alert(1)'}
    data = {"name": "own_images", "table": "../../own/table.csv", "size": 8, "classes": list(CLASSES), **words}
    path = tmp_path / "config" / "studies" / "hostile.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(FLAWED | {"dataset": data}))
    before, paths = set(tmp_path.rglob("*")), Paths(tmp_path)
    plan = study.load(path, "paper")
    made = work(plan, paths)
    new = {str(p.relative_to(tmp_path)) for p in set(tmp_path.rglob("*")) - before}
    assert [name for name in new if not re.fullmatch(r"[a-z0-9._/-]+", name)] == [], "no name is part of a path"
    for tags in (Tags(p) for p in made):
        assert "script" not in tags.names
        assert not [name for name in tags.attributes if name.startswith("on")]
    shown = made[0].read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "$(touch pwned); touch pwned" in shown
    with (paths.study("hostile") / "tables" / "sites.csv").open(newline="", encoding="utf-8") as file:
        cells = {cell for row in csv.reader(file) for cell in row}
    assert f"'{NAMES[-1]}" in cells, "a spreadsheet does not run it"
    assert set(NAMES[:-1]) <= cells


class Tags(HTMLParser):
    """Names of all tags of a page, and of their attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


def work(plan: Plan, paths: Paths) -> list[Path]:
    """Every job of a study, and a run applied to its images; returns the pages."""
    (data,), (run,) = plan.data.values(), plan.runs.values()
    obtain(data, paths.raw(data.raw), None)
    prepare(data, paths.raw(data.raw), paths.data(data.id))
    samples = read_table(paths.data(data.id) / "samples.parquet")
    write_table(paths.partition(run.partition_id), run.partition.assign(samples))
    train(run, paths)
    predict(paths.run(run.id), plan.inferences, paths, paths.predictions(run.id, plan.prediction_jobs[run.id]))
    score.score(plan, paths)
    summary.summarise(study_results.load(plan, paths))
    for name in plan.study.figures:
        study_results.draw(study_results.load(plan, paths), name)
    tracked = chosen("tsmobn", ["batch_size=4"], NAMES[0])
    found = apply(paths.run(run.id), data.dataset.inputs()[0], tracked)
    return [page.write(study_results.load(plan, paths)), gallery.write(plan.path.parent, paths), applied.write(found)]


@pytest.mark.parametrize(
    "name", ["$(touch pwned)", "a;b", "{study}", "<b>", "it's", "a,b", "-n", ".x", "a\nb", "x" * 101]
)
def test_a_study_whose_name_could_be_more_than_a_name_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    shutil.copy(ROOT / "config" / "studies" / "demo.yaml", path)
    with pytest.raises(UserError, match=r"cannot name a study: .*; rename the file"):
        study.load(path, "mini")


@pytest.mark.parametrize("name", ["demo", "fedbn-table1", "Étude 2.b", "x" * 100])
def test_a_study_may_be_called_as_people_call_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{name}.yaml"
    shutil.copy(ROOT / "config" / "studies" / "demo.yaml", path)
    assert study.load(path, "mini").name == name


# ---- a table of images


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("path,label,site\na.png,1,Zürich\n".encode("latin-1"), "not a readable table file: .*; save it as UTF-8"),
        (b"path,Path,label,site\na.png,a.png,1,x\n", "the column 'path' appears twice; rename one of them"),
        (b"path,label,site\na\x00.png,1,x\n", "line 2: no such image"),
        (b'path,label,site\n"' + 100_000 * b"y" + b'",1,x\n', "File name too long"),
        (b'path,label,site\n"' + 200_000 * b"y" + b'",1,x\n', "field larger than field limit"),
    ],
)
def test_a_hostile_table_stops_no_dry_run_and_gets_a_line(tmp_path: Path, content: bytes, words: str) -> None:
    """Snakemake asks for the fingerprint while it builds its graph: an error there would be a traceback."""
    table = tmp_path / "t.csv"
    table.write_bytes(content)
    dataset = OwnImages(table=table)
    assert isinstance(dataset.fingerprint(), str)
    with pytest.raises((UserError, OSError), match=words):
        dataset.open(tmp_path)


def test_an_image_that_is_a_program_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow knows PostScript by its content, whatever the file is called, and hands it to Ghostscript."""
    mark, interpreter, image = tmp_path / "executed", tmp_path / "gs", tmp_path / "image.png"
    interpreter.write_text(f"#!/bin/sh\ntouch '{mark}'\n")
    interpreter.chmod(0o755)
    image.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    with pytest.raises(UserError, match=r"image\.png: cannot be read as an image \(PostScript"):
        read_image(image)
    assert not mark.exists()
    with Image.open(image) as opened, pytest.raises(OSError):
        opened.load()
    assert mark.exists(), "as it would be otherwise"


@pytest.mark.filterwarnings("ignore::Warning")
def test_spoiled_images_are_images_or_refused(tmp_path: Path) -> None:
    """Every format that Pillow writes here, cut off or with flipped bytes."""
    rng, noise, whole = random.Random(0), np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8), []
    turned = Image.Exif()
    turned.update({0x0112: 6, 0x010F: "maker", 0x011A: 72.0})
    for kind in ("PNG", "JPEG", "TIFF", "BMP", "GIF", "WEBP", "JPEG2000", "PPM", "TGA", "DDS", "AVIF"):
        out = io.BytesIO()
        with contextlib.suppress(KeyError, OSError):  # not in every build of Pillow
            Image.fromarray(noise).save(out, kind, exif=turned)
            whole.append(out.getvalue())
    refused = 0
    for _ in range(600):
        content = bytearray(rng.choice(whole))
        for _ in range(rng.choice([1, 2, 8])):
            content[rng.randrange(min(len(content), rng.choice([40, 10_000])))] = rng.randrange(256)
        try:
            cut = content[: rng.choice([len(content), rng.randrange(len(content))])]
            (tmp_path / "spoiled").write_bytes(cut)
            image = read_image(tmp_path / "spoiled", own=True)
        except UserError:
            refused += 1
        else:
            assert (image.shape[2:], image.dtype) == ((3,), np.uint8)
    assert 100 < refused < 600


# ---- YAML


def nested(depth: int) -> str:
    return "a: " + "[" * depth + "]" * depth


BOMBS = {
    "aliases": "a: &a [x, x]\n" + "".join(f"b{i}: &b{i} [{', '.join(['*a'] * 9)}]\n" for i in range(9)),
    "deep": nested(100_000),
    "deep mapping": "{a: " * 100_000,
    "ten megabytes of keys": "".join(f"key{i}: {i}\n" for i in range(700_000)),
    "a huge number": f"seeds: [0x{'f' * 500_000}]",
    "many values": "seeds: [" + "1," * 60_000 + "1]",
}


def test_bombs_of_yaml_take_little_memory(tmp_path: Path) -> None:
    for name, text in BOMBS.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    code = """
import resource, sys
from pathlib import Path
from fedshift import study
from fedshift.core.errors import UserError
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    try:
        study.load(path, "mini")
    except UserError as error:
        print(path.stem, peak() - before, str(error).splitlines()[0][:200], sep="|")
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE)
    found = {name: (int(grown), said) for name, grown, said in (line.split("|") for line in done.stdout.splitlines())}
    assert found.keys() == BOMBS.keys(), done.stderr
    assert "anchors and aliases" in found["aliases"][1]
    assert "bytes are too many" in found["ten megabytes of keys"][1]
    assert max(grown for grown, _ in found.values()) < 150, "MiB"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"inferences": [{"name": "tsmobn", "momentum": [0.5] * 99, "batch_size": [8] * 99, "order": [1] * 99}]},
            "its lists make 970299 combinations, more than 1000",
        ),
        ({"seeds": list(range(20_000))}, "are more than 20000 runs"),
        ({"seeds": list(range(200)), "partition": [{"internal": ["centre0"], "seed": n} for n in range(99)]}, "runs"),
    ],
)
def test_a_few_lists_do_not_multiply_to_millions(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    base = yaml.safe_load((ROOT / "config" / "studies" / "demo.yaml").read_text())
    path = tmp_path / "many.yaml"
    path.write_text(yaml.safe_dump(base | changes))
    with pytest.raises(UserError, match=words):
        study.load(path, "paper")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 2020-01-01", "a date is not allowed; put text in quotes"),
        ("a: !!binary aGk=", "a bytes is not allowed"),
        ("a: !!set {x, y}", "a set is not allowed"),
        ("a: .inf", "not a finite number, or one that is too large"),
        ("a: .nan", "not a finite number, or one that is too large"),
        ("a: 1.0e+400", "not a finite number, or one that is too large"),
        ("a: 99999999999999999999", "not a finite number, or one that is too large"),
        ('a: "\\ud800"', "not valid YAML: found invalid Unicode character escape code"),
        ('a: "\\0"', "a character that cannot be printed"),
        ('"\\e[31m": 1', "a character that cannot be printed"),
    ],
)
def test_what_json_could_not_hold_is_no_setting(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.yaml").write_text(f"# first\n{text}\n")
    with pytest.raises(UserError, match=rf"a\.yaml, line 2: {words}"):
        read_yaml(tmp_path / "a.yaml")


# ---- mutated studies

BASES = ("demo", "own-hospitals-example", "unifed-table3", "fedtan-fig6", "fedbn-table1-abide")
GARBAGE: list[Any] = [
    *(-1, 0, 1, 10**18, 10**40, 1e308, float("inf"), float("nan"), -0.5, None, True, "", " ", "x" * 5000),
    *("../../etc/passwd", "<script>", "a\nb", "\u202eé", "1e5", "*", "mlp", "source", "aggregated"),
    *([], {}, [[]], [None], {"name": None}, {"name": ["a"]}, {"name": "fedavg", "x": 1}, {1: 2}, {None: 3}, {1.5: []}),
    *(b"\x00\xff", [1, 2, 3], {"a": {"b": {"c": [{}]}}}),
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place in a tree of mappings and lists."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def mutated(tree: Any, rng: random.Random) -> Any:
    """One to three accidents at random places."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.choice([1, 1, 2, 3])):
        *path, key = rng.choice(list(places(tree)))
        at = tree
        for step in path:
            at = at[step]
        match rng.randrange(6):
            case 0:
                del at[key]
            case 1 if isinstance(at, dict):
                at[str(key)[:-1] or "z"] = at.pop(key)
            case 2:
                at[key] = rng.choice([[at[key]], {"name": at[key]}, str(at[key])])
            case 3 if isinstance(at, dict):
                at[rng.choice(["zzz", "name", 1, None, "seed"])] = rng.choice(GARBAGE)
            case 4 if isinstance(at, list):
                at.append(copy.deepcopy(at[key]))
            case _:
                at[key] = copy.deepcopy(rng.choice(GARBAGE))
    return tree


@pytest.fixture(scope="module")
def bases() -> list[Any]:
    return [yaml.safe_load((ROOT / "config" / "studies" / f"{name}.yaml").read_text()) for name in BASES]


@pytest.mark.parametrize("block", range(4))
def test_a_mutated_study_is_valid_or_refused_in_lines(
    tmp_path: Path, bases: list[Any], block: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two hundred in all, through `fedshift check`: any other exception would end the test."""
    rng = random.Random(block)
    path = tmp_path / "studies" / "mutant.yaml"
    path.parent.mkdir()
    (tmp_path / "published").symlink_to(ROOT / "config" / "published")
    codes = []
    for _ in range(50):
        path.write_text(yaml.safe_dump(mutated(rng.choice(bases), rng), sort_keys=False), encoding="utf-8")
        codes.append(cli.main(["check", str(path)]))
        out, err = capsys.readouterr()
        assert codes[-1] == (2 if err else 0)
        assert "Traceback" not in err
        assert all(line.startswith(str(path)) or line.partition(": ")[2] for line in err.splitlines())
        assert out.startswith(str(path)) or codes[-1]
    assert {0, 2} == set(codes)
