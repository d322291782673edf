"""Digests of specifications, of files, and of code: what makes a job run again, and what does not."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest

from fedshift.core import digest
from fedshift.core.digest import COUNTED, INFRASTRUCTURE, Code

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
from .core.console import say
from .core.errors import UserError
from .core.limits import Limit
from .folder import constant

if TYPE_CHECKING:
    from .types import Number

MOST: Limit[int] = 9
LENGTH = 3
"""How far to go."""


class Thing:
    """A thing."""

    why = "it has to be"

    def act(self, x: int) -> int:
        """Acts."""
        from .late import shift

        if x > MOST:
            size = len(str(x))
            what = f"{x} has {size} digits"
            raise UserError("x", what)
        say("acting")
        return helper.twice(x) + shift + constant + LENGTH  # and that is it
'''
FILES = {
    "main.py": MAIN,
    "helper.py": "from numpy import mean as f\n\nfrom .deep import BASE\n\n\ndef twice(x):\n"
    "    return f(2 * x) + BASE\n",
    "deep.py": "BASE = 1\n",
    "late.py": "shift = 1\n",
    "types.py": "Number = int\n",
    "unused.py": "x = 1\n",
    "__init__.py": "version = 1\n",
    "folder/__init__.py": "from .part import constant\n",
    "folder/part.py": "from ..deep import BASE\n\nconstant = BASE\nother = 1\n",
    "core/__init__.py": "",
    "core/errors.py": "class UserError(ValueError):\n    pass\n",
    "core/console.py": "def say(line):\n    print(line)\n",
    "core/limits.py": "Limit = list\n",
}


class Package:
    """A package of the files above in a folder of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name, text in FILES.items():
            self.write(name, text)
        self.before = self.digest()

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def digest(self, entry: str = "main") -> str:
        return Code(self.root).digest(frozenset({f"fedshift.{entry}"}))

    def changed(self, **files: str) -> bool:
        for name, text in files.items():
            name = f"{name.replace('__', '/')}.py"
            assert FILES.get(name) != text
            self.write(name, text)
        return self.digest() != self.before


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
        ('"""Acts."""', '"""Does."""'),
        ('"""How far to go."""', '"""Whatever."""'),
        ("from .types import Number", "from .unused import x"),
        ("LENGTH = 3", "LENGTH = (\n    3\n)"),
        ("MOST: Limit[int] = 9", "MOST: Limit[int] = 99"),
        ("it has to be", "because"),
        ("x: int) -> int", "x: float) -> float"),
        ("has {size} digits", "is {size} digits long"),
        ("size = len(str(x))", "size = x"),
        ('"acting"', '"at work"'),
        ('        say("acting")\n', ""),
    ],
)
def test_words_do_not_count(package: Package, old: str, new: str) -> None:
    assert MAIN.count(old) == 1
    assert not package.changed(main=MAIN.replace(old, new))


def test_renamed_names_of_a_message_do_not_count(package: Package) -> None:
    assert not package.changed(main=MAIN.replace("what", "text").replace("size", "digits"))


def test_a_name_that_also_decides_counts(package: Package) -> None:
    """An assignment is dropped only if nothing but a message reads it, and if it moves nothing on."""
    used = MAIN.replace("+ LENGTH", "+ LENGTH + size")
    assert package.changed(main=used)
    first = package.digest()
    package.write("main.py", used.replace("len(str(x))", "x"))
    assert package.digest() != first


@pytest.mark.parametrize(
    "line",
    [
        "size = helper.twice(x)",
        "size = next(x)",
        'say(f"did {helper.twice(x)}")',
        "with Progress(helper.twice(x)): size = 1",
    ],
)
def test_a_call_that_may_do_something_counts_even_if_only_a_message_uses_it(package: Package, line: str) -> None:
    text = MAIN.replace("size = len(str(x))", line)
    package.write("main.py", text)
    before = package.digest()
    package.write("main.py", text.replace(line, line.replace("(x)", "(x + 1)")))
    assert package.digest() != before


def test_the_name_of_what_such_a_call_returns_does_not_count(package: Package) -> None:
    text = MAIN.replace("len(str(x))", "next(x)")
    package.write("main.py", text)
    before = package.digest()
    package.write("main.py", text.replace("size", "digits"))
    assert package.digest() == before


def test_a_card_is_words(package: Package) -> None:
    """A citation changes no image; what is prepared does."""
    one, two = (f"def card(): return Card(citation={name!r}, caveat=HINT)\n" for name in ("A (2019)", "B (2020)"))
    digests = []
    for text in (one, two, one.replace("Card", "card")):
        package.write("main.py", text)
        digests.append(package.digest())
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("main", "LENGTH = 3", "LENGTH = 4"),
        ("main", "+ shift", "- shift"),
        ("main", "class Thing", "class Other"),
        ("main", '"""Acts."""', 'print("""Acts.""")'),
        ("main", "LENGTH = 3", 'LENGTH = 3\nNAMES = ["a"]'),
        ("main", "x > MOST", "x >= MOST"),
        ("helper", "2 *", "3 *"),
        ("helper", "import mean as", "import median as"),
        ("helper", "BASE\n", "BASE\n\n\nassert BASE\n"),
        ("late", "1", "2"),
        ("folder/part", "constant = BASE", "constant = 1"),
        ("deep", "1", "2"),
    ],
)
def test_behaviour_counts_in_all_that_is_used(package: Package, name: str, old: str, new: str) -> None:
    text = FILES[f"{name}.py"]
    assert old in text
    at = text.rindex(old)
    assert package.changed(**{name.replace("/", "__"): text[:at] + new + text[at + len(old) :]})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("unused", "x = 2\n"),
        ("types", "Number = float\n"),
        ("core__errors", "class UserError(Exception):\n    exit_code = 3\n"),
        ("core__console", "def say(line):\n    print(line, flush=True)\n"),
        ("folder__part", FILES["folder/part.py"].replace("other = 1", "other = 2")),
        ("late", "shift = 1\nunused = 2\n"),
    ],
)
def test_what_is_not_used_or_is_infrastructure_does_not_count(package: Package, name: str, text: str) -> None:
    assert not package.changed(**{name: text})


def test_random_streams_count_though_they_lie_among_infrastructure(package: Package) -> None:
    text = MAIN.replace("from . import helper", "from . import helper\nfrom .core.rng import draw").replace(
        "LENGTH  #", "draw()  #"
    )
    package.write("main.py", text)
    digests = []
    for value in (1, 2):
        package.write("core/rng.py", f"def draw():\n    return {value}\n")
        digests.append(package.digest())
    assert digests[0] != digests[1]


def test_where_a_definition_stands_does_not_count(package: Package) -> None:
    """A renamed module, a moved function, a definition behind a re-export: the same code."""
    package.write("aid.py", FILES["helper.py"])
    assert not package.changed(main=MAIN.replace("import helper", "import aid").replace("helper.", "aid."))
    assert not package.changed(main=MAIN.replace("import helper", "import aid as helper"))
    assert not package.changed(main=MAIN.replace("import helper", "import helper as h").replace("helper.", "h."))
    direct = MAIN.replace("from . import helper", "from .helper import twice as double").replace(
        "helper.twice", "double"
    )
    assert not package.changed(main=direct)
    assert not package.changed(main=MAIN.replace("from .folder import", "from .folder.part import"))
    package.write("deep.py", FILES["deep.py"] + FILES["helper.py"].replace("from .deep import BASE\n", ""))
    assert not package.changed(main=MAIN.replace("import helper", "import deep as helper"))


def test_an_import_in_a_function_is_as_good_as_one_at_the_top(package: Package) -> None:
    late = "        from .late import shift\n"
    at_top = MAIN.replace(late, "").replace("from . import helper", "from . import helper\nfrom .late import shift")
    assert not package.changed(main=at_top)


def test_names_that_change_places_count(package: Package) -> None:
    """Each definition is reached under the name of the other."""
    package.write("one.py", "def f(x):\n    return 1 + x\n")
    package.write("two.py", "def f(x):\n    return 2 * x\n")
    digests = set()
    for first, second in (("one", "two"), ("two", "one")):
        package.write("main.py", f"from . import {first} as a, {second} as b\n\nvalue = a.f(b.f(1))\n")
        digests.add(package.digest())
    assert len(digests) == 2


def test_a_local_variable_is_not_the_definition_of_that_name(package: Package) -> None:
    text = "from . import unused\n\n\ndef f(unused):\n    return unused.x\n"
    package.write("main.py", text)
    before = package.digest()
    package.write("unused.py", "x = 5\n")
    assert package.digest() == before
    package.write("main.py", text.replace("f(unused)", "f(used)"))
    after = package.digest()
    package.write("unused.py", "x = 6\n")
    assert package.digest() != after


def test_what_type_checkers_do_not_see_counts(package: Package) -> None:
    text = MAIN.replace("Number\n", "Number\nelse:\n    from .unused import x as more\n")
    text = text.replace("LENGTH  #", "more  #")
    assert package.changed(main=text)
    before = package.digest()
    package.write("unused.py", "x = 2\n")
    assert package.digest() != before


def test_a_class_that_annotates_what_is_passed_in_counts(package: Package) -> None:
    text = "from .late import Way\n\n\ndef f(way: Way):\n    return way.go()\n"
    package.write("main.py", text)
    digests = set()
    for value in (1, 2):
        package.write("late.py", f"class Way:\n    def go(self):\n        return {value}\n")
        digests.add(package.digest())
    assert len(digests) == 2


def test_infrastructure_counts_for_its_own_jobs(package: Package) -> None:
    package.write("planning/__init__.py", "")
    package.write("planning/job.py", "from .part import value\n\ndone = value\n")
    digests = set()
    for value in (1, 2):
        package.write("planning/part.py", f"value = {value}\n")
        digests.add(package.digest("planning.job"))
    assert len(digests) == 2


def test_a_module_that_is_not_there(package: Package) -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        package.digest("nowhere")


# ---- digests of code: this package


@pytest.mark.parametrize("name", sorted({*INFRASTRUCTURE, *COUNTED}))
def test_what_the_table_names_is_there(name: str) -> None:
    stem = PACKAGE.joinpath(*name.split("."))
    assert stem.is_dir() or stem.with_suffix(".py").is_file()


TRAIN = {
    "fedavg": ("models.mlp", "algorithms.fedavg"),
    "fedprox": ("models.mlp", "algorithms.fedprox"),
    "scaffold": ("models.resnet20", "algorithms.scaffold"),
    "flipped": ("models.mlp", "algorithms.fedavg", "transforms.flip"),
    "normalised": ("models.densenet_small", "algorithms.fedavg", "transforms.normalize"),
}
PREDICT = {"source": "inferences.source", "tsmobn": "inferences.tsmobn"}
EVERY = {*TRAIN, *PREDICT}


def digests(root: Path) -> dict[str, str]:
    """The digests of five trainings and two predictions by the code in a folder."""
    code = Code(root)
    jobs = {name: ("jobs.train", *plugins) for name, plugins in TRAIN.items()}
    jobs |= {name: ("jobs.predict", *TRAIN["fedavg"], inference) for name, inference in PREDICT.items()}
    return {name: code.digest(frozenset(f"fedshift.{module}" for module in job)) for name, job in jobs.items()}


class Copy:
    """A copy of this package, to be edited."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def edit(self, room: str, old: str, new: str) -> None:
        """Edit the one file of a room that says `old`, once."""
        files = [file for file in sorted((self.root / room).glob("*.py")) if old in file.read_text(encoding="utf-8")]
        assert len(files) == 1, f"{old!r} is said by {[file.name for file in files]}"
        text = files[0].read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {files[0].name}"
        files[0].write_text(text.replace(old, new), encoding="utf-8")

    def rename(self, old: str, new: str) -> None:
        """Give a module, `room.name`, another name or another room, and correct all imports of it."""
        (self.root / f"{old.replace('.', '/')}.py").rename(self.root / f"{new.replace('.', '/')}.py")
        (room, name), (other, other_name) = old.split("."), new.split(".")
        for file in self.root.rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            inside, moved = file.parent.name == room, file == self.root / other / f"{other_name}.py"
            if inside or moved:
                base = "." if other == room else f"..{other}."
                text = re.sub(rf"from \.{name} import", f"from {base}{other_name} import", text)
            if moved and other != room:
                text = re.sub(r"from \.(\w+) import", rf"from ..{room}.\1 import", text)
            text = text.replace(f"from ..{room}.{name} import", f"from ..{other}.{other_name} import")
            file.write_text(text, encoding="utf-8")

    def changed(self) -> set[str]:
        after = digests(self.root)
        return {name for name, value in BEFORE.items() if after[name] != value}


BEFORE = digests(PACKAGE)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    root = tmp_path / "fedshift"
    shutil.copytree(PACKAGE, root, ignore=shutil.ignore_patterns("__pycache__", "templates"))
    return Copy(root)


def test_jobs_of_other_plugins_have_other_digests() -> None:
    assert len(set(BEFORE.values())) == len(BEFORE)


@pytest.mark.parametrize(
    ("room", "old", "new"),
    [
        ("io", "YAML_LIMIT = 1_000_000", "YAML_LIMIT = 2_000_000"),
        ("io", "PROBES = 10", "PROBES = 20"),
        ("io", "BACKOFF = 0.5", "BACKOFF = 1.5"),
        ("jobs", 'f"fedshift-gpus-{os.getuid()}"', 'f"gpus-of-fedshift-{os.getuid()}"'),
        ("io", 'return f".tmp-{', 'return f".temporary-{'),
        ("engine", "PATIENCE: Limit[timedelta] = timedelta(days=1)", "PATIENCE: Limit[timedelta] = timedelta(days=2)"),
        ("jobs", "CHEAP: Limit[float] = 0.5", "CHEAP: Limit[float] = 1.5"),
        ("transforms", "means, but images have", "means, and images have"),
        ("models", "no number of hidden units", "not a number of hidden units"),
        ("engine", '"""Take one step along the gradients, after', '"""Take a step, after'),
        ("nn", "    mean = x.mean(dims, keepdim=True)", "    # the mean\n    mean = x.mean(dims, keepdim=True)"),
        ("algorithms", 'paper = "Li et al. 2020"', 'paper = "Li et al., 2020"'),
        ("algorithms", 'description="weight of the proximal term"', 'description="how strong the term is"'),
    ],
    ids=[
        "size of a YAML",
        "retries of a lock",
        "pause between downloads",
        "folder of devices",
        "temporary names",
        "torchrun's time-out",
        "cost of a checkpoint",
        "error text in a transform",
        "error text in a model",
        "docstring",
        "comment",
        "paper",
        "description",
    ],
)
def test_what_trains_nothing_again(copy: Copy, room: str, old: str, new: str) -> None:
    copy.edit(room, old, new)
    assert copy.changed() == set()


def test_a_renamed_local_of_an_error_text_trains_nothing_again(copy: Copy) -> None:
    words = """what = f"has {len(self.mean)} means, but images have {x.shape[1]} channels"
            raise UserError("transform normalize", what,"""
    copy.edit("transforms", words, words.replace("what", "message"))
    assert copy.changed() == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [("nn.batchnorm", "nn.norms"), ("nn.batchnorm", "engine.norms"), ("engine.ledger", "engine.account")],
    ids=["renamed", "moved to another room", "renamed in the engine"],
)
def test_a_renamed_or_moved_module_trains_nothing_again(copy: Copy, old: str, new: str) -> None:
    copy.rename(old, new)
    assert copy.changed() == set()


def test_a_moved_function_trains_nothing_again(copy: Copy) -> None:
    """`stream` moves to a module of its own, and `rng` imports it for those who look for it there."""
    rng = copy.root / "core" / "rng.py"
    text = rng.read_text(encoding="utf-8")
    function = text[text.index("def stream(") : text.index("def seed_of(")]
    head = "from __future__ import annotations\n\nimport numpy as np\n\nfrom ..core.rng import _entropy\n\n\n"
    (copy.root / "data" / "streams.py").write_text(head + function, encoding="utf-8")
    rng.write_text(text.replace(function, "from ..data.streams import stream\n\n\n"), encoding="utf-8")
    assert copy.changed() == set()


@pytest.mark.parametrize(
    ("room", "old", "new", "again"),
    [
        ("engine", "dampening=0,", "dampening=0.1,", {*TRAIN}),
        ("nn", "(x - mean).square_().mean(dims)", "(x - mean).square_().sum(dims)", {*TRAIN, "tsmobn"}),
        (
            "inferences",
            "self.mean = torch.lerp(mean_b, self.mean.detach(),",
            "self.mean = torch.lerp(self.mean.detach(), mean_b,",
            {"tsmobn"},
        ),
        ("algorithms", "self.mu / (2 * distance)", "self.mu / distance", {"fedprox"}),
        ("transforms", "2 * vertical + horizontal", "vertical + 2 * horizontal", {"flipped"}),
        ("engine", "torch.randperm(n, generator=generator).numpy()", "np.arange(n)", {*TRAIN}),
        ("core", "hashlib.sha256(", "hashlib.sha512(", EVERY),
    ],
    ids=[
        "SGD step",
        "BN formula",
        "BN formula at test time",
        "algorithm",
        "transform",
        "batch order",
        "random streams",
    ],
)
def test_what_trains_or_predicts_again(copy: Copy, room: str, old: str, new: str, again: set[str]) -> None:
    if room == "core":
        file = copy.root / "core" / "rng.py"
        file.write_text(file.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    else:
        copy.edit(room, old, new)
    assert copy.changed() == again


def test_what_a_plugin_shares_with_others_counts_for_it(copy: Copy) -> None:
    copy.edit("models", "WIDTHS = (16, 32, 64)", "WIDTHS = (16, 32, 128)")
    assert copy.changed() == {"scaffold"}
