"""The annotation of constants that shape no result."""

from typing import Annotated, TypeVar

T = TypeVar("T")

Limit = Annotated[T, "shapes no result"]
"""A constant that says how much is allowed or held at once, never what comes out: no digest of code sees its value.

`PATIENCE: Limit[timedelta] = timedelta(days=1)` may change without a run being trained again.
"""
