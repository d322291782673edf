"""Constants: sizes in bytes, the class number of ignored pixels, and columns of pixel spacing."""

from __future__ import annotations

FLOAT_BYTES = 4
"""Bytes of a float in messages and stored models, which are float32."""
MIB = 2**20
"""Bytes of a binary megabyte."""
GIB = 2**30
"""Bytes of a binary gigabyte."""
GBIT = 2**27
"""Bytes of a binary gigabit: 2^30 bits."""
IGNORED = 255
"""The class number, in a mask, of pixels whose class is unknown: they count in no loss and in no score."""
SPACING = ("spacing_y", "spacing_x")
"""Columns of the sample table with the distance in mm between rows and between columns of a prepared image's pixels.
Metrics of masks need them."""
