"""A run as a MONAI bundle: MONAI itself verifies and runs it, and finds what `fedshift apply` finds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from own_images import CLASSES, Project, listing, rows
from patience import PATIENCE
from torch import Tensor, nn
from toy import clients, fingerprint, network

from fedshift.cli import parser as cli
from fedshift.core.errors import UserError
from fedshift.data.samples import TensorSamples
from fedshift.engine.prediction import probabilities
from fedshift.export.bundle import MARKER, export, own_folder
from fedshift.inferences import Inference, Predict
from fedshift.jobs.apply import chosen

pytest.importorskip("ignite", reason="pytorch-ignite is not installed: the extra 'bundle'")

FILES = {"config_file": "configs/inference.json", "meta_file": "configs/metadata.json"}


@pytest.fixture(scope="module")
def trained_project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def exported(project: Project, out: Path, name: str = "source", *settings: str, client: str | None = None) -> Path:
    return export(project.folder(), chosen(name, settings, client), out)


def files_of(bundle: Path) -> dict[str, str]:
    return {key: str(bundle / name) for key, name in FILES.items()}


def ran(bundle: Path, source: Path, **settings: Any) -> pd.DataFrame:
    """Return what the bundle's workflow writes about images, by path."""
    from monai.bundle import run

    run(**files_of(bundle), bundle_root=str(bundle), dataset_dir=str(source), **settings)
    found = pd.read_csv(bundle / "eval" / "predictions.csv", names=["path", "p0", "p1"])
    return found.set_index("path").sort_index()


def answers(project: Project, source: Path, name: str, *settings: str, **options: Any) -> pd.DataFrame:
    """Return what `fedshift apply` finds."""
    return project.apply(source, name, *settings, **options).table.set_index("path").sort_index()[["p0", "p1"]]


@pytest.mark.parametrize("client", [None, "north"])
@pytest.mark.parametrize("how", [("source",), ("tsmobn", "batch_size=4"), ("population", "batch_size=8")], ids=str)
def test_monai_finds_what_apply_finds(
    trained_project: Project, tmp_path: Path, how: tuple[str, ...], client: str | None
) -> None:
    source = listing(trained_project, "far.csv", rows(trained_project, "far").drop(columns="site"))
    found = ran(exported(trained_project, tmp_path / "bundle", *how, client=client), source)
    wanted = answers(trained_project, source, *how, client=client, out=tmp_path / "applied")
    assert len(found) == 21
    pd.testing.assert_frame_equal(found, wanted, check_exact=False, rtol=0, atol=1e-6, check_index_type=False)


def test_another_inference_is_chosen_where_it_runs(trained_project: Project, tmp_path: Path) -> None:
    bundle = exported(trained_project, tmp_path / "bundle")
    folder = tmp_path / "images"
    folder.mkdir()
    for path in rows(trained_project, "south")["path"]:
        (folder / path).write_bytes((trained_project.table.parent / path).read_bytes())
    found = [ran(bundle, folder), ran(bundle, folder, inference={"name": "tsmobn", "batch_size": 5})]
    wanted = [
        answers(trained_project, folder, "source", out=tmp_path / "a"),
        answers(trained_project, folder, "tsmobn", "batch_size=5", out=tmp_path / "b"),
    ]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.to_numpy(), other.to_numpy(), rtol=0, atol=1e-6)
    assert np.abs(found[0].to_numpy() - found[1].to_numpy()).max() > 1e-3


def test_monai_verifies_it(trained_project: Project, tmp_path: Path) -> None:
    from monai.bundle import ConfigWorkflow, verify_net_in_out

    bundle = exported(trained_project, tmp_path / "bundle")
    verify_net_in_out("network_def", **files_of(bundle), bundle_root=str(bundle))
    meta = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
    meta["network_data_format"]["outputs"]["pred"]["num_channels"] = 3
    (tmp_path / "wrong.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match="doesn't match"):
        verify_net_in_out(
            "network_def", **files_of(bundle) | {"meta_file": str(tmp_path / "wrong.json")}, bundle_root=str(bundle)
        )
    source = str(listing(trained_project, "far.csv", rows(trained_project, "far").drop(columns="site")))
    workflow = ConfigWorkflow(
        **files_of(bundle), workflow_type="infer", bundle_root=str(bundle), dataset_dir=source, logging_file=False
    )
    workflow.initialize()
    assert workflow.check_properties() == []


def test_from_the_command_line_and_in_its_own_folder(trained_project: Project, tmp_path: Path) -> None:
    """The commands of its README, by a process that knows nothing but the bundle."""
    out = tmp_path / "bundle"
    assert cli.main(["bundle", str(trained_project.folder()), "--out", str(out), "--inference", "tsmobn"]) == 0
    readme = (out / "docs" / "README.md").read_text(encoding="utf-8")
    (verify,) = [line.strip() for line in readme.splitlines() if "verify_net_in_out" in line]
    first = next(line.strip() for line in readme.splitlines() if "monai.bundle run" in line)
    source = listing(trained_project, "south.csv", rows(trained_project, "south"))
    for command in (verify, first.replace("FOLDER", str(source))):
        words = [sys.executable, *command.split()[1:]]
        done = subprocess.run(words, cwd=out, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
    assert len((out / "eval" / "predictions.csv").read_text().splitlines()) == 25


def test_it_tells_no_places_and_no_markup(trained_project: Project, tmp_path: Path) -> None:
    bundle = exported(trained_project, tmp_path / "bundle")
    texts = {p: p.read_text(encoding="utf-8") for p in bundle.rglob("*") if p.suffix in (".json", ".md")}
    assert len(texts) == 5
    assert not [p for p, text in texts.items() if str(trained_project.root) in text]
    readme = texts[bundle / "docs" / "README.md"]
    assert "&lt;b&gt;" in readme and "<" not in readme.replace("&lt;", "")
    assert CLASSES[1] in json.loads(texts[bundle / "configs" / "metadata.json"])["task"]


def test_exported_again_it_is_replaced(trained_project: Project, tmp_path: Path) -> None:
    bundle = exported(trained_project, tmp_path / "bundle")
    before = (bundle / "models" / "model.pt").read_bytes()
    exported(trained_project, bundle, client="south")
    assert (bundle / "models" / "model.pt").read_bytes() != before
    assert sorted(p.name for p in bundle.iterdir()) == ["configs", "docs", MARKER, "models"]


@pytest.mark.parametrize("mine", ["chapter.txt", "images/patient-7.png", "eval/predictions.csv"])
def test_what_is_not_ours_is_left_as_it_is(mine: str, trained_project: Project, tmp_path: Path) -> None:
    """A bundle is where MONAI looks for images, and where it writes what it finds."""
    bundle = exported(trained_project, tmp_path / "bundle")
    (bundle / mine).parent.mkdir(exist_ok=True)
    (bundle / mine).write_text("years of work")
    before = {p: p.read_bytes() for p in bundle.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=mine.partition("/")[0]):
        exported(trained_project, bundle, client="south")
    assert {p: p.read_bytes() for p in bundle.rglob("*") if p.is_file()} == before


def test_a_file_in_the_place_of_the_folder_is_left_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    out.write_text("years of work")
    with pytest.raises(UserError, match="fedshift did not write there"), own_folder(out):
        pass
    assert out.read_text() == "years of work"


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "bundle").symlink_to("disk")
    for content in ("one", "two"):
        with own_folder(tmp_path / "bundle") as new:
            (new / "file").write_text(content)
    assert (tmp_path / "bundle").is_symlink()
    assert (tmp_path / "disk" / "file").read_text() == "two"


def test_weights_that_hold_code_are_not_run(trained_project: Project, tmp_path: Path) -> None:
    bundle = exported(trained_project, tmp_path / "bundle")
    state = torch.load(bundle / "models" / "model.pt", weights_only=True)
    assert set(state) and all(isinstance(v, torch.Tensor) and v.is_contiguous() for v in state.values())

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    (bundle / "models" / "model.pt").write_bytes(pickle.dumps(Payload()))
    source = listing(trained_project, "far.csv", rows(trained_project, "far").drop(columns="site"))
    with pytest.raises((pickle.UnpicklingError, RuntimeError)):
        ran(bundle, source)
    assert not (tmp_path / "ran").exists()


def test_runs_without_a_network_for_others(
    trained_project: Project, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["bundle", str(trained_project.folder("local")), "--out", str(tmp_path / "bundle")]) == 2
    assert "--client" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def test_an_evaluator_without_gradients_lets_an_inference_take_steps() -> None:
    """The handler's life: in at the start, out at the end or after an error; the network keeps every bit."""
    from ignite.engine import Engine

    from fedshift.export.monai_parts import SiteInferer

    class Steps(Inference):
        """A step on all parameters after each batch."""

        gradients: ClassVar[bool] = True

        @contextmanager
        def on_site(self, model: nn.Module, batches: Callable[[], Iterator[Tensor]]) -> Iterator[Predict]:
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

            def predict(x: Tensor) -> Tensor:
                logits: Tensor = model(x)
                optimiser.zero_grad()
                logits.square().sum().backward()
                optimiser.step()
                return logits

            yield predict

    model, (x, y) = network(), clients()["b"]
    before, loader = fingerprint(model), [{"image": part} for part in x.split(5)]
    inferer = SiteInferer(Steps(), model, loader, "cpu")
    logits: list[Tensor] = []

    def step(_: Engine, batch: dict[str, Tensor]) -> None:
        with torch.no_grad():
            logits.append(inferer(batch["image"], model))
        if len(logits) == fails_at:
            raise OSError

    for fails_at in (-1, 2):
        logits.clear()
        engine = Engine(step)
        inferer.attach(engine)
        if fails_at > 0:
            with pytest.raises(OSError):
                engine.run(loader)
        else:
            engine.run(loader)
            expected = probabilities(model, TensorSamples(x, y), Steps(batch_size=5))
            np.testing.assert_allclose(torch.cat(logits).softmax(1), expected, rtol=1e-12)
        assert inferer.predict is None
        assert fingerprint(model) == before
        assert torch.is_grad_enabled()
