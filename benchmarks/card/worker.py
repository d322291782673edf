"""Does the cases one after another, and says what it does on its standard output, for the supervisor."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .rows import NO_TIME, Row, Rows, row
from .setting import Case, Figures, NotHereError, Setting, WrongError, freed, reason, wait_for
from .supervisor import BROKEN, NO_DEVICE


def work(setting: Setting, rows: Rows, parts: Sequence[str], end: float) -> int:
    """Do the cases of some parts that have no row yet, until `end` by the clock of `time.monotonic`."""
    # Whatever a library prints goes to the terminal, and only events go to the supervisor.
    events = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def tell(**event: Any) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    if (device := setting.open()) is None:
        return NO_DEVICE
    tell(facts=setting.facts())
    done = rows.done()
    for part in parts:
        cases = importlib.import_module(f"card.{part}").cases(setting)
        while case := _next(cases, part, tell):
            if (part, case.what) in done:
                continue
            if end - time.monotonic() < case.seconds:
                tell(row=row(part, case.what, "skipped", reason=NO_TIME))
                continue
            tell(begin=case.what, part=part, limit=case.limit or setting.size(30 + 6 * case.seconds, 600))
            tell(row=_done(part, case))
            try:
                freed(device)
                wait_for(device)
            except RuntimeError:
                return BROKEN
        tell(finished=part)
    return 0


def _next(cases: Iterator[Case], part: str, tell: Callable[..., None]) -> Case | None:
    """Return the next case; None after the last, and where it cannot be told, which is a row of its own."""
    try:
        return next(cases, None)
    except Exception as error:
        tell(row=row(part, "the part", "failed", reason=reason(error)))
        return None


def _done(part: str, case: Case) -> Row:
    begun = time.monotonic()

    def made(outcome: str, figures: Figures, why: str = "") -> Row:
        return row(part, case.what, outcome, seconds=time.monotonic() - begun, reason=why, figures=figures)

    print(f"{part}: {case.what}", file=sys.stderr, flush=True)
    try:
        return made("measured", case.work())
    except NotHereError as error:
        return made("skipped", {}, str(error))
    except WrongError as error:
        return made("failed", error.figures, str(error))
    except Exception as error:
        return made("failed", {}, reason(error))
