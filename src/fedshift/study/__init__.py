"""Studies: their YAML files, the runs that they stand for, and the published tables and claims that they name.

A study is read and expanded into runs here without torch and without pandas, since Snakemake does so at every call.
Code that computes results, runs jobs or writes pages lies in other folders.
"""

from ..core.digest import of_code as code
from .plan import Plan, find, inference_id, known, load, named, names, select

__all__ = ["Plan", "code", "find", "inference_id", "known", "load", "named", "names", "select"]
