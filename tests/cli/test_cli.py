"""The command line: what it prints, what it says of a mistake, and the code it exits with."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.core import registry
from fedshift.core.errors import Interrupted
from fedshift.io import disk
from fedshift.io.paths import Paths
from fedshift.io.text import write_json

ROOT = Path(__file__).parents[2]
TINY = """
title: Tiny
dataset: {name: own_images, table: ../../own/samples.csv, size: 8}
partition: {internal: [A], external: [B]}
model: mlp
training: {rounds: 1, batch_size: 2}
runs: [{algorithm: fedavg}]
inferences: [source]
"""


@pytest.fixture(autouse=True)
def project_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one study, entered."""
    (tmp_path / "config" / "studies").mkdir(parents=True)
    (tmp_path / "config" / "studies" / "tiny.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, os.environ.get(name, "1"))  # put back afterwards what main sets
    return tmp_path


def plan() -> study.Plan:
    return study.load(Path("config/studies/tiny.yaml"), "mini")


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a bad command gets."""
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "Traceback" not in err
    return err.strip()


@pytest.mark.parametrize(
    "kind", ["algorithm", "dataset", "model", "addon", "inference", "metric", "figure", "transform"]
)
def test_list_prints_one_name_a_line_and_where_it_comes_from(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", f"{kind}s"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [[name, "built in"] for name in sorted(registry.discover(kind))]


def test_list_prints_the_plug_ins_of_all_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    lines = [tuple(line.split(maxsplit=2)) for line in capsys.readouterr().out.splitlines()]
    assert lines == [(kind, name, "built in") for kind in registry.KINDS for name in sorted(registry.discover(kind))]


def test_list_prints_studies(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy("config/studies/tiny.yaml", "config/studies/another.yaml")
    assert cli.main(["list", "studies"]) == 0
    names = capsys.readouterr().out.splitlines()
    assert names == sorted(["another", "tiny", *study.names(ROOT / "config" / "studies")])


def own_images(changes: str = "") -> None:
    """The images that the study is about, with some rows more."""
    Path("own").mkdir()
    Image.new("RGB", (8, 8)).save("own/0.png")
    for n in range(1, 21):
        shutil.copy("own/0.png", f"own/{n}.png")
    rows = "".join(f"{n}.png,{n % 2},{'AB'[n // 10]}\n" for n in range(20))
    Path("own/samples.csv").write_text(f"path,label,site\n{rows}{changes}")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, "fedshift 0.2.0\n")


def test_help_lists_each_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    listed = re.findall(r"^  ([a-z]+) {2,}\S", capsys.readouterr().out.partition("Projects:")[2], re.MULTILINE)
    assert cli.main(["none"]) == 2
    known = capsys.readouterr().err.partition("known: ")[2].strip().split(", ")
    assert stop.value.code == 0
    assert sorted(listed) == [name for name in known if name.isalpha()]
    assert len(set(listed)) == len(listed) >= 21


POSITIVE = (
    "config/studies/tiny.yaml: positive: 'positive' is the positive class: sensitivity is the share of it that is found"
)
FEW_OF_BOTH = "few images (5 of 'negative', 5 of 'positive'): scores of these classes are rough there"


NOT_YET = "  not checked before the data are prepared: whether each image can be read, copies, images without contrast"


def without_power(out: str, tested: str) -> list[str]:
    """The lines of a check without what so few patients can show, which is nothing."""
    lines = out.splitlines()
    start = lines.index(f"  beforehand, with {tested}, and 1 training:")
    assert lines[start + 1] == "    no loss of accuracy can be seen outside"
    assert lines[start + 3].startswith("    assumed: ")
    return lines[:start] + lines[start + 4 :]


def test_check_of_a_good_study_says_what_it_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    own_images()
    assert cli.main(["check", "tiny"]) == 0
    assert without_power(capsys.readouterr().out, "10 test images outside, 2 at home") == [
        "config/studies/tiny.yaml: 1 run, 1 way of inference",
        POSITIVE,
        "  own/samples.csv: 20 images of 2 sites, patients unknown",
        "    A (internal): 10 images, patients unknown; 5 negative, 5 positive",
        "    B (external): 10 images, patients unknown; 5 negative, 5 positive",
        *(f"  warning: site {site!r} has {FEW_OF_BOTH}" for site in "AB"),
        "  warning: patients are unknown: images of one patient may train and test, so that scores at home look too "
        "good, and intervals are too narrow",
        NOT_YET,
    ]


def faults(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that `fedshift check` prints of a bad study."""
    assert cli.main(["check", "tiny"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    return err.splitlines()


def test_check_finds_every_fault_of_a_table_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    own_images("20.png,1,A \nlost.png,1,A\n19.png,9,B\n,1,B\n")
    path = Path("config/studies/tiny.yaml")
    path.write_text(path.read_text().replace("batch_size: 2", "batch_size: 20"))
    assert faults(capsys) == [
        "own/samples.csv, line 25: path is empty; fill it in",
        "own/samples.csv, line 24: label '9' is none of the 2 classes (negative, positive); "
        "write 0 to 1 or the name of a class, or name all classes in dataset.classes",
        "own/samples.csv, line 23: no such image: own/lost.png; "
        "get it again, remove its row, or leave it out: dataset.skip_unreadable: true",
        "own/samples.csv, line 24: '19.png' is the image of own/samples.csv, line 21; list it once",
        "partition: site 'A' is also spelt 'A ' in the data (images: 1); "
        "spell it alike everywhere: spaces, case and the Unicode form count",
        "client 'A': has 9 training images, fewer than one batch of 20; "
        "lower training.batch_size, or make the site external",
    ]


@pytest.mark.parametrize(("named", "other"), [("Z\u00fcrich", "Zu\u0308rich"), ("Ulm", "ULM"), ("Ulm", " Ulm")])
def test_check_refuses_another_spelling_of_a_site(named: str, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    own_images()
    table = Path("own/samples.csv")
    rows = table.read_text().replace(",A\n", f",{named}\n").replace(f",{named}\n", f",{other}\n", 3)
    table.write_text(rows, encoding="utf-8")
    path = Path("config/studies/tiny.yaml")
    path.write_text(path.read_text().replace("[A]", f"[{named}]"), encoding="utf-8")
    (line,) = faults(capsys)
    shown = ascii(other) if "\u0308" in other else repr(other)
    assert line.startswith(f"partition: site {named!r} is also spelt {shown} in the data (images: 3); spell it alike")


def test_check_knows_labels_that_count_from_one(capsys: pytest.CaptureFixture[str]) -> None:
    own_images()
    table = Path("own/samples.csv")
    table.write_text(table.read_text().replace(",1,", ",2,").replace(",0,", ",1,"))
    assert faults(capsys) == [
        "own/samples.csv, line 3: label '2' is none of the 2 classes (negative, positive), as in 9 more rows; "
        "labels run from 1 to 2 here, and must run from 0 to 1: write 0 for negative, and so on, "
        "or the names of classes"
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("size: 8", "size: 8, classes: [NO, YES]", "dataset (own_images).classes.0: must be text, and is true or"),
        ("[A]", "[1]", "partition.internal.0: must be text, and is a number (got 1); put it in quotes"),
    ],
)
def test_a_name_that_yaml_takes_for_something_else(
    old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("config/studies/tiny.yaml")
    path.write_text(path.read_text().replace(old, new))
    assert said in faults(capsys)[0]


def test_check_prints_what_to_beware_of(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own").mkdir()
    rows = ["path,label,site,patient"]
    for n in range(40):
        site = "ABCC"[n // 10]
        Image.new("RGB", (8, 8), (n, n, n)).save(f"own/{n}.png")
        label = 0 if site == "A" else n % 2
        patient = {4: "p1", 5: "P1", 10: "p1", 30: "", 31: "p0"}.get(n, f"q{n}")
        rows.append(f"{n}.png,{label},{site},{patient}")
    Path("own/samples.csv").write_text("\n".join(rows) + "\n")
    assert cli.main(["check", "tiny", "--scale", "mini"]) == 0
    assert without_power(capsys.readouterr().out, "10 test patients outside, 2 at home")[1:] == [
        POSITIVE,
        "  own/samples.csv: 40 images of 3 sites, 37 patients",
        "    A (internal): 10 images, 9 patients; 10 negative, 0 positive",
        "    B (external): 10 images, 10 patients; 5 negative, 5 positive",
        "    C (no role): 20 images, 19 patients (unknown for images: 1); 10 negative, 10 positive",
        "  warning: site 'A' is to train, and has no image of class 'positive'",
        f"  warning: site 'B' has {FEW_OF_BOTH}",
        "  warning: site 'C' (images: 20) has no role in the study",
        "  warning: patients at several sites: 1, at internal and external ones: 1; "
        "they count as different people; leave out at one site whoever is the same",
        "  warning: patients 'p1', 'P1' differ only in spelling, and count as one person; if they are several, name "
        "them apart",
        "  warning: classes go with sites (Cramér's V 0.58): a network may tell the classes by the scanner, and scores "
        "at home do not show it",
        NOT_YET,
    ]


def make_data() -> None:
    """Call the commands that prepare and partition the images."""
    (run,) = plan().runs.values()
    for command in (["download", run.data.raw], ["prepare", run.data.id], ["partition", run.partition_id]):
        assert cli.main([command[0], "tiny", command[1]]) == 0


def test_check_names_copies_once_data_are_prepared(capsys: pytest.CaptureFixture[str]) -> None:
    """All 20 images are black: one image at two sites."""
    own_images()
    make_data()
    capsys.readouterr()
    assert cli.main(["check", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = "10 images at A and 10 images at B"
    shared = f"Pixel-identical images shared by internal and external sites: 1 shared ({counts})"
    assert f"  PROBLEM: {shared}" in lines
    assert f"  PROBLEM: Images without contrast: {counts}" in lines
    torn = f"Pixel-identical images with different labels: {counts}"
    assert f"  PROBLEM: {torn}" in lines


def test_a_copy_that_the_table_no_longer_lists_is_told_as_one_of_before(capsys: pytest.CaptureFixture[str]) -> None:
    own_images()
    make_data()
    rows = Path("own/samples.csv").read_text().splitlines()
    Path("own/samples.csv").write_text("\n".join(rows[:-1]) + "\n")
    capsys.readouterr()
    assert cli.main(["check", "tiny"]) == 0
    before = "of the images prepared before the table changed"
    assert f"  PROBLEM: {before}: Images without contrast" in capsys.readouterr().out


def test_a_second_file_of_one_name_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """A page of config/studies/tiny.yaml is there; tiny.yaml in another folder would replace it."""
    own_images()
    Path("other").mkdir()
    spec = yaml.safe_load(Path("config/studies/tiny.yaml").read_text())
    spec["dataset"]["table"] = str(Path("own/samples.csv").absolute())
    Path("other/tiny.yaml").write_text(yaml.safe_dump(spec))
    headline = Paths().study_files("tiny").headline
    headline.parent.mkdir(parents=True)
    write_json(headline, {"study": "tiny", "file": "config/studies/tiny.yaml"})
    assert cli.main(["check", "tiny"]) == 0
    capsys.readouterr()
    assert cli.main(["check", "other/tiny.yaml"]) == 2
    words = "the name 'tiny' is already used by config/studies/tiny.yaml: its page and tables would be replaced"
    assert words in capsys.readouterr().err
    Path("config/studies/tiny.yaml").unlink()
    assert cli.main(["check", "other/tiny.yaml"]) == 0


def test_check_names_images_that_were_saved_again(capsys: pytest.CaptureFixture[str]) -> None:
    """B shows the images of A as JPEG files: no pixel is the same."""
    own_images()
    rng = np.random.default_rng(0)
    for n in range(10):
        one, other = Path(f"own/{n}.png"), Path(f"own/{n + 10}.png")
        coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        coarse.resize((32, 32), Image.Resampling.BICUBIC).save(one)
        Image.open(one).save(other.with_suffix(".jpg"), quality=85)
        Image.open(other.with_suffix(".jpg")).save(other)
    make_data()
    capsys.readouterr()
    assert cli.main(["check", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if "PROBLEM" in line]
    (suspect,) = [line for line in lines if "look alike" in line]
    assert suspect.startswith("  suspect: Images that look alike (saved again, resized, mirrored or slightly cropped)")
    found = re.search(r"(\d+) pairs \((\d+) images at A and (\d+) images at B\)", suspect)
    assert found and min(map(int, found.groups())) >= 8


def test_check_looks_for_the_files_of_the_study(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("config/studies/tiny.yaml")
    path.write_text(path.read_text() + "published: {tables: figures.csv}\n")
    assert cli.main(["check", "tiny"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}.dataset: no such file: own/samples.csv",
        f"{path}.published.tables: no such file: config/studies/figures.csv",
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("20.png,2,A", "own/samples.csv, line 22: label '2' is none of the 2 classes"),
        ("lost.png,1,A", "own/samples.csv, line 22: no such image: own/lost.png"),
        ("20.png,,A", "own/samples.csv, line 22: label is empty"),
    ],
)
def test_check_looks_into_the_table(row: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    own_images(row + "\n")
    assert refused(capsys, "check", "tiny").startswith(said)


def test_check_compares_the_sites_of_study_and_table(capsys: pytest.CaptureFixture[str]) -> None:
    own_images()
    path = Path("config/studies/tiny.yaml")
    path.write_text(path.read_text().replace("external: [B]", "external: [Bee]"))
    assert refused(capsys, "check", "tiny") == "partition: unknown site 'Bee'; known: A, B"


def test_a_folder_that_may_not_be_written_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    own_images()

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "results")

    monkeypatch.setattr(Path, "mkdir", refuse)
    given = plan()
    assert refused(capsys, "download", "tiny", next(iter(given.data.values())).raw) == (
        "results: Permission denied; check the path and its permissions"
    )


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        (
            "{} list models > /dev/full",
            2,
            "fedshift list: No space left on device; free some space, or print elsewhere\n",
        ),
        ("{} list models >&-", 0, ""),
        ("{} list nothing 2>&- >&-", 2, ""),
        (
            "mkdir gone; cd gone; rmdir ../gone; {} list models",
            2,
            "the current folder: does not exist any more; change to another one\n",
        ),
    ],
)
def test_an_output_or_a_folder_that_is_gone_is_one_line(tmp_path: Path, script: str, code: int, line: str) -> None:
    command = script.format(f"{quote(sys.executable)} -m fedshift")
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, line)


@pytest.mark.parametrize("threads", ["0", "-1", "two"])
def test_threads_are_a_whole_number_from_1(threads: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["list", "models", "--threads", threads])
    assert stop.value.code == 2
    assert "is not a whole number from 1" in capsys.readouterr().err


def test_check_tells_every_error_and_exits_with_2(project_folder: Path) -> None:
    path = project_folder / "config" / "studies" / "bad.yaml"
    spoiled = yaml.safe_load(TINY) | {"model": "mpl", "trainin": {}, "inferences": ["source", "tsmo"], "seeds": [-1]}
    path.write_text(yaml.safe_dump(spoiled))
    done = subprocess.run([sys.executable, "-m", "fedshift", "check", "bad"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    where = "config/studies/bad.yaml"
    assert done.stderr.splitlines() == [
        f"{where}.model: unknown model 'mpl'; did you mean 'mlp'?",
        f"{where}.seeds.0: Input should be greater than or equal to 0 (got -1)",
        f"{where}.inferences.1: unknown inference 'tsmo'; did you mean 'tsmobn'?",
        f"{where}.trainin: unknown key 'trainin'; did you mean 'training'?",
    ]


@pytest.mark.parametrize(
    "command", [["check", "tinny"], ["train", "tinny", "x"], ["predict", "tinny", "x", "source"], ["report", "tinny"]]
)
def test_an_unknown_study(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, *command) == "study: unknown study 'tinny'; did you mean 'tiny'?"


@pytest.mark.parametrize(
    ("command", "what"),
    [("train", "run"), ("prepare", "dataset"), ("download", "raw data"), ("partition", "partition")],
)
def test_an_id_that_the_study_lacks(command: str, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(capsys, command, "tiny", "fedavg-aggregated-0123456789")
    assert line.startswith(f"study tiny: has no {what} 'fedavg-aggregated-0123456789'; ")


def test_a_run_of_nearly_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = plan().runs
    assert refused(capsys, "train", "tiny", name[:-1]).endswith(f"; did you mean {name!r}?")


def test_an_inference_that_no_study_asks_for(capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = plan().runs
    line = refused(capsys, "predict", "tiny", name, "sorce")
    assert line == "inference: no study asks for 'sorce'; did you mean 'source'?"


def test_a_prediction_with_a_run_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    (name,) = plan().runs
    line = refused(capsys, "predict", "tiny", name, "source")
    assert line.startswith(f"results/runs/{name}: no such run, or it is not trained; ")
    assert not Path("results").exists()


def test_a_partition_of_data_that_are_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    (run,) = plan().runs.values()
    line = refused(capsys, "partition", "tiny", run.partition_id)
    assert line == f"results/data/{run.data.id}/samples.parquet: no such file"


def test_scores_without_predictions(capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "score", "tiny").startswith("study tiny: no predictions of any run")


def test_a_mirror_that_is_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config/studies/real.yaml").write_text(
        TINY.replace("table:", "archive: own.tar, url: 'https://a.b/c', table:")
    )
    (data,) = study.load(Path("config/studies/real.yaml"), "paper").data.values()
    command = ("download", "real", data.raw, "--scale", "paper", "--mirror", "nowhere")
    assert refused(capsys, *command).startswith("nowhere: no such mirror directory; ")


def test_a_full_disk_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (data,) = plan().data.values()
    monkeypatch.setattr(disk, "commit", full)
    line = refused(capsys, "download", "tiny", data.raw)
    assert line.startswith(f"resources/{data.raw}/source.json: no space left on the disk; free some space")
    assert list(Path(f"resources/{data.raw}").iterdir()) == []


@pytest.mark.parametrize("command", [["list", "algorithm"], ["check"], [], ["check", "tiny", "--scale", "x"]])
def test_a_command_that_is_none_exits_with_2(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(command)
    assert caught.value.code == 2
    assert "usage: fedshift" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(Interrupted(), 143), (KeyboardInterrupt(), 130)])
def test_what_is_stopped_exits_with_the_codes_of_a_shell(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object) -> None:
        raise error

    monkeypatch.setattr(study, "select", stopped)
    assert cli.main(["train", "tiny", "x"]) == code
    assert capsys.readouterr().err.count("\n") == 1


def test_a_defect_of_the_program_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(study, "select", broken)
    with pytest.raises(ZeroDivisionError):
        cli.main(["train", "tiny", "x"])


def test_no_numeric_library_gets_more_threads_than_the_job() -> None:
    cli.main(["list", "studies", "--threads", "3"])
    found = {os.environ[f"{name}_NUM_THREADS"] for name in ("OMP", "OPENBLAS", "MKL")}
    assert found == {"3"}


@pytest.mark.parametrize("command", ["check tiny", "list algorithms"])
def test_short_commands_import_neither_torch_nor_scipy(command: str, project_folder: Path) -> None:
    code = (
        f"import sys; from fedshift.cli import main; main({command.split()!r}); "
        "assert not {'torch', 'scipy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=project_folder)


def test_both_ways_to_call_it() -> None:
    own = Path(sys.executable).with_name("fedshift")
    module = [sys.executable, "-m", "fedshift"]
    for call in ([str(own)], module):
        out = subprocess.run([*call, "list", "studies"], capture_output=True, text=True, check=True)
        assert "tiny" in out.stdout.splitlines()


@pytest.mark.parametrize(("word", "meant"), [("chek", "check"), ("aply", "apply"), ("reprot", "report")])
def test_a_misspelt_command_gets_the_one_meant(word: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([word, "demo"]) == 2
    assert capsys.readouterr().err == f"fedshift: unknown command {word!r}; did you mean {meant!r}?\n"
