"""Messages that differ from a right one in one thing each: every key of what they say, and every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from fedshift.engine.messages import Message

VALUES: dict[str, Any] = {
    "null": None,
    "true": True,
    "negative": -1,
    "half": 0.5,
    "huge": 10**400,
    "large": 10**9,
    "nan": math.nan,
    "infinite": math.inf,
    "minus 1e300": -1e300,
    "a text": "7",
    "a path": "/../../../../elsewhere/victim",
    "escapes": "\x1b[2J\x1b]0;owned\x07",
    "long": "x" * 10_000,
    "a list": [1],
    "a mapping": {"a": 1},
}
"""Values that are put in the place of each right one. Some are right for some keys."""


def wrong_about(message: Message) -> Iterator[tuple[str, Message]]:
    """Messages of which one key, also inside a mapping, is missing or has another value; and one with a key more."""
    yield "a key more", message._replace(about=message.about | {"x": 1})
    for path, about in _changed(message.about):
        yield path, message._replace(about=about)


def _changed(about: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, right in about.items():
        yield f"{key}: missing", {k: v for k, v in about.items() if k != key}
        for name, value in VALUES.items():
            if (type(value), value) != (type(right), right):
                yield f"{key}: {name}", about | {key: value}
        if isinstance(right, dict):
            yield from ((f"{key}.{path}", about | {key: inner}) for path, inner in _changed(right))


def wrong_tensors(message: Message) -> Iterator[tuple[str, Message]]:
    """Messages of which one tensor is missing, renamed, of another shape or type, or not finite; and with many more."""
    tensors = message.tensors
    many = {f"t{k}": torch.zeros(1) for k in range(5_000)}
    for name, more in {
        "a tensor more": {"x": torch.ones(3)},
        "a path": {"../../x": torch.ones(3)},
        "many": many,
    }.items():
        yield name, message._replace(tensors=tensors | more)
    for key, right in tensors.items():
        rest = {k: v for k, v in tensors.items() if k != key}
        yield f"{key}: missing", message._replace(tensors=rest)
        yield f"{key}: renamed", message._replace(tensors=rest | {f"{key}2": right})
        flat = right.flatten()
        changed = {"shorter": flat[1:], "longer": torch.cat([flat, flat]), "deeper": right[None], "empty": flat[:0]}
        changed |= {f"{t}": right.to(t) for t in (torch.float16, torch.bool, torch.uint8, torch.complex64)}
        changed["other precision"] = right.double() if right.dtype != torch.float64 else right.float()
        if right.is_floating_point():
            changed |= {f"{v}": torch.full_like(right, v) for v in (math.nan, math.inf)}
        for name, tensor in changed.items():
            yield f"{key}: {name}", message._replace(tensors=rest | {key: tensor})
