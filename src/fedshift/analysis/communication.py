"""The traffic of a study: a forecast of what its runs send, and the ledger in the units and shares that papers print.

The traffic of a round is measured by training it for one client on two random images, so that no formula has to repeat
what the code of an algorithm does.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..algorithms import Server, Traffic
from ..core.errors import UserError
from ..core.units import FLOAT_BYTES, GBIT, GIB, MIB
from ..data.prepared import read_partition
from ..engine.federation import Federation
from ..engine.server_side import drawn
from ..engine.specification import Specification
from ..io.paths import Paths
from ..io.tables import write_table
from ..models import initialise
from ..study.plan import Plan
from ..study.run import Run
from ..transforms import shape_after
from .conditions import Condition, conditions, several
from .values import DASH, Table

MANY = 10**6
"""Number of training images of a client that is assumed where it is unknown: more than any add-on takes."""


@dataclass(frozen=True)
class EqualRounds:
    """A group of rounds that have the same traffic.

    Attributes
    ----------
    rounds, clients : number of these rounds, and of clients that take part in each of them
    parameters, statistics : floats of the model's parameters, and of its running statistics, that travel; all further
        floats are the algorithm's own
    down, up : floats that one client receives and sends in a round, including the model
    messages : messages that a client waits for in a round, in one direction
    unicast : True if the server sends different tensors to each client, so that no broadcast can serve all of them
    """

    rounds: int
    clients: int
    parameters: int
    statistics: int
    down: int
    up: int
    messages: int
    unicast: bool = False

    @property
    def extra(self) -> int:
        """The floats that one client receives and sends in a round in addition to the model."""
        return self.down + self.up - 2 * (self.parameters + self.statistics)

    def floats(self, *, broadcast: bool, without: int = 0) -> int:
        """Return the floats of one round, sent and received, of all clients together.

        With `broadcast`, a message of the server to all clients counts once instead of once a client. `without` floats
        are left out in each direction of each client.
        """
        sent = 1 if broadcast and not self.unicast else self.clients
        return (self.down - without) * sent + (self.up - without) * self.clients

    def extra_floats(self, *, broadcast: bool) -> int:
        """Return the floats of one round in addition to the model, sent and received, of all clients together.

        With `broadcast`, a message of the server to all clients counts once.
        """
        return self.floats(broadcast=broadcast, without=self.parameters + self.statistics)


@dataclass(frozen=True)
class Forecast:
    """The expected traffic of all rounds of a run.

    Attributes
    ----------
    phases : groups of rounds with equal traffic, in their order
    once : floats that clients send only in the first round in which they take part, of all clients together
    beforehand : what clients and server exchange once before the first round
    """

    phases: tuple[EqualRounds, ...]
    once: int = 0
    beforehand: Traffic = field(default_factory=Traffic)

    @property
    def rounds(self) -> int:
        """The number of rounds in all phases."""
        return sum(p.rounds for p in self.phases)

    @property
    def messages(self) -> int:
        """The number of messages in one direction over all rounds, and before the first round."""
        return sum(p.rounds * p.messages for p in self.phases) + self.beforehand.messages

    def bytes(self, *, broadcast: bool, statistics: bool = True) -> int:
        """Return the bytes of all rounds, all clients together; with `broadcast`, what the server sends counts once.

        Without `statistics`, the running statistics of the model are left out.
        """
        return self._bytes(broadcast, [0 if statistics else phase.statistics for phase in self.phases])

    def extra_bytes(self, *, broadcast: bool) -> int:
        """Return the bytes of all rounds and clients in addition to the model.

        With `broadcast`, what the server sends to all clients counts once.
        """
        return self._bytes(broadcast, [phase.parameters + phase.statistics for phase in self.phases])

    def _bytes(self, broadcast: bool, without: list[int]) -> int:
        """Return the bytes of all rounds and clients, without some floats.

        `without` has, for each phase, the number of floats that are left out in each direction of each client. With
        `broadcast`, what the server sends to all clients counts once.
        """
        each = zip(self.phases, without, strict=True)
        floats = sum(phase.rounds * phase.floats(broadcast=broadcast, without=n) for phase, n in each)
        return FLOAT_BYTES * (floats + self.once + self.beforehand.floats(broadcast))


def forecast(run: Run, shape: tuple[int, ...], classes: int, images: Mapping[str, int] | None = None) -> Forecast:
    """Return the expected traffic of a run, if early stopping does not end it before its last round.

    The traffic of the first round is measured, and of one later round of each kind: with or without a first step that
    clients take together, and with frozen or changing running statistics. What a client sends more in the first round
    counts once for each client that ever takes part. If it sends less in the first round, or the server sends another
    amount, the first round is a phase of its own.

    Parameters
    ----------
    shape : shape of an image (channels, height, width)
    classes : number of classes
    images : number of training images of each internal site; a site that is not in it is assumed to have enough images
        for an add-on to send the most that it may send
    """
    training = run.training
    algorithm = run.algorithm
    count = len(run.partition.internal)
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number in range(1, training.rounds + 1):
        kind = algorithm.joint(number) is not None, algorithm.freezes_statistics(number, training.rounds)
        kinds.setdefault(kind, []).append(number)
    short = training.model_copy(update={"local_epochs": 1, "local_steps": 1, "select": "last", "patience": None})
    model = initialise(run.model, shape, classes, run.seed)
    specification = Specification.open(
        model, algorithm=algorithm, bn=run.bn, addon=run.addon, training=short, norms=run.norms
    )
    data = torch.randn(2, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(2) % classes
    federation = Federation(specification, {"client": data})
    first = _measured(federation, 1)
    phases = []
    once = 0
    for numbers in kinds.values():
        later = [number for number in numbers if number > 1]
        row = _measured(federation, later[0]) if later else first
        equal = EqualRounds(
            rounds=len(numbers),
            clients=training.clients_in_round(algorithm.collaboration.count(count)),
            parameters=federation.server.params.numel(),
            statistics=federation.server.statistics.stop - federation.server.statistics.start,
            down=row["floats_down"],
            up=row["floats_up"],
            messages=row["messages"],
            unicast=algorithm.has_downloads,
        )
        if 1 in numbers:
            once = max(first["floats_up"] - equal.up, 0) * _clients_ever_drawn(run, count)
            least = {"down": first["floats_down"], "up": min(first["floats_up"], equal.up)}
            opening = replace(equal, rounds=1, messages=first["messages"], **least)
            if opening != replace(equal, rounds=1):
                phases.append(opening)
                equal = replace(equal, rounds=equal.rounds - 1)
        phases.append(equal)
    return Forecast(tuple(phases), once, _beforehand(run, federation.server, shape, classes, images or {}))


def _measured(federation: Federation, number: int) -> Mapping[str, Any]:
    """Train one client in round `number`, and return the record of this round, which has the floats that were sent."""
    federation.server.round = number - 1
    federation.round()
    return federation.history[-1]


def _beforehand(run: Run, server: Server, shape: tuple[int, ...], classes: int, images: Mapping[str, int]) -> Traffic:
    """Return the traffic, in floats, of all that clients send once before the first round.

    These are tensors of the algorithm and the add-on, counts of images by class, and statistics of each site for its
    transforms. `shape` is the shape of an image (channels, height, width), and `images` the number of training images
    by site.
    """
    together = run.algorithm.collaboration
    black = torch.zeros(1, *shape)
    sites = together.clients({site: images.get(site, MANY) for site in run.partition.internal}, sum)
    statistics = sum(transform.fit([black]).numel() for transform in run.transforms if transform.per_site)
    total = Traffic.passed_on(dict.fromkeys(sites, statistics), together)
    if run.addon:
        offers = {site: run.addon.offer(_Black(n, shape)) for site, n in sites.items()}
        sizes = {site: sum(map(torch.numel, offer.values())) for site, offer in offers.items()}
        total += Traffic.passed_on(sizes, together)
    to_server = [
        run.algorithm.offer(server, _Black(n, shape), torch.zeros(n, dtype=torch.long)) for n in sites.values()
    ]
    total += Traffic(up=sum(table.numel() for offer in to_server for table in offer.values()))
    if run.training.class_weights == "balanced":
        total += Traffic.summed_up(classes, sites, together)
    return total


class _Black:
    """A data set of `n` black images of class 0, made only when read, to measure the size of what clients send."""

    def __init__(self, n: int, shape: tuple[int, ...]) -> None:
        self.n = n
        self.shape = shape

    def __len__(self) -> int:
        return self.n

    def batch(self, index: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return as many black images, and zeros as their labels, as `index` has entries."""
        return torch.zeros(len(index), *self.shape), torch.zeros(len(index), dtype=torch.long)


def _clients_ever_drawn(run: Run, sites: int) -> int:
    """Return the number of clients that take part in at least one round of a run.

    `sites` is the number of internal sites. Losses are unknown here (NaN), so that the number may differ for an
    algorithm that draws clients by their loss.
    """
    clients = run.algorithm.collaboration.count(sites)
    server = Server(torch.empty(0), slice(0), slice(0), clients=clients, rounds=run.training.rounds)
    server.shares, server.losses = [1 / clients] * clients, [math.nan] * clients
    ever: set[int] = set()
    for number in range(1, run.training.rounds + 1):
        server.round = number - 1
        ever.update(drawn(run.algorithm, server, run.training, run.seed, number))
    return len(ever)


class SampleCounts:
    """The shape of images and the number of training samples, read from a project folder; each file is read once."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    def shape(self, run: Run) -> tuple[int, ...]:
        """Return the shape of the network's input, (channels, height, width) or (features,); () if it is not known."""
        return shape_after(run.transforms, run.data.dataset.shape or self._shape(run.data.id))

    def training(self, run: Run) -> dict[str, int]:
        """Return the number of training images of each internal site; an empty dict if the partition cannot be read."""
        samples = self._samples(run.partition_id)
        return {site: samples[site, "train"] for site in run.partition.internal} if samples else {}

    @functools.cache  # noqa: B019 - lives as long as the tables are made
    def _samples(self, partition: str) -> Counter[tuple[str, str]]:
        """Return the number of samples by site and split of a partition.

        It is empty if the file is missing or cannot be read.
        """
        file = self.paths.partition(partition)
        try:
            table = read_partition(file) if file.exists() else {"site": (), "split": ()}
        except UserError:
            return Counter()
        return Counter(zip(table["site"], table["split"], strict=True))

    @functools.cache  # noqa: B019 - lives as long as the tables are made
    def _shape(self, data: str) -> tuple[int, ...]:
        """Return the shape (channels, ...) of one image of prepared data; () if the file is missing or broken."""
        try:
            *space, channels = np.load(self.paths.data_files(data).images, mmap_mode="r").shape[1:]
        except (OSError, ValueError, EOFError):  # the last for an empty file
            return ()
        return channels, *space


@dataclass(frozen=True)
class _Entry:
    """A condition of the study with its title, and the expected traffic of its first run."""

    title: str
    run: Run
    traffic: Forecast
    whole: Forecast | None
    """The traffic if all layers were trained; None if they are."""


def tables(plan: Plan, paths: Paths) -> list[Table]:
    """Return the tables of traffic: of one round, of all rounds and, if there are any, without running statistics.

    Traffic is measured on random images of the right shape. Neither trained runs nor data are needed, unless only
    prepared data tell the shape. Raises UserError if the shape is unknown.
    """
    members = conditions(plan).values()
    counts = SampleCounts(paths)
    entries = [_entry(one, counts, one.full_title(several(members))) for one in members]
    out = [_round(entries), _total(entries, statistics=True)]
    if any(phase.statistics for entry in entries for phase in entry.traffic.phases):
        out.append(_total(entries, statistics=False))
    return out


def write(plan: Plan, paths: Paths) -> Path:
    """Write ledger.csv, the traffic of each condition, and return its path.

    Columns: run (the first of the condition), statistics (whether running statistics of the model count), quantity,
    value. Quantities have the names and units of the published tables. Totals with statistics, and their shares of
    extra bits, are computed from the MB of a round after rounding to four decimals, as FedTAN's tables are.
    """
    rows = []
    counts = SampleCounts(paths)
    for condition in conditions(plan).values():
        traffic = _entry(condition, counts, "").traffic
        run = condition.run.id
        for statistics in (True, False):
            for quantity, value in _quantities(traffic, statistics):
                rows.append((run, statistics, quantity, value))
    out = paths.study_files(plan.name).ledger
    write_table(out, pd.DataFrame(rows, columns=["run", "statistics", "quantity", "value"]))
    return out


def _quantities(traffic: Forecast, statistics: bool) -> Iterator[tuple[str, float]]:
    """Yield name and value of each quantity of ledger.csv for a run; none if the run sends nothing."""
    first = traffic.phases[0]
    sent = traffic.bytes(broadcast=True, statistics=statistics)
    if not sent:
        return
    without = 0 if statistics else first.statistics
    yield "exchanged_MB_per_iteration", FLOAT_BYTES * first.floats(broadcast=True, without=without) / MIB
    yield "extra_rounds_percent", 100 * (1 - traffic.rounds / traffic.messages)
    total, share = (
        _from_rounded(traffic) if statistics else (sent / GIB, 100 * traffic.extra_bytes(broadcast=True) / sent)
    )
    yield "exchanged_GB_total", float(total)
    yield "extra_bits_percent", float(share)
    yield "exchanged_total_as_printed_GB", sent / GBIT


def _entry(condition: Condition, counts: SampleCounts, title: str) -> _Entry:
    """Return a condition with the expected traffic of its first run.

    `counts` reads the shape and the number of images. Raises UserError if the shape is not known.
    """
    run = condition.run
    shape = counts.shape(run)
    if not shape:
        raise UserError(
            run.data.id,
            "the shape of its images is not known before preparation",
            "prepare it first: fedshift prepare STUDY ID",
        )
    classes, images, whole = len(run.data.dataset.classes), counts.training(run), None
    if run.training.train != "all":
        everything = run.training.model_copy(update={"train": "all"})
        whole = forecast(run.model_copy(update={"training": everything}), shape, classes, images)
    return _Entry(title, run, forecast(run, shape, classes, images), whole)


def _round(entries: list[_Entry]) -> Table:
    """Return the table of traffic in one round, with a row for each condition and group of equal rounds."""
    plain = [e for e in entries if e.run.algorithm.name == "fedavg" and e.traffic.phases[0].down]
    resting = any(e.whole for e in entries)

    def cells(entry: _Entry, phase: EqualRounds) -> Iterator[str]:
        broadcast, unicast = (FLOAT_BYTES * phase.floats(broadcast=b) / MIB for b in (True, False))
        yield f"{phase.clients}"
        yield f"{phase.down:,}"
        yield f"{phase.up:,}"
        yield f"{phase.messages}"
        yield f"{broadcast:.4f}"
        yield f"{unicast:.4f}"
        for other in [*(e.traffic for e in plain), *([entry.whole] if resting else [])]:
            base = FLOAT_BYTES * other.phases[0].floats(broadcast=True) / MIB if other else 0
            yield f"{100 * (broadcast / base - 1):+.2f}".replace("-0.00", "+0.00") if base else DASH

    over = (*(f"% over {e.title}" for e in plain), *(["% over all layers"] if resting else []))
    rows = [*_before(entries, len(over))]
    before = len(rows)
    for entry in entries:
        first = 1
        for phase in entry.traffic.phases:
            last = first + phase.rounds - 1
            numbers = f"{first}-{last}" if last > first else str(first)
            everything = phase.rounds == entry.traffic.rounds
            rows.append((entry.title, "all" if everything else numbers, *cells(entry, phase)))
            first = last + 1
    header = ("Condition", "Rounds", "Clients", "Floats down", "Floats up", "Messages", "MB, broadcast", "MB, unicast")
    caption = (
        "One round. Floats are those of one client. Messages are those in one direction that clients wait for. "
        "MB is 2^20 bytes of 4-byte floats, of all clients together; what the server sends counts once (broadcast) or "
        "for each client (unicast)"
    )
    if before:
        caption += ". What clients exchange once has its own row: before round 1, a mean over clients"
    return Table(caption, (*header, *over), tuple(rows), 2)


def _before(entries: list[_Entry], others: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each condition whose clients exchange something before round 1, for the table of one round.

    `others` is the number of further columns, which stay empty.
    """
    for entry in entries:
        if sent := entry.traffic.beforehand.up:
            before = entry.traffic.beforehand
            run = entry.run
            clients = run.algorithm.collaboration.count(len(run.partition.internal))
            mb = [f"{FLOAT_BYTES * before.floats(broadcast=b) / MIB:.4f}" for b in (True, False)]
            floats = [f"{round(total / clients):,}" for total in (before.down, sent)]
            yield entry.title, "before 1", f"{clients}", *floats, f"{before.messages}", *mb, *[DASH] * others


def _total(entries: list[_Entry], statistics: bool) -> Table:
    """Return the table of traffic in all rounds, with a row for each condition.

    With `statistics`, running statistics of the model count, and two more columns are computed from the rounded MB of a
    round, as in the FedTAN paper.
    """
    rows = []
    for entry in entries:
        traffic = entry.traffic
        sent = traffic.bytes(broadcast=True, statistics=statistics)
        extra = traffic.extra_bytes(broadcast=True)
        rows.append(
            (
                entry.title,
                f"{traffic.rounds:,}",
                f"{traffic.messages:,}",
                f"{100 * (1 - traffic.rounds / traffic.messages):.2f}" if traffic.messages else DASH,
                f"{100 * extra / sent:.4f}" if sent else DASH,
                f"{sent / GIB:.4f}",
                f"{sent / GBIT:.4f}",
                f"{traffic.bytes(broadcast=False, statistics=statistics) / GIB:.4f}",
                *(_from_rounded(traffic) if statistics else ()),
            )
        )
    header = ("Condition", "Rounds", "Messages", "% extra messages", "% extra", "GB", "Gbit", "GB, unicast")
    counted = "" if statistics else ", without the model's running statistics"
    caption = (
        f"All rounds{counted}, with broadcast except in the column GB, unicast. Extra is what the algorithm sends in "
        "addition to the model, in percent of all traffic. GB is 2^30 bytes, Gbit 2^30 bits"
    )
    if not statistics:
        return Table(caption, header, tuple(rows), 1)
    rounded = ("GB of rounded MB", "% extra of rounded MB")
    caption += ". The last two columns are computed from a round's MB, rounded to four decimals"
    return Table(caption, (*header, *rounded), tuple(rows), 1)


def _from_rounded(traffic: Forecast) -> Iterator[str]:
    """Yield the total GB and the extra share in percent, computed from the MB of each round rounded to four decimals.

    What is exchanged before the first round is rounded in the same way, and counts as extra.
    """

    def mb(floats: int) -> Decimal:
        return _rounded(Decimal(FLOAT_BYTES * floats) / MIB)

    sent = extra = mb(traffic.beforehand.floats(broadcast=True))
    for phase in traffic.phases:
        a_round = phase.floats(broadcast=True)
        sent += phase.rounds * mb(a_round)
        extra += phase.rounds * (mb(a_round) - mb(a_round - phase.extra_floats(broadcast=True)))
    yield str(_rounded(sent / 1024))
    yield str(_rounded(100 * extra / sent)) if sent else DASH


def _rounded(x: Decimal) -> Decimal:
    return x.quantize(Decimal("0.0001"), ROUND_HALF_UP)
