"""The way from a study's YAML to runs and their ids; every error at once; the schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fedshift import study
from fedshift.cli import main
from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.study import declaration, published
from fedshift.study.plan import Plan
from fedshift.study.run import Run

ROOT = Path(__file__).parents[2]
STUDIES = sorted((ROOT / "config" / "studies").glob("*.yaml"))
TINY: dict[str, Any] = {
    "title": "Tiny",
    "dataset": {"name": "own_images", "table": "samples.csv"},
    "partition": {"internal": ["A", "B"], "external": ["C"]},
    "model": "mlp",
    "training": {"rounds": 2, "lr": 0.1},
    "runs": [{"algorithm": "fedavg", "bn": ["aggregated", "local"]}, {"algorithm": "fedavg", "bn": "local_affine"}],
    "seeds": [0, 1],
    "inferences": ["source", "tsmobn"],
}


def write(folder: Path, content: dict[str, Any] | str, name: str = "tiny") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content), encoding="utf-8")
    return path


def plan(folder: Path, scale: Any = "mini", name: str = "tiny", **changes: Any) -> Plan:
    return study.load(write(folder, TINY | changes, name), scale)


def complaints(folder: Path, **changes: Any) -> list[str]:
    """Return the errors of TINY with changes, one a line, without the path of the file."""
    path = write(folder, TINY | changes)
    with pytest.raises(UserError) as caught:
        study.load(path, "mini")
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}.") for line in lines), lines
    return [line.removeprefix(f"{path}.") for line in lines]


def by_bn(runs: dict[str, Run]) -> dict[str, set[str]]:
    return {bn: {key for key, run in runs.items() if run.bn == bn} for bn in ("aggregated", "local", "local_affine")}


def test_every_combination_is_a_run(tmp_path: Path) -> None:
    runs = plan(tmp_path).runs
    found = {(run.algorithm.name, run.bn, run.seed) for run in runs.values()}
    assert found == {("fedavg", bn, seed) for bn in ("aggregated", "local", "local_affine") for seed in (0, 1)}
    assert len(runs) == 6


def test_an_id_names_algorithm_policy_and_digest(tmp_path: Path) -> None:
    for key, run in plan(tmp_path).runs.items():
        head, _, digest = key.rpartition("-")
        assert head == f"fedavg-{run.bn}"
        assert len(digest) == 10
        assert int(digest, 16) >= 0


def test_several_partitions_are_trained_on_each(tmp_path: Path) -> None:
    both = [{"internal": ["A", "B"], "external": ["C"]}, {"internal": ["A", "C"], "external": ["B"]}]
    found = plan(tmp_path, partition=both).runs
    assert {run.partition.title for run in found.values()} == {"B", "C"}
    assert len(found) == 12
    assert set(plan(tmp_path).runs) < set(found)


def test_order_of_keys_comments_and_written_out_defaults_do_not_matter(tmp_path: Path) -> None:
    first = plan(tmp_path)
    turned = yaml.safe_dump(dict(reversed(TINY.items())), sort_keys=False)
    spelled = turned.replace("model: mlp", "model: {name: mlp, hidden: 30}  # the default")
    assert "the default" in spelled
    again = study.load(write(tmp_path, f"# a remark\n{spelled}"), "mini")
    assert set(again.runs) == set(first.runs)
    assert again.view == first.view


def test_words_of_a_study_change_its_view_and_no_run(tmp_path: Path) -> None:
    first, other = plan(tmp_path), plan(tmp_path, title="Another")
    assert set(other.runs) == set(first.runs)
    assert other.view != first.view


def test_a_changed_setting_of_one_entry_changes_its_runs_only(tmp_path: Path) -> None:
    changed = [TINY["runs"][0], TINY["runs"][1] | {"training": {"lr": 0.2}}]
    before, after = (by_bn(plan(tmp_path, runs=runs).runs) for runs in (TINY["runs"], changed))
    assert before["aggregated"] == after["aggregated"]
    assert before["local"] == after["local"]
    assert not before["local_affine"] & after["local_affine"]


def test_a_setting_equal_to_the_studys_changes_nothing(tmp_path: Path) -> None:
    same = [grid | {"training": {"lr": 0.1}} for grid in TINY["runs"]]
    assert set(plan(tmp_path, runs=same).runs) == set(plan(tmp_path).runs)


@pytest.mark.parametrize(
    "change",
    [
        {"training": {"rounds": 3, "lr": 0.1}},
        {"model": {"name": "mlp", "hidden": 31}},
        {"transforms": ["flip"]},
        {"partition": TINY["partition"] | {"seed": 1}},
        {"dataset": TINY["dataset"] | {"size": 32}},
    ],
)
def test_what_all_runs_share_changes_all(tmp_path: Path, change: dict[str, Any]) -> None:
    assert not set(plan(tmp_path).runs) & set(plan(tmp_path, **change).runs)


def test_a_seed_more_adds_its_runs_and_keeps_the_others(tmp_path: Path) -> None:
    few, more = plan(tmp_path).runs, plan(tmp_path, seeds=[0, 1, 7]).runs
    assert set(few) < set(more)
    assert {more[key].seed for key in set(more) - set(few)} == {7}


def test_studies_share_runs(tmp_path: Path) -> None:
    first = plan(tmp_path, seeds=[0, 1])
    second = plan(tmp_path, name="other", title="Other", seeds=[1, 2], metrics=["auc"], inferences=["source"])
    shared = set(first.runs) & set(second.runs)
    assert {first.runs[key].seed for key in shared} == {1}
    assert len(shared) == 3


def test_an_id_is_the_same_in_another_process(tmp_path: Path) -> None:
    path = write(tmp_path, TINY)
    code = f"from pathlib import Path; from fedshift import study; print(*study.load(Path({str(path)!r}), 'mini').runs)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == list(study.load(path, "mini").runs)


def test_a_spec_is_read_back_as_the_same_run(tmp_path: Path) -> None:
    for key, run in plan(tmp_path, transforms=["flip", "scale_intensity"]).runs.items():
        again = registry.validated(Run, json.loads(json.dumps(run.spec)), "spec.json")
        assert again.id == key


PUBLISHED_IDS = ("fedavg-aggregated-000ae061b0", "fedavg-local-44e0426a14")
"""Ids of runs of TINY that were made while own images were called `manifest`."""


@pytest.mark.parametrize("name", ["own_images", "manifest"])
def test_a_new_name_of_a_dataset_changes_no_id(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = plan(tmp_path, dataset={"name": name, "table": "samples.csv"})
    assert set(PUBLISHED_IDS) < set(tiny.runs)
    (data,) = tiny.data.values()
    assert (data.id, data.raw) == ("manifest-d125e55121", "manifest-e61eda5f65")
    for run in tiny.runs.values():
        assert run.spec["data"]["dataset"]["name"] == "own_images"


def test_a_specification_with_an_earlier_name_is_read(tmp_path: Path) -> None:
    for key, run in plan(tmp_path).runs.items():
        spec = json.loads(json.dumps(run.spec))
        spec["data"]["dataset"]["name"] = "manifest"
        assert registry.validated(Run, spec, "spec.json").id == key


@pytest.mark.parametrize("name", ["own_images", "manifest"])
def test_a_selector_takes_an_earlier_name(name: str) -> None:
    assert published.checked({"data.dataset.name": name}) == {"data.dataset.name": "own_images"}


def test_an_inference_with_settings_of_its_own_has_an_id_of_its_own(tmp_path: Path) -> None:
    several = ["tsmobn", {"name": "tsmobn", "momentum": 0.5}, {"name": "tsmobn", "momentum": 0.9}, "source"]
    found = list(plan(tmp_path, inferences=several).inferences)
    assert found[0] == "tsmobn"
    assert found[1].startswith("tsmobn-")
    assert found[2:] == ["source"], "momentum 0.9 is the default"


def test_transforms_of_prepare_belong_to_the_data(tmp_path: Path) -> None:
    stained = plan(tmp_path, transforms=["macenko", "flip"])
    flipped = plan(tmp_path, transforms=["flip"])
    run = next(iter(stained.runs.values()))
    assert [t.name for t in run.data.prepare] == ["macenko"]
    assert [t.name for t in run.transforms] == ["flip"]
    assert not set(stained.data) & set(flipped.data)
    assert run.data.raw == next(iter(flipped.runs.values())).data.raw, "the raw files are the same"


def test_a_scale_is_merged_key_by_key(tmp_path: Path) -> None:
    scales = {"mini": {"training": {"rounds": 1}, "seeds": [5], "model": {"name": "densenet_small", "growth": 4}}}
    settings = {"model": {"name": "mlp", "hidden": 9}, "scales": scales}
    mini, paper = (plan(tmp_path, scale, **settings).study for scale in ("mini", "paper"))
    assert (mini.training, mini.seeds) == ({"rounds": 1, "lr": 0.1}, (5,))
    assert (mini.model.name, mini.model.spec()["growth"]) == ("densenet_small", 4)
    assert (paper.training, paper.seeds, paper.model.name) == ({"rounds": 2, "lr": 0.1}, (0, 1), "mlp")


def test_a_miniature_is_other_data_than_the_real_thing(tmp_path: Path) -> None:
    centres = {"internal": ["centre0"], "external": ["centre1"]}
    mini, paper = (plan(tmp_path, s, dataset="camelyon17", partition=centres) for s in ("mini", "paper"))
    assert not set(mini.runs) & set(paper.runs)
    assert not {d.raw for d in mini.data.values()} & {d.raw for d in paper.data.values()}


def test_own_data_are_the_same_at_every_scale(tmp_path: Path) -> None:
    assert set(plan(tmp_path, "mini").runs) == set(plan(tmp_path, "paper").runs)


def test_every_error_is_told_at_once(tmp_path: Path) -> None:
    assert complaints(
        tmp_path,
        titel="x",
        training={"rouns": 2, "batch_size": 1},
        model={"name": "mlp", "hiden": 3},
        partition={"internal": ["A", "B"], "external": ["A"]},
        runs=[
            {"algorithm": "fedavgg", "bn": ["aggregatd", "local"]},
            {"algorithm": ["fedavg", {"name": "fedavg", "mu": 3}], "trainng": {}, "training": {"lrr": 1}},
        ],
        seeds=[0, -1],
        inferences=["source", {"name": "tsmobn", "oder": 1}],
        metrics=["auc", "acuracy"],
        headline="brie",
        figures=["site"],
    ) == [
        "partition.external: site 'A' is internal and external at once; "
        "a site that trains cannot be an unseen one: remove it from one of the two lists",
        "model (mlp).hiden: unknown key 'hiden'; did you mean 'hidden'?",
        "training.batch_size: Input should be greater than or equal to 2 (got 1)",
        "training.rouns: unknown key 'rouns'; did you mean 'rounds'?",
        "runs.0.algorithm: unknown algorithm 'fedavgg'; did you mean 'fedavg'?",
        "runs.0.bn.0: unknown value 'aggregatd'; did you mean 'aggregated'?",
        "runs.1.algorithm.1 (fedavg).mu: unknown key 'mu'; known: none",
        "runs.1.training.lrr: unknown key 'lrr'; did you mean 'lr'?",
        "runs.1.trainng: unknown key 'trainng'; did you mean 'training'?",
        "seeds.1: Input should be greater than or equal to 0 (got -1)",
        "inferences.1 (tsmobn).oder: unknown key 'oder'; did you mean 'order'?",
        "metrics.1: unknown metric 'acuracy'; did you mean 'accuracy'?",
        "headline: unknown metric 'brie'; did you mean 'brier'?",
        "figures.0: unknown figure 'site'; did you mean 'sites'?",
        "titel: unknown key 'titel'; did you mean 'title'?",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"title": None}, "title: Input should be a valid string (got None)"),
        ({"inferences": ["tsmobm"]}, "inferences.0: unknown inference 'tsmobm'; did you mean 'tsmobn'?"),
        ({"inferences": []}, "inferences: Tuple should have at least 1 item after validation, not 0 (got [])"),
        ({"scales": {"minni": {}}}, "scales.minni: unknown value 'minni'; did you mean 'mini'?"),
        ({"scales": {"mini": 3}}, "scales: is not a mapping of scale to keys"),
        ({"scales": {"mini": {"titl": "x"}}}, "titl: unknown key 'titl'; did you mean 'title'?"),
        (
            {"runs": [{"algorithm": 3}]},
            "runs.0.algorithm: an algorithm is a name, or a mapping with the key 'name'; got 3",
        ),
        ({"dataset": "own_images"}, "dataset (own_images).table: Field required"),
    ],
)
def test_one_error(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    assert complaints(tmp_path, **changes) == [line]


def test_errors_of_the_other_scale_are_found_by_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = TINY | {"dataset": "camelyon17", "scales": {"paper": {"training": {"roundz": 3}}}}
    path = write(tmp_path, content)
    assert main(["check", str(path), "--scale", "mini"]) == 0
    assert main(["check", str(path)]) == 2
    assert "unknown key 'roundz'; did you mean 'rounds'?" in capsys.readouterr().err


def test_studies_are_found_by_name_path_or_all(tmp_path: Path) -> None:
    first, other = write(tmp_path, TINY), write(tmp_path, TINY, "other")
    assert list(study.select("other, tiny", "mini", tmp_path)) == ["other", "tiny"]
    assert list(study.select("all", "mini", tmp_path)) == ["other", "tiny"]
    assert list(study.select(str(first), "mini", other.parent / "nowhere")) == ["tiny"]
    with pytest.raises(UserError, match="unknown study 'tinny'; did you mean 'tiny'"):
        study.select("other,tinny", "mini", tmp_path)
    with pytest.raises(UserError, match="unknown scale 'big'"):
        study.load(first, "big")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", ["", "- a\n", "title: [", "title: x\ntitle: y\n", "title: &a x\n"])
def test_what_is_no_study_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(UserError, match=f"^{path}") as caught:
        study.load(path, "mini")
    assert "\n" not in str(caught.value)


def test_the_schema_on_disk_is_that_of_the_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    written = (ROOT / "config" / "study.schema.json").read_text(encoding="utf-8")
    assert written == capsys.readouterr().out, "run: make schema"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = declaration.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_study_of_the_project_is_sound(path: Path, validator: jsonschema.Draft202012Validator) -> None:
    validator.validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert main(["check", str(path)]) == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"titel": "x"},
        {"model": "mpl"},
        {"model": {"name": "mlp", "hiden": 1}},
        {"runs": []},
        {"runs": [{"algorithm": "fedavg", "bn": "loca"}]},
        {"metrics": ["acuracy"]},
        {"training": {"lr": -1}},
    ],
)
def test_the_schema_refuses_what_the_models_refuse(
    changes: dict[str, Any], validator: jsonschema.Draft202012Validator, tmp_path: Path
) -> None:
    validator.validate(TINY | {"runs": [{"algorithm": ["fedavg"], "bn": ["local"]}]})
    assert complaints(tmp_path, **changes)
    assert not validator.is_valid(TINY | changes)


def test_no_torch_is_imported_for_ids_and_code_digests() -> None:
    code = (
        "import sys; from pathlib import Path; from fedshift import study\n"
        "plan = study.load(Path('config/studies/demo.yaml'), 'mini')\n"
        "run = next(iter(plan.runs.values()))\n"
        "study.code('jobs.train', *run.plugins), study.code('page.page')\n"
        "study.code('jobs.prepare', run.data.dataset)\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'sklearn', 'monai') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "dataset", [{"title": "Better words"}, {"caveat": "Careful"}, {"licence": "CC0"}, {"citation": "We 2026"}]
)
def test_words_about_own_data_and_names_of_partitions_change_no_id(tmp_path: Path, dataset: dict[str, str]) -> None:
    before = plan(tmp_path)
    after = plan(tmp_path, dataset=TINY["dataset"] | dataset, partition=TINY["partition"] | {"held_out": "the others"})
    assert list(after.runs) == list(before.runs)
    assert [d.raw for d in after.data.values()] == [d.raw for d in before.data.values()]
    assert after.view != before.view, "but the page is made anew"


def test_settings_of_the_miniature_do_not_touch_the_real_data(tmp_path: Path) -> None:
    given = [{"name": "camelyon17", "patches": n} for n in (40, 80)]
    real = [plan(tmp_path, dataset=d, scale="paper") for d in given]
    small = [plan(tmp_path, dataset=d, scale="mini") for d in given]
    assert list(real[0].runs) == list(real[1].runs)
    assert not set(small[0].runs) & set(small[1].runs)


def test_a_shift_of_the_miniature_makes_other_data_and_the_usual_one_does_not(tmp_path: Path) -> None:
    small = [
        plan(tmp_path, dataset={"name": "camelyon17"} | settings, scale="mini")
        for settings in ({}, {"shift": 1}, {"shift": 1.75})
    ]
    assert list(small[0].runs) == list(small[1].runs)
    assert not set(small[0].data) & set(small[2].data)


def test_best_validation_needs_validation(tmp_path: Path) -> None:
    split = {"split": {"train": 0.8, "val": 0, "test": 0.2}}
    said = complaints(tmp_path, partition=TINY["partition"] | split)
    assert said == [
        "training.select: is best_validation, but partition.split leaves nothing to validate on; "
        "set select: last, or give val a share"
    ]
    plan(tmp_path, partition=TINY["partition"] | split, training={"select": "last"})


def test_settings_that_only_clash_together_are_named_too(tmp_path: Path) -> None:
    runs = [{"algorithm": "fedavg", "training": {"patience": 3}}]
    said = complaints(tmp_path, training={"select": "last"}, runs=runs)
    assert said == [
        "runs.0.training.patience: waits for a better validation mean, but select is last; drop one of the two"
    ]


SELECTED: dict[str, Any] = {
    **{key: TINY[key] for key in ("title", "model")},
    **{"dataset": "gaussians", "partition": {"internal": ["1", "2"]}, "training": {"rounds": 3}},
    **{"runs": [{"algorithm": "fedavg"}], "inferences": ["source"]},
}


def selected(folder: Path, **changes: Any) -> Run:
    """Return the one run of SELECTED with changes."""
    (run,) = study.load(write(folder, SELECTED | changes), "paper").runs.values()
    return run


def test_rounds_are_selected_by_the_headline_metric_unless_the_study_says_otherwise(tmp_path: Path) -> None:
    """A study whose headline is accuracy keeps the ids that it had before this could be chosen."""
    plain = selected(tmp_path)
    assert plain.training.select_by == "accuracy"
    assert "select_by" not in plain.training.identity()
    other = selected(tmp_path, headline="balanced_accuracy")
    assert other.training.select_by == other.training.identity()["select_by"] == "balanced_accuracy"
    assert other.id != plain.id
    kept = selected(tmp_path, headline="balanced_accuracy", training={"rounds": 3, "select_by": "accuracy"})
    assert kept.id == plain.id
    by_loss = selected(tmp_path, runs=[{"algorithm": "fedavg", "training": {"select_by": "loss"}}])
    assert by_loss.training.select_by == "loss"


def test_the_code_of_a_run_includes_the_metric_that_selects_its_rounds(tmp_path: Path) -> None:
    """Accuracy and the loss are computed by the engine; any other metric is a plug-in whose formula may change."""
    runs = {name: selected(tmp_path, training={"rounds": 3, "select_by": name}) for name in ("accuracy", "loss", "auc")}
    names = {name: {plugin.name for plugin in run.plugins} for name, run in runs.items()}
    assert names["accuracy"] == names["loss"] == names["auc"] - {"auc"}
    assert "auc" in names["auc"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"training": {"rounds": True}}, "training.rounds: must be a number (got True)"),
        ({"training": {"rounds": "3"}}, "training.rounds: must be a number (got '3')"),
        ({"training": {"lr": True}}, "training.lr: must be a number (got True)"),
        ({"seeds": ["0"]}, "seeds: must be a number (got ['0'])"),
        ({"seeds": [False]}, "seeds: must be a number (got [False])"),
        (
            {"dataset": TINY["dataset"] | {"classes": ["a", "a"]}},
            "dataset (own_images).classes: a name is empty or stands there twice",
        ),
        (
            {"dataset": TINY["dataset"] | {"classes": ["", "b"]}},
            "dataset (own_images).classes: a name is empty or stands there twice",
        ),
    ],
)
def test_what_pydantic_would_turn_into_a_number_and_classes_of_one_name_are_refused(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    assert any(said.startswith(line) for said in complaints(tmp_path, **changes)), complaints(tmp_path, **changes)


def test_a_number_may_be_written_with_an_exponent(tmp_path: Path) -> None:
    """YAML reads 1e-3, without a dot, as text."""
    (run, *_) = plan(tmp_path, training={"lr": "1e-3"}).runs.values()
    assert run.training.lr == 1e-3


def test_metrics_and_headline_follow_the_task(tmp_path: Path) -> None:
    spec: dict[str, Any] = {
        "title": "t",
        "question": "q",
        "task": "segmentation",
        "dataset": "discs",
        "partition": {"internal": ["north"], "external": ["east"]},
        "model": "unet_small",
        "runs": [{"algorithm": "fedavg"}],
        "inferences": ["source"],
        "figures": ["convergence"],
    }
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(spec))
    found = study.load(tmp_path / "s.yaml", "mini").study
    assert (found.headline, found.metrics[:2]) == ("dice", ("dice", "iou"))
    (tmp_path / "s.yaml").write_text(yaml.safe_dump({**spec, "headline": "iou", "metrics": ["iou"]}))
    found = study.load(tmp_path / "s.yaml", "mini").study
    assert (found.headline, found.metrics) == ("iou", ("iou",))
