"""Studies: their YAML files, the runs that they stand for, and the published tables and claims that they name.

A study is read and expanded here without torch and without pandas, since Snakemake does it at every call.
Numbers, jobs and pages do not belong here.
"""

from ..core.digest import of_code as code
from .plan import Plan, find, inference_id, known, load, named, names, select

__all__ = ["Plan", "code", "find", "inference_id", "known", "load", "named", "names", "select"]
