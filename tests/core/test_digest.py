"""Digests of specifications, of files, and of code: what makes a job run again, and what does not."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fedshift.core import digest
from fedshift.core.digest import SHAPES_NO_RESULT, SHAPES_RESULTS, Code
from fedshift.core.plugin import KINDS

PACKAGE = Path(digest.__file__).parents[1]

# ---- digests of data


def test_the_digest_of_a_specification_is_that_of_its_canonical_json() -> None:
    text = b'{"a":[1,2.5,null],"b":{"c":true,"d":"\\u00e9"}}'
    spec = {"b": {"d": "é", "c": True}, "a": (1, 2.5, None)}
    assert digest.canonical(spec) == text.decode()
    assert digest.of(spec) == hashlib.sha256(text).hexdigest()[:10]
    assert len(digest.of(spec, 64)) == 64


def test_numbers_that_json_lacks_have_no_digest() -> None:
    with pytest.raises(ValueError, match="JSON"):
        digest.of({"lr": float("nan")})


@pytest.mark.parametrize("algorithm", ["sha256", "md5"])
def test_the_digest_of_a_file(tmp_path: Path, algorithm: str) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    assert digest.of_file(tmp_path / "f", algorithm) == hashlib.new(algorithm, content).hexdigest()


# ---- digests of code: a package made up for the test

MAIN = '''
"""What this module is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import helper
from .core.errors import UserError
from .folder import constant

if TYPE_CHECKING:
    from .types import Number

LENGTH = 3
"""How far to go."""


class Thing:
    """A thing."""

    def act(self, x: Number) -> int:
        """Act."""
        from .late import shift

        if x > 9:
            raise UserError("x", "is too large")
        return helper.twice(x) + shift + constant + LENGTH  # and that is it
'''
FILES = {
    "main.py": MAIN,
    "helper.py": "from numpy import mean as f\n\nfrom .deep import BASE\n\n\ndef twice(x):\n"
    "    return f(2 * x) + BASE\n",
    "deep.py": "BASE = 1\n",
    "late.py": "try:\n    import numpy\nexcept ImportError:\n    from .rescue import shift\n",
    "rescue.py": "shift = 1\n",
    "types.py": "Number = int\n",
    "unused.py": "x = 1\n",
    "__init__.py": "version = 1\n",
    "folder/__init__.py": "from .part import constant\n",
    "folder/part.py": "from ..deep import BASE\n\nconstant = BASE\nother = 1\n",
    "core/__init__.py": "",
    "core/errors.py": "class UserError(ValueError):\n    pass\n",
    "page/__init__.py": "",
    "page/page.py": "from ..core.errors import UserError\nfrom .part import value\n\ndone = value\n",
    "page/part.py": "value = 1\n",
}


class Package:
    """A package of the files above in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def digest(self, entry: str = "main") -> str:
        return Code(self.root).digest(frozenset({f"fedshift.{entry}"}))

    def changed(self, name: str, text: str, entry: str = "main") -> bool:
        assert FILES.get(name) != text
        before = self.digest(entry)
        self.write(name, text)
        return self.digest(entry) != before


@pytest.fixture
def package(tmp_path: Path) -> Package:
    return Package(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # and that is it", ""),
        ("    return", "    # so\n        return"),
        ("What this module is for.", "Other words."),
        ('"""A thing."""', '"""A fine thing."""'),
        ('"""Act."""', '"""Do."""'),
        ('        """Act."""\n', ""),
        ('"""How far to go."""', '"""Whatever."""'),
        ("LENGTH = 3", "LENGTH = (\n    3\n)"),
        ("x > 9", "(x > 9)"),
        ("version = 1", "version = 2"),
    ],
)
def test_comments_docstrings_and_layout_do_not_count(package: Package, old: str, new: str) -> None:
    name = next(name for name, text in FILES.items() if text.count(old) == 1)
    assert not package.changed(name, FILES[name].replace(old, new))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("main.py", "LENGTH = 3", "LENGTH = 4"),
        ("main.py", "+ shift", "- shift"),
        ("main.py", '"""Act."""', 'print("""Act.""")'),
        ("main.py", "x > 9", "x >= 9"),
        ("helper.py", "2 *", "3 *"),
        ("helper.py", "import mean as", "import median as"),
        ("rescue.py", "1", "2"),
        ("folder/__init__.py", "constant", "other as constant"),
        ("folder/part.py", "constant = BASE", "constant = 1"),
        ("folder/part.py", "other = 1", "other = 2"),
        ("deep.py", "1", "2"),
    ],
)
def test_code_counts_in_all_modules_that_are_imported(package: Package, name: str, old: str, new: str) -> None:
    assert package.changed(name, FILES[name].replace(old, new))


@pytest.mark.parametrize("name", ["unused.py", "types.py", "core/errors.py", "__init__.py", "page/part.py"])
def test_other_modules_and_infrastructure_do_not_count(package: Package, name: str) -> None:
    assert not package.changed(name, FILES[name] + "more = 1\n")


def test_what_runs_where_type_checkers_do_not_look_counts(package: Package) -> None:
    package.write("main.py", MAIN.replace("Number\n", "Number\nelse:\n    from .unused import x\n"))
    assert package.changed("unused.py", "x = 2\n")
    assert not package.changed("types.py", "Number = float\n")


def test_random_streams_count_though_they_lie_in_core(package: Package) -> None:
    package.write("core/rng.py", "from .errors import UserError\n")
    package.write("main.py", MAIN + "\n\nfrom .core import rng\n")
    assert package.changed("core/rng.py", "draw = 1\n")
    assert not package.changed("core/errors.py", "class UserError(Exception):\n    pass\n")


def test_a_folder_that_shapes_no_result_counts_for_its_own_jobs(package: Package) -> None:
    assert package.changed("page/part.py", "value = 2\n", "page.page")
    assert not package.changed("core/errors.py", "class UserError(Exception):\n    pass\n", "page.page")


def test_modules_that_change_places_count(package: Package) -> None:
    """Each definition is then reached under the name of the other."""
    package.write("main.py", "from . import deep as a, unused as b\n\nvalue = a.f(b.f(1))\n")
    digests = set()
    for first, second in (("deep.py", "unused.py"), ("unused.py", "deep.py")):
        package.write(first, "def f(x):\n    return 1 + x\n")
        package.write(second, "def f(x):\n    return 2 * x\n")
        digests.add(package.digest())
    assert len(digests) == 2


def test_a_circle_of_imports_ends(package: Package) -> None:
    package.write("deep.py", "from . import main\n\nBASE = 1\n")
    assert package.changed("deep.py", "from . import main\n\nBASE = 2\n")


def test_a_module_that_is_not_there(package: Package) -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        package.digest("nowhere")


# ---- digests of code: this package

PLUG_INS = {f"{kind}s" for kind in KINDS}
STAGES = ["jobs.prepare", "data.partition", "jobs.control", "jobs.train", "jobs.choose", "jobs.predict"]
STAGES += ["analysis.score", "page.summary", "analysis.study_results", "page.gallery"]


@pytest.mark.parametrize("name", [*SHAPES_NO_RESULT, *SHAPES_RESULTS])
def test_what_the_lists_name_is_there(name: str) -> None:
    stem = PACKAGE.parent.joinpath(*name.removesuffix(".").split("."))
    assert stem.is_dir() or stem.with_suffix(".py").is_file()


@pytest.mark.parametrize("stage", STAGES)
def test_no_job_imports_a_plug_in_by_its_name(stage: str) -> None:
    """Or an edit of that plug-in would make the work of all others again."""
    modules = [tuple(name.split(".")[1:]) for name in Code(PACKAGE).modules(f"fedshift.{stage}")]
    assert {module for module in modules if module[0] in PLUG_INS and not module[-1].startswith("_")} <= {
        (folder,) for folder in PLUG_INS
    }


TRAIN = {
    "fedavg": ("models.mlp", "algorithms.fedavg"),
    "fedprox": ("models.mlp", "algorithms.fedprox"),
    "scaffold": ("models.resnet20", "algorithms.scaffold"),
    "flipped": ("models.mlp", "algorithms.fedavg", "transforms.flip"),
}
PREDICT = {"source": "inferences.source", "tsmobn": "inferences.tsmobn"}
EVERY = {*TRAIN, *PREDICT}


def reached() -> dict[str, set[str]]:
    """The modules behind some trainings and predictions."""
    code = Code(PACKAGE)
    jobs = {name: ("jobs.train", *plugins) for name, plugins in TRAIN.items()}
    jobs |= {name: ("jobs.predict", *TRAIN["fedavg"], inference) for name, inference in PREDICT.items()}
    return {name: set().union(*(code.modules(f"fedshift.{m}") for m in job)) for name, job in jobs.items()}


REACHED = reached()


@pytest.mark.parametrize(
    ("module", "again"),
    [
        ("io/disk.py", set()),
        ("io/download.py", set()),
        ("core/errors.py", set()),
        ("jobs/accept.py", set()),
        ("cli/steps.py", set()),
        ("analysis/effects.py", set()),
        ("page/page.py", set()),
        ("study/plan.py", set()),
        ("study/declaration.py", set()),
        ("datasets/camelyon17.py", set()),
        ("figures/sites.py", set()),
        ("engine/local_training.py", {*TRAIN}),
        ("nn/batchnorm.py", EVERY),
        ("core/rng.py", EVERY),
        ("inferences/tsmobn.py", {"tsmobn"}),
        ("algorithms/fedprox.py", {"fedprox"}),
        ("transforms/flip.py", {"flipped"}),
        ("models/_resnet.py", {"scaffold"}),
        ("engine/prediction.py", {*PREDICT}),
    ],
)
def test_what_an_edit_of_a_module_trains_or_predicts_again(module: str, again: set[str]) -> None:
    name = module.removesuffix(".py").replace("/", ".")
    assert (PACKAGE / module).exists()
    assert {job for job, modules in REACHED.items() if f"fedshift.{name}" in modules} == again
