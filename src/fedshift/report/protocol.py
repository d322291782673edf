"""What was done, as name and text: the methods section of a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..bn import POLICIES
from ..partition import Partition
from ..registry import Plugin
from ..training import Training
from .findings import Findings
from .statistics import DRAWS, LEVEL

_SELECT = {
    "best_validation": "The round with the highest mean validation accuracy over clients. Test data play no part.",
    "last": "The last round.",
}


def protocol(findings: Findings) -> list[tuple[str, list[str]]]:
    """Each item with one or more lines."""
    study = findings.plan.study
    runs = list(findings.plan.runs.values())
    settings = [run.training for run in runs]
    dataset = study.dataset
    title = (dataset.miniature_card() if runs[0].data.synthetic else dataset.card()).title
    return [
        ("Dataset", [f"{title} ({study.dataset.label}), scale {findings.plan.scale}"]),
        ("Partition", [_partition(p) for p in study.partition]),
        ("Model", _plugins(run.model for run in runs)),
        ("Transforms", _plugins(study.transforms) or ["none"]),
        ("Algorithms", _plugins(run.algorithm for run in runs)),
        *([("Add-ons", add_ons)] if (add_ons := _plugins(run.addon for run in runs if run.addon)) else []),
        ("BN policies", [_policy(name) for name in dict.fromkeys(run.bn for run in runs)]),
        ("Training", ["; ".join(_training(settings)) + "."]),
        ("Seeds", [", ".join(map(str, study.seeds))]),
        ("Inference", _plugins(study.inferences)),
        ("Model selection", [_SELECT[name] for name in dict.fromkeys(t.select for t in settings)]),
        ("Standard deviation", ["Over seeds, of one value a run (sample standard deviation, n - 1)."]),
        (
            "Intervals",
            [
                f"{LEVEL:.0%} percentile bootstrap, {DRAWS:,} resamples of whole patients within each site, of "
                "per-sample scores averaged over seeds; of single images where patients are unknown. Differences are "
                "paired: both sides see the same resamples. They say how the result would vary with other patients of "
                "the same sites, not with other sites or trainings.",
            ],
        ),
        (
            "Mean over sites",
            ["Each site counts once, whatever its size. The gap is the internal mean minus the external mean."],
        ),
    ]


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
    """`name: value` of each setting; several values where runs differ."""
    for name in Training.model_fields:
        if name != "select":
            values = dict.fromkeys(str(getattr(s, name)).lower() for s in settings)
            yield f"{name.replace('_', ' ')} {' or '.join(values)}"
