"""What was done, as name and text: the methods section of a page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ..algorithms import Training
from ..analysis.findings import Findings
from ..analysis.statistics import DRAWS, FEWEST, LEVEL
from ..analysis.values import inner, listed
from ..core.registry import Plugin
from ..data.partition import Partition
from ..nn.bn_policy import POLICIES
from ..study.plan import Plan
from ..study.run import Run
from .tables import LOSS_RECOVERED

_SELECT = {
    "best_validation": "The round with the highest mean validation accuracy over clients. Test data play no part.",
    "last": "The last round.",
    "no validation": "The last round: there are no validation samples to choose a round by.",
}


def scaled(plan: Plan) -> bool:
    """Whether mini and paper scale differ at all in this study."""
    return plan.study.dataset.has_miniature or bool(plan.study.scales.get("mini"))


def protocol(findings: Findings) -> list[tuple[str, list[str]]]:
    """Each item with one or more lines."""
    study = findings.plan.study
    runs = list(findings.plan.runs.values())
    settings = [run.training for run in runs]
    card = runs[0].data.card
    recovers = findings.baseline and findings.others() and findings.tests_inside
    return [
        ("Dataset", [", version ".join(filter(None, [card.title, card.version]))]),
        ("Partition", [_partition(p) for p in study.partition]),
        ("Model", _plugins(run.model for run in runs)),
        ("Transforms", _plugins(study.transforms) or ["none"]),
        ("Algorithms", _plugins(run.algorithm for run in runs)),
        *([("Add-ons", add_ons)] if (add_ons := _plugins(run.addon for run in runs if run.addon)) else []),
        ("BN policies", [_policy(name) for name in dict.fromkeys(run.bn for run in runs)]),
        ("Training", ["; ".join(_training(settings)) + "."]),
        ("Seeds", [", ".join(map(str, study.seeds))]),
        ("Inference", [line for key in findings.keys for line in _inference(findings, key)]),
        ("Model selection", list(dict.fromkeys(_SELECT[_selection(run)] for run in runs))),
        ("Standard deviation", ["Over seeds, of one value a run (sample standard deviation, n - 1)."]),
        (
            "Intervals",
            [
                f"{LEVEL:.0%} percentile bootstrap, {DRAWS:,} resamples of whole patients within each site, of "
                "per-sample scores averaged over seeds; of single images where patients are unknown. Differences are "
                "paired: both sides see the same resamples. They say how the result would vary with other patients of "
                "the same sites, not with other sites or trainings.",
                f"None is given under {FEWEST} test patients{_by_class(findings)}, nor for a mean over sites one of "
                f"which has none{_without(findings)}.",
            ],
        ),
        (
            "Mean over sites",
            [
                "Each site counts once, whatever its size. A site where a metric is not defined does not count."
                + (" The gap is the internal mean minus the external mean." if findings.tests_inside else ""),
            ],
        ),
        *([(LOSS_RECOVERED, [_RECOVERED])] if recovers else []),
    ]


_RECOVERED = (
    "What an inference adds to the external mean, in percent of the gap with training statistics. It is no share of "
    "its own gap: where it changes the internal mean too, the gap shrinks by less or more than that. It is told only "
    "of a gap that exceeds its spread over seeds and whose interval, where there is one, excludes zero."
)


def _by_class(findings: Findings) -> str:
    names = [inner(m) for m in findings.metrics.values() if m.by_class]
    return f" ({listed(names)}: of each class that counts)" if names else ""


def _without(findings: Findings) -> str:
    names = [inner(m) for m in findings.metrics.values() if not m.has_interval]
    return f"; {listed(names)} {'come' if len(names) > 1 else 'comes'} without" if names else ""


def _selection(run: Run) -> str:
    """How a run's round was chosen; without validation samples the last is kept, whatever was asked for."""
    return run.training.select if run.partition.split.val > 0 else "no validation"


def _inference(findings: Findings, key: str) -> Iterator[str]:
    """What it does, and every setting with its meaning."""
    inference = findings.plan.inferences[key]
    yield f"{findings.name(key)}: {inference.summary().replace('`', '')}"
    for name, value in inference.described().items():
        text = type(inference).model_fields[name].description or ""
        yield f"{name.replace('_', ' ')} = {json.dumps(value).strip(chr(34))}{f': {text}' if text else ''}"


def _plugins(plugins: Iterable[Plugin]) -> list[str]:
    """`name: what it does` of each that differs."""
    return list(dict.fromkeys(f"{p.label}: {p.summary().replace('`', '')}" for p in plugins))


def _partition(partition: Partition) -> str:
    split = partition.split
    shares = ", ".join(f"{name} {share:.0%}" for name, share in split.model_dump().items())
    external = ", ".join(partition.external) or "none"
    cut = "; internal sites are cut to the size of the smallest" if partition.truncate else ""
    return (
        f"Internal: {', '.join(partition.internal)}. External: {external}. Internal sites are split into {shares} "
        f"by {partition.by} (seed {partition.seed}){cut}; external sites are tested whole."
    )


def _policy(name: str) -> str:
    """What travels, and what an external site is given."""
    policy = POLICIES[name]
    kept = [
        part
        for part, travels in (("gamma and beta", policy.affine), ("running statistics", policy.statistics))
        if not travels
    ]
    title = name.replace("_", " ")
    if not kept:
        return f"{title}: all tensors of the BN layers are aggregated; external sites get the global model."
    return (
        f"{title}: {' and '.join(kept)} stay at each client, which is tested with its own; "
        "external sites get their average over clients."
    )


def _training(settings: list[Training]) -> Iterator[str]:
    """`name: value` of each setting that is made use of; several values where runs differ."""
    unused = {"select", *(() if any(s.schedule == "exponential" for s in settings) else ("lr_decay",))}
    for name in Training.model_fields:
        values = dict.fromkeys(str(getattr(s, name)).lower() for s in settings)
        if name not in unused and set(values) != {"none"}:
            yield f"{name.replace('_', ' ')} {' or '.join(values)}"
