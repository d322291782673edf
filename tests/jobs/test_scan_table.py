"""The table of a folder of scans: pseudonyms, labels, and nothing else of what headers say."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import stat
from pathlib import Path
from typing import Any

import forked
import pandas as pd
import pydicom
import pytest
import yaml
from PIL import Image
from pydicom.datadict import DicomDictionary
from pydicom.dataset import Dataset
from scan_files import VOLUMES, altered, copied, dicom

from fedshift import study
from fedshift.cli import parser as cli
from fedshift.io.paths import Paths
from fedshift.io.tables import read_table

HEADER = "path,label,site,patient,series,modality,image_type,manufacturer,model,protocol"


@pytest.fixture(autouse=True)
def hospital(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with scans of three patients, entered; one of the files has no image, and one no patient."""
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    device = {"Manufacturer": "ACME", "ManufacturerModelName": "One, two", "ProtocolName": "T2  ax"}
    # each file is another image
    numbers = itertools.count(1)
    for path, patient, uid in (("s1/IM1", "007", "1.2.1"), ("s1/IM2", "007", "1.2.1"), ("s2/IM1.dcm", "8", "1.2.2")):
        changes = {"PatientID": patient, "StudyInstanceUID": uid, "AccessionNumber": f"A{uid[-1]}", **device}
        changes["SOPInstanceUID"] = f"1.9.{next(numbers)}"
        altered("MR_small.dcm", tmp_path / "scans" / path, **changes)
    altered(
        "MR_small.dcm", tmp_path / "scans/s3/IM1.dcm", PatientID="", StudyInstanceUID="1.2.3", SOPInstanceUID="1.9.4"
    )
    copied(dicom("reportsi.dcm"), tmp_path / "scans/s3/report.dcm")
    return tmp_path


def table(*words: str) -> int:
    return cli.main(["table", "scans", "--site", "north", *words])


def rows(path: str = "images.csv") -> pd.DataFrame:
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def called(*words: str, code: int = 0) -> str:
    """All that a command prints in a process of its own, warnings of libraries included."""
    done = forked.run("fedshift", words, Path.cwd(), forked.environment() | {"PYTHONPATH": str(forked.SOURCES)})
    said = done.stdout + done.stderr
    assert done.returncode == code, said
    return said


def digest(name: str, kind: str = "patient", key: Path = Path("pseudonyms.key")) -> str:
    secret = key.read_bytes().strip()
    return kind[0] + hmac.new(secret, f"{kind}\0{name}".encode(), hashlib.sha256).hexdigest()[:12]


def test_a_row_for_each_file_with_an_image(capsys: pytest.CaptureFixture[str]) -> None:
    assert table() == 0
    assert Path("images.csv").read_text(encoding="utf-8").splitlines()[0] == HEADER
    found = rows()
    assert found["path"].tolist() == ["scans/s1/IM1", "scans/s1/IM2", "scans/s2/IM1.dcm", "scans/s3/IM1.dcm"]
    assert found["patient"].tolist() == [digest("7"), digest("7"), digest("8"), ""]
    assert set(found["site"]) == {"north"}
    assert set(found["label"]) == {""}
    assert found.iloc[0, 5:].tolist() == ["MR", "DERIVED/SECONDARY/OTHER", "ACME", "One, two", "T2 ax"]
    assert len({*found["series"]}) == 1, "all are copies of one file, and so of one series"
    assert found["series"][0] == digest("1.3.6.1.4.1.5962.1.3.4.1.20040826185059.5457", "series")
    told = capsys.readouterr().err
    assert "images.csv: 4 files of 2 patients; 0 have a label\n" in told
    assert "images.csv: 1 file left out: without an image (a report, a plan, an index)\n" in told
    assert "images.csv: 1 file without a patient's number: the cell patient is empty\n" in told
    assert "007" not in told


def test_the_secret_is_made_once_for_its_owner_alone_and_never_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert table() == 0
    key = Path("pseudonyms.key")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_text()
    assert table("--out", "again.csv") == 0
    assert key.read_text() == secret
    assert rows("again.csv").equals(rows())
    assert table("--out", "other.csv", "--key", "other.key") == 0
    assert set(rows("other.csv")["patient"]) & set(rows()["patient"]) == {""}
    out, err = capsys.readouterr()
    assert secret.strip() not in out + err + Path("images.csv").read_text()


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("patient,label\n007,ill\n8,well\n9,well\n", ["ill", "ill", "well", ""]),
        ("Study, Label\n1.2.1,ill\n1.2.3,well\n", ["ill", "ill", "", "well"]),
        ("study,label\nA2,ill\n", ["", "", "ill", ""]),
    ],
)
def test_labels_of_patients_or_studies(labels: str, found: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("labels.csv").write_text(labels)
    assert table("--labels", "labels.csv") == 0
    assert rows()["label"].tolist() == found
    told = capsys.readouterr().err
    assert f"; {sum(map(bool, found))} have a label" in told
    assert ("1 labels have a patient or a study that no file has" in told) == ("9,well" in labels)


def test_faults_of_the_call_are_one_line_and_write_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Path("twice.csv").write_text("patient,label\n007,ill\n007,well\n")
    Path("both.csv").write_text("patient,study,label\n007,1,ill\n")
    Path("empty").mkdir()
    Path("images.csv").write_text("path,label\n")
    cases = {
        (
            "scans",
        ): "images.csv: is there already, perhaps with labels; name a file that is not there, or move this one",
        ("lost", "--out", "t.csv"): "lost: no such folder",
        ("empty", "--out", "t.csv"): "empty: holds neither scans nor images",
        ("scans", "--out", "t.csv", "--labels", "twice.csv"): "twice.csv, line 3: its patient stands in an earlier row",
        ("scans", "--out", "t.csv", "--labels", "both.csv"): "both.csv: needs the column label and one of patient and",
        ("scans", "--out", "t.csv", "--site", " "): "--site: is empty",
    }
    for words, line in cases.items():
        assert cli.main(["table", "--site", "north", *words]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    assert not Path("t.csv").exists()


def test_files_that_cannot_be_read_are_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("scans/s1/cut.dcm").write_bytes(dicom("MR_small.dcm").read_bytes()[:90])
    Path("scans/s1/notes.txt").write_text("no image")
    assert table() == 0
    assert len(rows()) == 4
    told = capsys.readouterr().err
    assert "scans/s1/cut.dcm: is not DICOM: the mark DICM is missing; get it again, or leave it out" in told
    assert "scans: passed over, neither an image by its ending nor DICOM: 1 file" in told


def test_volumes_and_images_belong_to_the_first_folder(capsys: pytest.CaptureFixture[str]) -> None:
    copied(VOLUMES / "anatomical.nii", Path("more/sub-1/anat/brain.nii"))
    copied(VOLUMES / "example4d.nii.gz", Path("more/volume.nii.gz"))
    for name in ("more/sub-1/photo.png", "more/loose.png", "more/=1/photo.png"):
        Path(name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(name)
    assert cli.main(["table", "more", "--site", "=north", "--out", "more/images.csv"]) == 0
    found = read_table(Path("more/images.csv"), text=True).fillna("")
    wanted = {"./=1/photo.png": "=1", "loose.png": "", "sub-1/anat/brain.nii": "sub-1"}
    wanted |= {"sub-1/photo.png": "sub-1", "volume.nii.gz": "volume"}
    assert dict(zip(found["path"], found["patient"], strict=True)) == {
        path: digest(patient) if patient else "" for path, patient in wanted.items()
    }
    assert "1 file in no folder of a patient: the cell patient is empty" in capsys.readouterr().err


def test_what_is_no_image_or_a_copy_is_counted_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A dose, a segmentation, a screenshot, a localiser and a copy lie beside the four scans."""
    kinds = {
        "dose": {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.481.2"},
        "seg": {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.66.4"},
        "screenshot": {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7"},
        "localiser": {"ImageType": ["ORIGINAL", "PRIMARY", "LOCALIZER"]},
        "copy": {"SOPInstanceUID": "1.9.1"},
    }
    for number, (name, changes) in enumerate(kinds.items()):
        altered("MR_small.dcm", Path(f"scans/s4/{name}.dcm"), **{"SOPInstanceUID": f"1.8.{number}", **changes})
    assert table() == 0
    assert len(rows()) == 4
    told = capsys.readouterr().err
    for words in (
        "1 file left out: RT Dose Storage, no image",
        "1 file left out: Segmentation Storage, no image",
        "1 file left out: secondary captures, such as screenshots, since there are other images",
        "1 file left out: localisers, since there are other images",
        "1 file left out: copies of others, with the same SOPInstanceUID",
    ):
        assert words in told


def test_screenshots_alone_are_listed(tmp_path: Path) -> None:
    for n in (1, 2):
        changes = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.7", "SOPInstanceUID": f"1.8.{n}"}
        altered("MR_small.dcm", Path(f"shots/{n}.dcm"), **changes)
    assert cli.main(["table", "shots", "--site", "north", "--out", "shots.csv"]) == 0
    assert len(rows("shots.csv")) == 2


@pytest.mark.parametrize("patient", ["UNKNOWN", "0", "N/A"])
def test_a_number_that_stands_for_nobody_is_no_patient(patient: str, capsys: pytest.CaptureFixture[str]) -> None:
    altered("MR_small.dcm", Path("some/a.dcm"), PatientID=patient, SOPInstanceUID="1.8.1")
    assert cli.main(["table", "some", "--site", "north", "--out", "some.csv"]) == 0
    assert rows("some.csv")["patient"].tolist() == [""]
    assert "1 file whose patient's number stands for nobody" in capsys.readouterr().err


def test_spellings_of_a_number_have_one_pseudonym() -> None:
    for n, patient in enumerate(("12", "012", "12.0", " 12 ", "\uff11\uff12")):
        changes = {"PatientID": patient, "SOPInstanceUID": f"1.8.{n}", "SpecificCharacterSet": "ISO_IR 192"}
        altered("MR_small.dcm", Path(f"some/{n}.dcm"), **changes)
    assert cli.main(["table", "some", "--site", "north", "--out", "some.csv"]) == 0
    assert rows("some.csv")["patient"].nunique() == 1


def test_burnt_in_names_and_numbers_in_paths_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    altered("MR_small.dcm", Path("scans/miller42/a.dcm"), PatientID="Miller42", BurnedInAnnotation="YES")
    assert table() == 0
    told = capsys.readouterr().err
    assert "1 file with text in the pixels that may identify the patient (BurnedInAnnotation): look at them" in told
    assert "1 file with the patient's number in the path" in told


# ---- nothing else of a header leaves

MARK = "ZANZIBAR"
TEXTS = {"AE", "CS", "LO", "LT", "PN", "SH", "ST", "UC", "UR", "UT", "DA", "TM", "DT", "AS", "UI"}
READ = {
    *("Rows", "Columns", "PhotometricInterpretation", "VOILUTFunction", "BurnedInAnnotation", "PatientID"),
    *("StudyInstanceUID", "AccessionNumber", "Manufacturer", "ManufacturerModelName", "ProtocolName"),
}


def marked(target: Path, **elements: Any) -> Path:
    """A scan with a word in every text of its header that is not read, in private elements and sequences, too."""
    content = pydicom.dcmread(dicom("MR_small.dcm"))
    nested = Dataset()
    number = 0
    with pydicom.config.disable_value_validation():
        for tag, (kind, many, _, retired, keyword) in DicomDictionary.items():
            group = tag >> 16
            if kind not in TEXTS or retired or keyword in READ or group in (0, 2, 4) or keyword == "SOPClassUID":
                continue
            del many
            content.add_new(tag, kind, MARK)
            if number % 50 == 0:
                nested.add_new(tag, kind, MARK)
            number += 1
        content.RequestAttributesSequence = [nested]
        content.ReferencedImageSequence = [nested]
        private = content.private_block(0x0099, MARK, create=True)
        private.add_new(1, "LO", MARK)
        for name in ("SourceApplicationEntityTitle", "ImplementationVersionName"):
            setattr(content.file_meta, name, MARK)
        # images with one UID would be copies
        content.SOPInstanceUID = f"{MARK}.{target.as_posix()}"
        for name, value in elements.items():
            setattr(content, name, value)
        target.parent.mkdir(parents=True, exist_ok=True)
        content.save_as(target)
    assert number > 1000
    return target


def test_text_in_the_place_of_a_code_stays_out() -> None:
    """Codes have capitals, digits, spaces and underscores, at most 16."""
    for name, kind in (("s1/IM1", ["ORIGINAL", "Anna Muster"]), ("s1/IM2", "AXIAL"), ("s2/IM1.dcm", ["A" * 17])):
        file = Path("scans", name)
        header = pydicom.dcmread(file)
        header.ImageType, header.Modality = kind, "x-ray"
        header.save_as(file)
    assert table() == 0
    assert rows()["image_type"].tolist() == ["", "AXIAL", "", "DERIVED/SECONDARY/OTHER"]
    assert rows()["modality"].tolist() == ["", "", "", "MR"]


def test_no_other_text_of_a_header_leaves(tmp_path: Path) -> None:
    """A word in each of them occurs in no output, prepared data or message; broken files are among them."""
    codes = {"Modality": "MR", "ImageType": ["ORIGINAL", "PRIMARY"]}
    own = {"Manufacturer": "ACME", "ManufacturerModelName": "One", "ProtocolName": "T2", **codes}
    for number in range(12):
        patient = {
            "PatientID": f"SECRET{number // 2}",
            "StudyInstanceUID": f"1.2.{number // 2}",
            "AccessionNumber": "A",
        }
        marked(tmp_path / f"marked/IM{number}", **own, **patient)
    whole = (tmp_path / "marked/IM0").read_bytes()
    (tmp_path / "marked/cut.dcm").write_bytes(whole[:-3000])
    (tmp_path / "marked/head.dcm").write_bytes(whole[: len(whole) // 2])
    marked(tmp_path / "marked/number.dcm", WindowCenter=None, **codes)
    for path in (tmp_path / "marked").iterdir():
        assert MARK.encode() in path.read_bytes()
    printed = called("table", "marked", "--site", "north", "--out", "t.csv")
    found = rows("t.csv")
    found["label"] = [str(number % 2) for number in range(len(found))]
    found["site"] = ["north" if number % 2 else "far" for number in range(len(found))]
    found.to_csv("t.csv", index=False)
    Path("config/studies").mkdir(parents=True)
    spec: dict[str, Any] = {
        "title": "T",
        "dataset": {"name": "own_images", "table": "../../t.csv", "size": 8, "skip_unreadable": True},
        "partition": {"internal": ["north"], "external": ["far"], "split": {"train": 0.6, "val": 0, "test": 0.4}},
        "model": "mlp",
        "training": {"rounds": 1, "batch_size": 2, "select": "last"},
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
        "subgroups": ["manufacturer", "protocol"],
    }
    for skip, code in ((True, 0), (False, 2)):
        spec["dataset"]["skip_unreadable"] = skip
        Path("config/studies/s.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
        printed += called("check", "s", code=code)
    spec["dataset"]["skip_unreadable"] = True
    Path("config/studies/s.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    plan, paths = study.load(Path("config/studies/s.yaml"), "mini"), Paths(tmp_path)
    (data,) = plan.data.values()
    printed += called("download", "s", data.raw) + called("prepare", "s", data.id)
    samples = read_table(paths.data_files(data.id).samples)
    assert {*samples["manufacturer"]} == {"ACME"}
    assert {*samples["protocol"]} == {"T2"}
    for text in (printed, found.to_csv(), samples.to_csv()):
        assert MARK not in text
        assert "SECRET" not in text
        assert "1.2.3" not in text
    written = [path for path in tmp_path.rglob("*") if path.is_file() and "marked" not in path.parts]
    assert {"t.csv", "images.npy", "samples.parquet", "card.json"} <= {path.name for path in written}
    for path in written:
        assert MARK.encode() not in path.read_bytes(), path
        if path.suffix == ".parquet":
            assert MARK not in read_table(path).to_csv()


def test_a_mark_in_the_character_set_does_not_leave_either(tmp_path: Path) -> None:
    """pydicom warns of a set that it does not know, and of texts that do not fit one."""
    for name in ("a.dcm", "b.dcm"):
        content = pydicom.dcmread(dicom("MR_small.dcm"))
        content.PatientID = "SECRET"
        content.ProtocolName = "T2 Zürich"
        content.SpecificCharacterSet = "ISO_IR 192"
        content.save_as(tmp_path / name)
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(
            data.replace(b"ISO_IR 192", f"{MARK}99".encode() if name == "a.dcm" else b"ISO_IR 100")
        )
    Path("chars").mkdir()
    for name in ("a.dcm", "b.dcm"):
        Path(name).rename(f"chars/{name}")
    printed = called("table", "chars", "--site", "north")
    assert MARK not in printed + Path("images.csv").read_text(encoding="utf-8")
    assert "SECRET" not in printed
    assert "Warning" not in printed


def test_an_empty_label_is_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert table() == 0
    capsys.readouterr()
    spec = {
        "title": "T",
        "dataset": {"name": "own_images", "table": "../../images.csv", "size": 8},
        "partition": {"internal": ["north"], "external": []},
        "model": "mlp",
        "training": {"rounds": 1},
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
    }
    Path("config/studies").mkdir(parents=True)
    Path("config/studies/s.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    assert cli.main(["check", "s"]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "images.csv, line 2: label is empty, as in 3 more rows; fill it in"
