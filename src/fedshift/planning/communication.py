"""The communication ledger of a study: what each condition moves, in the units and shares that papers print."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

from ..analysis.conditions import Condition, conditions, several
from ..analysis.table import Table
from ..analysis.values import DASH
from ..core.errors import UserError
from ..engine.ledger import BYTES
from ..io.paths import Paths
from ..io.tables import write_table
from ..study.plan import Plan
from ..study.run import Run
from .sample_counts import Amounts
from .traffic import Forecast, Phase, forecast

MIB, GIB, GBIT = 2**20, 2**30, 2**27


@dataclass(frozen=True)
class _Entry:
    """A condition of the study, and what one of its runs moves."""

    title: str
    run: Run
    moved: Forecast


def tables(plan: Plan, paths: Paths) -> list[Table]:
    """A round, all rounds, and all rounds without the model's running statistics, where there are any.

    Measured with random images of the right shape: neither data nor a trained run need be there, unless only the
    data tell the shape.
    """
    known = conditions(plan).values()
    amounts = Amounts(paths)
    entries = [_entry(one, amounts, one.full_title(several(known))) for one in known]
    out = [_round(entries), _total(entries, statistics=True)]
    if any(phase.statistics for entry in entries for phase in entry.moved.phases):
        out.append(_total(entries, statistics=False))
    return out


def write(plan: Plan, paths: Paths) -> Path:
    """Writes ledger.csv: run (the first of its condition), statistics, quantity, value.

    Quantities are called as in the published tables, and in their units; `statistics` says whether the model's running
    statistics count. Shares of extra bits and totals with them start from a round's MB rounded to four decimals.
    """
    import pandas as pd

    rows, amounts = [], Amounts(paths)
    for condition in conditions(plan).values():
        moved, run = _entry(condition, amounts, "").moved, condition.run.id
        for statistics in (True, False):
            for quantity, value in _quantities(moved, statistics):
                rows.append((run, statistics, quantity, value))
    out = paths.study(plan.name) / "ledger.csv"
    write_table(out, pd.DataFrame(rows, columns=["run", "statistics", "quantity", "value"]))
    return out


def _quantities(moved: Forecast, statistics: bool) -> Iterator[tuple[str, float]]:
    first = moved.phases[0]
    sent = moved.bytes(broadcast=True, statistics=statistics)
    if not sent:
        return
    yield "exchanged_MB_per_iteration", BYTES * first.floats(broadcast=True, statistics=statistics) / MIB
    yield "extra_rounds_percent", 100 * (1 - moved.rounds / moved.messages)
    total, share = _from_rounded(moved) if statistics else (sent / GIB, 100 * moved.extra_bytes(broadcast=True) / sent)
    yield "exchanged_GB_total", float(total)
    yield "extra_bits_percent", float(share)
    yield "exchanged_total_as_printed_GB", sent / GBIT


def _entry(condition: Condition, amounts: Amounts, title: str) -> _Entry:
    run = condition.run
    shape = amounts.shape(run)
    if not shape:
        raise UserError(run.data.id, "the size of its images is not known before they are prepared", "prepare it first")
    return _Entry(title, run, forecast(run, shape, len(run.data.dataset.classes)))


def _rows(entries: list[_Entry], cells: Callable[[_Entry, Phase], Iterator[str]]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        first = 1
        for phase in entry.moved.phases:
            last = first + phase.rounds - 1
            whole = len(entry.moved.phases) == 1
            yield entry.title, "all" if whole else f"{first}-{last}", *cells(entry, phase)
            first = last + 1


def _round(entries: list[_Entry]) -> Table:
    """One row a condition and kind of round."""
    plain = [e for e in entries if e.run.algorithm.name == "fedavg" and e.moved.phases[0].down]

    def cells(entry: _Entry, phase: Phase) -> Iterator[str]:
        broadcast, unicast = (BYTES * phase.floats(broadcast=b) / MIB for b in (True, False))
        yield f"{phase.clients}"
        yield f"{phase.down:,}"
        yield f"{phase.up:,}"
        yield f"{phase.messages}"
        yield f"{broadcast:.4f}"
        yield f"{unicast:.4f}"
        for other in plain:
            base = BYTES * other.moved.phases[0].floats(broadcast=True) / MIB
            yield f"{100 * (broadcast / base - 1):+.2f}".replace("-0.00", "+0.00")

    over = tuple(f"% over {e.title}" for e in plain)
    header = ("Condition", "Rounds", "Clients", "Floats down", "Floats up", "Messages", "MB, broadcast", "MB, unicast")
    caption = (
        "A round. Floats are those of one client; messages those in one direction, each of which clients wait for. MB "
        "is 2^20 bytes of 4-byte floats, all clients together, the way down counted once (broadcast) or for each "
        "(unicast)"
    )
    return Table(caption, (*header, *over), tuple(_rows(entries, cells)), 2)


def _total(entries: list[_Entry], statistics: bool) -> Table:
    """One row a condition; with statistics also as from a round's MB after rounding, which is how FedTAN adds up."""
    rows = []
    for entry in entries:
        moved = entry.moved
        sent = moved.bytes(broadcast=True, statistics=statistics)
        extra = moved.extra_bytes(broadcast=True)
        rows.append(
            (
                entry.title,
                f"{moved.rounds:,}",
                f"{moved.messages:,}",
                f"{100 * (1 - moved.rounds / moved.messages):.2f}" if moved.messages else DASH,
                f"{100 * extra / sent:.4f}" if sent else DASH,
                f"{sent / GIB:.4f}",
                f"{sent / GBIT:.4f}",
                f"{moved.bytes(broadcast=False, statistics=statistics) / GIB:.4f}",
                *(_from_rounded(moved) if statistics else ()),
            )
        )
    header = ("Condition", "Rounds", "Messages", "% extra messages", "% extra", "GB", "Gbit", "GB, unicast")
    counted = "" if statistics else ", the model's running statistics not counted"
    caption = (
        f"All rounds{counted}. Broadcast, but for the column that says unicast. Extra is what the algorithm sends "
        "beyond the model, in percent of all. GB is 2^30 bytes, Gbit 2^30 bits"
    )
    if not statistics:
        return Table(caption, header, tuple(rows), 1)
    rounded = ("GB of rounded MB", "% extra of rounded MB")
    caption += ". The last two start from a round's MB rounded to four decimals"
    return Table(caption, (*header, *rounded), tuple(rows), 1)


def _from_rounded(moved: Forecast) -> Iterator[str]:
    """GB, and the extra share in percent, when a round's MB are rounded to four decimals before they are added up."""

    def mb(floats: int) -> Decimal:
        return _rounded(Decimal(BYTES * floats) / MIB)

    sent = extra = Decimal(0)
    for phase in moved.phases:
        a_round = phase.floats(broadcast=True)
        sent += phase.rounds * mb(a_round)
        extra += phase.rounds * (mb(a_round) - mb(a_round - phase.extra_floats(broadcast=True)))
    yield str(_rounded(sent / 1024))
    yield str(_rounded(100 * extra / sent)) if sent else DASH


def _rounded(x: Decimal) -> Decimal:
    return x.quantize(Decimal("0.0001"), ROUND_HALF_UP)
