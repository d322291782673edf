"""Tests of slides need OpenSlide: in .venv-exports all of them run, as `make test` does it."""

from apart import left_out

collect_ignore_glob, pytest_report_header = left_out("slides", "exports", "openslide-python", "openslide-bin")
