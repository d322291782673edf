"""Keyed randomness, and digests of specifications and code."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedshift import study
from fedshift.algorithms.fedavg import FedAvg
from fedshift.core import digest
from fedshift.core.rng import seed_of, stream, torch_stream
from fedshift.models.mlp import MLP

# ---- streams


def test_a_stream_is_numpys_pcg64_seeded_with_the_sha256_of_its_key() -> None:
    entropy = int.from_bytes(hashlib.sha256(b"3\x1f1\x1fsite a\x1fbatches").digest()[:16], "big")
    expected = np.random.Generator(np.random.PCG64(entropy)).permutation(20)
    assert stream(3, 1, "site a", "batches").permutation(20).tolist() == expected.tolist()


def test_streams_depend_on_their_key_alone() -> None:
    first = stream(0, 1, "a", "batches").random(5)
    stream(9, "other").random(100)
    torch.rand(3)
    assert np.array_equal(stream(0, 1, "a", "batches").random(5), first)


def test_every_part_of_a_key_counts_and_parts_do_not_run_together() -> None:
    keys = [(0, 1, "a", "x"), (1, 1, "a", "x"), (0, 2, "a", "x"), (0, 1, "b", "x"), (0, 1, "a", "y"), (0, 1, "ax")]
    keys += [(1, 23), (12, 3), ("1", "2", "3"), ("a", ""), ("", "a"), ("a",)]
    assert len({float(stream(*key).random()) for key in keys}) == len(keys)


def test_streams_are_independent_of_each_other() -> None:
    """Neighbouring keys are uncorrelated: 200 pairs of 1000 draws, whose correlation has standard deviation 0.032."""
    draws = np.stack([stream(seed, "batches").standard_normal(1000) for seed in range(201)])
    correlation = np.array([np.corrcoef(*draws[i : i + 2])[0, 1] for i in range(200)])
    assert abs(correlation.mean()) < 4 * 0.032 / 200**0.5
    assert abs(correlation).max() < 5 * 0.032


def test_seeds_have_63_bits() -> None:
    seeds = [seed_of(k, "dropout") for k in range(200)]
    assert all(0 <= s < 2**63 for s in seeds)
    assert max(seeds) > 2**62
    assert len(set(seeds)) == 200


def test_torch_streams_depend_on_their_key_and_leave_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    one, same, other = (torch.rand(4, generator=torch_stream(*key)) for key in ((1, "a"), (1, "a"), (1, "b")))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)


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


# ---- digests of code

MAIN = '''
"""What this module is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import helper
from .errors import UserError
from .folder.part import constant

if TYPE_CHECKING:
    from .types import Number

LIMIT = 3
"""How far to go."""


class Thing:
    """A thing."""

    def act(self, x: int) -> int:
        """Acts."""
        from .late import shift

        return helper.twice(x) + shift + constant + LIMIT  # and that is it
'''
FILES = {
    "main.py": MAIN,
    "helper.py": "from .deep import BASE\n\n\ndef twice(x):\n    return 2 * x + BASE\n",
    "deep.py": "BASE = 1\n",
    "late.py": "shift = 1\n",
    "errors.py": "class UserError(ValueError):\n    pass\n",
    "types.py": "Number = int\n",
    "unused.py": "x = 1\n",
    "__init__.py": "version = 1\n",
    "folder/__init__.py": "",
    "folder/part.py": "from ..deep import BASE\n\nconstant = BASE\n",
}

Digest = Callable[..., str]


@pytest.fixture
def of_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Digest:
    """The digest of `main` in a package of the files above, with some replaced."""
    monkeypatch.setattr(digest, "__file__", str(tmp_path / "digest.py"))

    def of(entry: str = "main", **replaced: str) -> str:
        for name, text in {**FILES, **{k.replace("__", "/") + ".py": v for k, v in replaced.items()}}.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        digest._module.cache_clear()
        return digest.of_code([f"{digest.__package__}.{entry}"])

    yield of  # type: ignore[misc]
    digest._module.cache_clear()


@pytest.mark.parametrize(
    "text",
    [
        MAIN.replace("  # and that is it", ""),
        MAIN.replace("    return", "    # so\n        return"),
        MAIN.replace("What this module is for.", "Other words."),
        MAIN.replace('"""A thing."""', '"""A fine thing."""').replace('"""Acts."""', '"""Does."""'),
        MAIN.replace('"""How far to go."""', '"""Whatever."""'),
        MAIN.replace("from .types import Number", "from .unused import x"),
        MAIN.replace("LIMIT = 3", "LIMIT = (\n    3\n)"),
    ],
    ids=["comment", "another", "of module", "of class and method", "of constant", "type checkers' import", "layout"],
)
def test_words_do_not_count(of_package: Digest, text: str) -> None:
    assert text != MAIN
    assert of_package(main=text) == of_package()


def test_a_card_is_words(of_package: Digest) -> None:
    """Who is to be cited changes no image; what is prepared does."""
    one, two = (f"def card(): return Card(citation={name!r}, caveat=HINT)\n" for name in ("A (2019)", "B (2020)"))
    assert of_package(main=one) == of_package(main=two)
    assert of_package(main=one) != of_package(main=one.replace("Card", "card"))


@pytest.mark.parametrize(
    "changed",
    [
        {"main": MAIN.replace("LIMIT = 3", "LIMIT = 4")},
        {"main": MAIN.replace("+ shift", "- shift")},
        {"main": MAIN.replace("class Thing", "class Other")},
        {"main": MAIN.replace('"""Acts."""', 'print("""Acts.""")')},
        {"main": MAIN + '\nNAMES = ["a"]\n'},
        {"helper": FILES["helper.py"].replace("2 *", "3 *")},
        {"late": "shift = 2\n"},
        {"folder__part": "constant = 1\n"},
        {"deep": "BASE = 2\n"},
    ],
    ids=[
        "value",
        "operator",
        "name",
        "call",
        "more",
        "import",
        "import in a function",
        "subpackage",
        "import of import",
    ],
)
def test_behaviour_counts_in_all_that_is_imported(of_package: Digest, changed: dict[str, str]) -> None:
    assert of_package(**changed) != of_package()


@pytest.mark.parametrize("name", ["unused", "types", "errors"])
def test_what_no_run_depends_on_does_not_count(of_package: Digest, name: str) -> None:
    """Modules that are not imported, or for type checkers only, or that only speak to people."""
    assert of_package(**{name: "x = 'changed'\n"}) == of_package()


def test_what_type_checkers_do_not_see_counts(of_package: Digest) -> None:
    text = MAIN.replace("Number\n", "Number\nelse:\n    from .unused import x\n")
    assert of_package(main=text) != of_package()
    assert of_package(main=text, unused="x = 2\n") != of_package(main=text, unused="x = 1\n")


def test_a_module_that_is_not_there(of_package: Digest) -> None:
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        of_package("nowhere")


@pytest.mark.parametrize(
    ("edited", "counts"),
    [
        ("federation", True),
        ("state", True),
        ("rng", True),
        ("models/mlp", True),
        ("algorithms/fedavg", True),
        ("models/densenet121", False),
        ("page", False),
        ("score", False),
        ("progress", False),
    ],
)
def test_what_a_training_depends_on(edited: str, counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def code() -> str:
        digest._module.cache_clear()
        return study.code("jobs.train", MLP(), FedAvg())

    before, read = code(), Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda self, **kw: read(self, **kw) + "\nedited = 1\n" * self.as_posix().endswith(f"fedshift/{edited}.py"),
    )
    assert (code() != before) is counts
    monkeypatch.undo()
    assert code() == before
