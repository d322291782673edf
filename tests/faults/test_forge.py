"""Forgeries with records that fit: `verify` or `verify --deep` names them, and no remedy makes them official."""

from __future__ import annotations

import re
from pathlib import Path

import forge
import pytest

from fedshift.core.errors import UserError, UserErrors
from fedshift.io.checksums import record
from fedshift.io.paths import Paths


@pytest.fixture(scope="module")
def forger(tmp_path_factory: pytest.TempPathFactory) -> forge.Forger:
    return forge.Forger(tmp_path_factory.mktemp("forged"))


def file_of(forger: forge.Forger, part: str) -> Path:
    return next(file for output in forger.outputs for file in output.every if part in str(file))


PREDICTIONS = "predictions-"
SHALLOW = {
    (PREDICTIONS, "edited by another program"): "does not state the id of its run or data",
    (PREDICTIONS, "rows doubled"): "cannot be scored: sample .* is predicted twice",
    (PREDICTIONS, "rows dropped"): "cannot be scored: holds no predictions",
    (PREDICTIONS, "NaN"): "cannot be scored: a probability is NaN",
    (PREDICTIONS, "another site"): "cannot be scored: a sample has another site than in the partition",
    ("rounds.parquet", "lower losses"): "differs from its second copy in results/store",
    ("manifest.json", "another commit"): "differs from its second copy in results/store",
    ("samples.parquet", "edited by another program"): "does not state the id of its run or data",
    ("partitions/", "rows doubled"): "has two rows of",
}


@pytest.mark.parametrize(("part", "how"), SHALLOW)
def test_verify_names_a_forgery(forger: forge.Forger, part: str, how: str) -> None:
    change = (forge.FORGERIES | {how: change for (_, how), change in forge.NAMED.items()})[how]
    with forger.here():
        file = file_of(forger, part)
        if not forger.applies(change, file):
            change = forge.unnamed
        word, said = forger.said({file: change}, how)
    assert word == "verify"
    assert re.search(rf"{file}: {SHALLOW[part, how]}", said), said
    assert f"--forcerun {file}" in said


@pytest.mark.parametrize(
    ("part", "how", "what", "forced"),
    [
        ("images.npy", "edited", "does not agree with pixels.parquet", ["images.npy"]),
        ("pixels.parquet", "no contrast", "does not follow from the images", ["results/data/"]),
        (PREDICTIONS, "all of them right", "gives scores that differ from scores.csv", [PREDICTIONS, "scores.csv"]),
        ("scores.csv", "edited", "does not follow from the predictions", [PREDICTIONS, "scores.csv"]),
        (
            "divergence.csv",
            "rows doubled",
            "has a row that does not follow from the study, or has it twice",
            ["divergence.csv"],
        ),
        (
            "divergence.csv",
            "another site",
            "has a row that does not follow from the study, or has it twice",
            ["divergence.csv"],
        ),
        ("samples.parquet", "all of one patient", "cannot be split as the partition records it", ["samples.parquet"]),
    ],
)
def test_the_remedy_makes_no_forgery_official(
    forger: forge.Forger, part: str, how: str, what: str, forced: list[str]
) -> None:
    """What is made again comes from files that were not forged, also where it was the other one of the two."""
    change = (forge.FORGERIES | {how: change for (_, how), change in forge.NAMED.items()})[how]
    with forger.here():
        file = file_of(forger, part)
        word, said = forger.said({file: change}, how)
    assert word == "deep"
    assert f"{file}: {what}" in said
    made = said.rpartition("--forcerun ")[2]
    assert [part for part in forced if part not in made] == []


def test_deep_names_each_table_figure_and_page_that_was_changed(forger: forge.Forger) -> None:
    """All at once: nothing that is compared is made of another file that the report writes."""
    with forger.here():
        reported = next(output for output in forger.outputs if output.rule == "report").every
        changed = [file for file in reported if forger.applies(forge.edited, file)]
        word, said = forger.said(dict.fromkeys(changed, forge.edited), "edited")
        assert forger.verify("--deep")[0] == 0
    assert word == "deep"
    wanted = {"study.html", "numbers.parquet", "summary.csv", "effects.csv", "headline.json", "sites.svg"}
    assert wanted <= {file.name for file in changed}
    assert [file for file in changed if f"{file}: is not what the results give" not in said] == []
    # what nothing else is compared with may be what was changed, and is made again, too
    assert all(part in said.rpartition("--forcerun ")[2] for part in ("results/controls/", "divergence.csv"))


def test_what_the_docs_call_taken_on_trust_is_not_noticed(forger: forge.Forger) -> None:
    """So that the list in the docs is no longer than it must be."""
    with forger.here():
        every = {file.name: file for output in forger.outputs for file in output.every}
        changes = {every["source.json"]: forge.edited, every["card.json"]: forge.NAMED["card.json", "other classes"]}
        assert {file.name for file in changes} == forge.TRUSTED
        word, _ = forger.said(changes, "edited")
    assert word == "nothing"
    docs = (Path(__file__).parents[2] / "docs" / "what-can-go-wrong.md").read_text(encoding="utf-8")
    trusted = docs.partition("**Taken on trust.**")[2].partition("\n\n")[0]
    assert {name for name in forge.TRUSTED if f"`{name}`" in trusted} == forge.TRUSTED


def test_a_run_that_was_trained_anew_is_no_forgery_of_its_old_copy(forger: forge.Forger) -> None:
    with forger.here():
        folder = next(Paths().store.glob("*/*/"))
        other = folder.with_name("0" * 32)
        other.mkdir()
        try:
            for file in folder.glob("[!.]*"):
                (other / file.name).write_bytes(file.read_bytes() if file.name == "spec.json" else b"of other data")
                record(other / file.name)
            assert forger.verify()[0] == 0
        finally:
            for file in other.iterdir():
                file.unlink()
            other.rmdir()


def test_several_errors_are_read_as_the_first_of_them() -> None:
    several = UserErrors([UserError("a", "is wrong", "mend it"), UserError("b", "is lost")])
    assert (several.where, several.what, several.remedy) == ("a", "is wrong", "mend it")
    assert str(several) == "a: is wrong; mend it\nb: is lost"
