"""Tests of exports need what they export to: in .venv-exports all of them run, as `make test` does it."""

from apart import left_out

NEEDED = ("pytorch-ignite", "mlflow-skinny")
collect_ignore_glob, pytest_report_header = left_out("export", "exports", *NEEDED)
