"""Units of what travels and of what is stored."""

from __future__ import annotations

FLOAT_BYTES = 4
"""Bytes of a float: models travel, and are stored, as float32."""
MIB = 2**20
"""Bytes of a binary megabyte."""
GIB = 2**30
"""Bytes of a binary gigabyte."""
GBIT = 2**27
"""Bytes of a binary gigabit: 2^30 bits."""
IGNORED = 255
"""The class number of pixels of a mask that nobody could tell: they have no loss and no score."""
SPACING = ("spacing_y", "spacing_x")
"""Columns with the millimetres between rows and between columns of prepared images, where masks need them."""
