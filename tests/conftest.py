"""Settings of all tests: the longest files come first, names and draws of tests are the same in every process."""

import ctypes
import math
import os
import sys

import pytest

LIBC = ctypes.CDLL(None)
LONGEST = (
    "test_campaign",  # it forks this process, which must not have done anything else before
    *("test_tutorials", "test_combinations", "test_plugins", "test_page", "test_slurm", "test_standin"),
    *("test_gpu_script", "test_coordinator", "test_studies", "test_message_forms", "test_demo", "test_install"),
    *("test_ledger", "test_ranks", "test_first_screen", "test_broken_algorithms", "test_identities", "test_gallery"),
    *("test_methods", "test_workflow", "test_outside_methods", "test_identity", "test_job_imports", "test_docs"),
    *("test_site", "test_accept", "test_bundle", "test_misread", "test_forge"),
)
"""Files of half a minute and more, the longest first: a process that takes one of them last leaves others idle."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, then the others with slow tests. The order within a file stays."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(item.path.stem, len(ranks)), item.path not in slow))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Give what the tests of a file have freed back to the system.

    The C library keeps it, in pieces between what is still in use: 150 MB after a file with large networks.
    """
    if hasattr(LIBC, "malloc_trim") and (nextitem is None or nextitem.path != item.path):
        LIBC.malloc_trim(0)


def pytest_sessionfinish() -> None:
    """Remove what tests have shared."""
    if "once" in sys.modules:
        sys.modules["once"].forget()


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Let a test that draws without a key draw the same in every run and in any order.

    torch is not imported for that: the tests that fork need a process that has done nothing else.
    """
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(autouse=True)
def _checkpoint_after_each_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training write all its checkpoints, though writing one takes long on a disk that others use."""
    if "fedshift.jobs.train" in sys.modules:
        monkeypatch.setattr(sys.modules["fedshift.jobs.train"], "CHEAP", math.inf)


@pytest.fixture(autouse=True)
def _nobody_waits_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test write its files without waiting until they are on the disk. Tests of that count the calls."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Bytes have no place in a test's name: archives hold the time of their making, and each worker makes its own."""
    return "bytes" if isinstance(val, bytes) else None
