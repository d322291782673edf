"""Names of plug-ins: present ones, and earlier ones that studies may still use."""

from __future__ import annotations

import pytest

from fedshift.core import registry
from fedshift.core.errors import UserError
from fedshift.datasets.own_images import OwnImages


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_name_stands_for_one_plugin(kind: str) -> None:
    names = registry.names(kind)
    assert len(names) == len(set(names))
    assert set(registry.discover(kind)) <= set(names)
    for name, cls in registry.discover(kind).items():
        assert {registry.get(kind, each) for each in (name, *cls.aliases)} == {cls}


def test_an_earlier_name_makes_the_same_plugin() -> None:
    new, old = (registry.build("dataset", {"name": name, "table": "t.csv"}) for name in ("own_images", "manifest"))
    assert new == old
    assert isinstance(new, OwnImages)
    assert (old.spec()["name"], old.identity()["name"], old.label) == (
        "own_images",
        "manifest",
        "own_images(table=t.csv)",
    )


def test_a_subclass_inherits_no_name() -> None:
    class Mine(OwnImages):
        """Other images."""

    assert (Mine.aliases, Mine.identity_name) == ((), Mine.name)
    assert registry.get("dataset", "manifest") is OwnImages


def test_identities_are_without_what_only_people_read() -> None:
    silent, told = (OwnImages(table="t.csv", **words) for words in ({}, {"title": "T", "caveat": "C"}))  # type: ignore[arg-type]
    assert silent.identity() == told.identity()
    assert silent.spec() != told.spec()


def test_an_unknown_name_suggests_the_present_one_only() -> None:
    with pytest.raises(UserError) as caught:
        registry.get("dataset", "qqqqqqqq")
    known = str(caught.value).partition("known: ")[2].split(", ")
    assert "own_images" in known
    assert "manifest" not in known
