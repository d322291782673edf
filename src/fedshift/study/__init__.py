"""What a study asks for: its YAML, the runs that it stands for, and what it names of the papers.

A study is read and expanded here without torch and without pandas, since Snakemake does it at every call.
Numbers, jobs and pages do not belong here.
"""

from .plan import Plan, code, find, inference_id, load, names, select

__all__ = ["Plan", "code", "find", "inference_id", "load", "names", "select"]
