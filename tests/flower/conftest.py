"""Tests of real sites need Flower: in .venv-flower all of them run, as `make test-all` does it."""

from apart import left_out

collect_ignore_glob, pytest_report_header = left_out("flower", "flower", "flwr")
