"""Snakemake, which asks a cluster for its jobs every second. That is for tests alone: a real one has other users."""

from snakemake.cli import main
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

asked = RemoteExecutor.next_seconds_between_status_checks
RemoteExecutor.next_seconds_between_status_checks = property(lambda self: min(1, asked.fget(self)), asked.fset)

if __name__ == "__main__":
    main()
