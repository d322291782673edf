"""The methods section of a page: each item with its text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ..addons import Addon
from ..algorithms import ADAM, Algorithm, Training
from ..analysis.findings import Findings
from ..analysis.operating_point import two_classes
from ..analysis.statistics import DRAWS, FEWEST, LEVEL
from ..analysis.values import inner, listed
from ..core import registry
from ..core.registry import Plugin
from ..data.partition import Partition
from ..metrics import Metric
from ..nn.bn_policy import POLICIES
from ..study.run import Run
from .operating_point import described
from .tables import LOSS_RECOVERED
from .wilds import rules


def protocol(findings: Findings) -> list[tuple[str, list[str]]]:
    """Return each item of the methods section with one or more lines."""
    study = findings.plan.study
    runs = list(findings.plan.runs.values())
    settings = [training for run in runs for training in run.trainings]
    card = runs[0].data.card
    recovers = findings.baseline and findings.others() and findings.tests_inside
    return [
        ("Dataset", [", version ".join(filter(None, [card.title, card.version]))]),
        *([("WILDS' rules", lines)] if (lines := rules(findings)) else []),
        ("Partition", [_partition(p) for p in study.partition]),
        ("Model", _plugins(run.model for run in runs)),
        ("Initial weights", list(dict.fromkeys(map(_initial_weights, runs)))),
        ("Transforms", _plugins(study.transforms) or ["none"]),
        ("Algorithms", _plugins(run.algorithm for run in runs)),
        *([("Add-ons", add_ons)] if (add_ons := _plugins(run.addon for run in runs if run.addon)) else []),
        ("BN policies", [_policy(name) for name in dict.fromkeys(run.bn for run in runs)]),
        *([("Sites outside", clauses)] if (clauses := _external(runs)) else []),
        ("Optimiser", list(dict.fromkeys(_optimiser(s) for s in settings))),
        ("Loss", list(dict.fromkeys(map(_loss, runs)))),
        ("Training", ["; ".join(_training(settings)) + "."]),
        ("Seeds", [", ".join(map(str, study.seeds))]),
        ("Inference", [line for key in findings.keys for line in _inference(findings, key)]),
        ("Model selection", list(dict.fromkeys(map(_selection, runs)))),
        *([("Operating point", described(findings.plan.study))] if two_classes(findings.plan) else []),
        ("Standard deviation", ["Over seeds, of one value a run (sample standard deviation, n - 1)."]),
        (
            "Intervals",
            [
                f"{LEVEL:.0%} percentile bootstrap, {DRAWS:,} resamples of whole patients within each site, of "
                "per-sample scores averaged over seeds; of single images where patients are unknown. Differences are "
                "paired: both sides see the same resamples. They say how the result would vary with other patients of "
                "the same sites, not with other sites or trainings. These are the intervals of single sites.",
                "Levels over sites, gaps and gains: t interval over patients and trainings. Its variance is that of "
                "the resamples plus that of the mean over seeds, with Satterthwaite's degrees of freedom, patients "
                "counted at the smallest site. With one seed it is over patients only.",
                *(m.interval_note for m in findings.metrics.values() if m.interval_note),
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
    "What an inference adds to the external mean, in percent of the gap with training statistics. It is not the "
    "share by which the gap shrinks: where an inference changes the internal mean too, that is less or more. It is "
    "given only for a gap whose interval excludes zero."
)


def _external(runs: Iterable[Run]) -> list[str]:
    """Return for each algorithm with layers or networks of each client's own what external sites get."""
    algorithms = (run.algorithm for run in runs if run.algorithm.external)
    return list(dict.fromkeys(f"{algorithm.label}: {algorithm.external}." for algorithm in algorithms))


def _initial_weights(run: Run) -> str:
    """Return where the weights of a run come from before its first round."""
    if getattr(run.model, "pretrained", False):
        return f"{run.model.label}: pretrained on ImageNet; the last layer is drawn at random from the run's seed."
    return "Drawn at random from the run's seed, not pretrained; all clients start from the same weights."


def _optimiser(training: Training) -> str:
    """Return how clients step: by SGD or Adam, with the settings of each."""
    title = _OPTIMISERS[training.optimiser]
    momentum = f"momentum {training.momentum:g}" if training.momentum else "no momentum"
    parts = [
        f"learning rate {training.lr:g} ({training.schedule} over rounds)",
        momentum if training.optimiser == "sgd" else f"betas {training.beta1:g} and {training.beta2:g}",
        f"weight decay {training.weight_decay:g}" if training.weight_decay else "no weight decay",
    ]
    return (
        f"{title} at each client, {listed(parts)}; its state starts again in each round. "
        "What the server does with the clients' updates is part of the algorithm."
    )


_OPTIMISERS = {"sgd": "Stochastic gradient descent (SGD)", "adam": "Adam", "adamw": "AdamW"}


def _loss(run: Run) -> str:
    """Return what the local steps of a run minimise."""
    bases = ((run.algorithm, Algorithm), *([(run.addon, Addon)] if run.addon else []))
    sources = [plugin.label for plugin, base in bases if _changes_steps(plugin, base)]
    extended = f"; {listed(sources)} {'change' if len(sources) > 1 else 'changes'} the loss or its gradient"
    weights = getattr(run.training, "class_weights", None)
    by = ", ".join(f"{w:g}" for w in weights) if isinstance(weights, tuple) else _BALANCED
    classes = f"each with the weight of its class ({by})" if weights else "classes unweighted"
    return f"Cross-entropy, mean over the images of a batch, {classes}{extended if sources else ''}."


_BALANCED = "all training images of the internal sites, divided by the number of classes and by the images of the class"


def _changes_steps(plugin: Plugin, base: type[Plugin]) -> bool:
    """Return whether an algorithm or add-on has a loss or a gradient other than that of its base class."""
    hooks = ("loss", "gradient", "backward", "correct")
    return any(getattr(type(plugin), hook, None) is not getattr(base, hook, None) for hook in hooks)


def _by_class(findings: Findings) -> str:
    names = [inner(m) for m in findings.metrics.values() if m.by_class]
    return f" ({listed(names)}: of each class that counts)" if names else ""


def _without(findings: Findings) -> str:
    names = [inner(m) for m in findings.metrics.values() if not m.has_interval]
    return f"; {listed(names)} {'come' if len(names) > 1 else 'comes'} without" if names else ""


def _selection(run: Run) -> str:
    """Return how the round that is kept was chosen. Without validation samples it is the last one, for any setting."""
    if (sites := run.training.select_at) and run.training.select != "last":
        best = best_by(getattr(run.training, "select_by", "accuracy")).replace("over clients", "")
        return f"The round with the {best.strip()} at {listed([*sites])}, not used for training or tests."
    if run.partition.split.val == 0:
        return "The last round: there are no validation samples to choose a round by."
    if run.training.select == "last":
        return "The last round."
    return f"The round with the {best_by(getattr(run.training, 'select_by', 'accuracy'))}. Test data play no part."


def best_by(name: str) -> str:
    """Return what the chosen round has: `highest mean validation accuracy over clients`."""
    if name == "loss":
        return "lowest mean validation loss (cross-entropy) over clients"
    metric: Metric = registry.build("metric", name)
    return f"{'highest' if metric.higher_is_better else 'lowest'} mean validation {inner(metric)} over clients"


def _inference(findings: Findings, key: str) -> Iterator[str]:
    """Yield what an inference does, and every setting with its meaning."""
    inference = findings.plan.inferences[key]
    yield f"{findings.name(key)}: {inference.summary().replace('`', '')}"
    for name, value in inference.described().items():
        text = type(inference).model_fields[name].description or ""
        yield f"{name.replace('_', ' ')} = {json.dumps(value).strip(chr(34))}{f': {text}' if text else ''}"


def _plugins(plugins: Iterable[Plugin]) -> list[str]:
    """Return `name: what it does` for each plug-in that differs."""
    return list(dict.fromkeys(f"{p.label}: {p.summary().replace('`', '')}" for p in plugins))


def _partition(partition: Partition) -> str:
    split = partition.split
    shares = ", ".join(f"{name} {share:.0%}" for name, share in split.model_dump().items())
    left_out = ["each internal site in turn"] if partition.leave_one_out else []
    external = ", ".join([*partition.external, *left_out]) or "none"
    dealt = f" (no real sites: {partition.deal.words})" if partition.deal else ""
    cut = "; internal sites are cut to the size of the smallest" if partition.truncate else ""
    if partition.cut:
        cut += (
            f"; the training samples of each site are then cut into {partition.cut.parts} parts, one for each of its "
            f"clients ({partition.cut.clients}), which share its test samples out"
        )
    return (
        f"Internal: {', '.join(partition.internal)}{dealt}. External: {external}. Internal sites are split into "
        f"{shares} by {partition.by} (seed {partition.seed}){cut}; external sites are tested whole."
    )


def _policy(name: str) -> str:
    """Return which tensors of batch norm are aggregated, and which ones an external site gets."""
    policy = POLICIES[name]
    local = [
        part
        for part, travels in (("gamma and beta", policy.affine), ("running statistics", policy.statistics))
        if not travels
    ]
    title = name.replace("_", " ")
    if not local:
        return f"{title}: all tensors of the BN layers are aggregated; external sites get the global model."
    return (
        f"{title}: {' and '.join(local)} stay at each client, which is tested with its own; "
        "external sites get their average over clients."
    )


def _training(settings: list[Training]) -> Iterator[str]:
    """Yield `name value` of each setting that has an effect; several values where runs differ."""
    unused = {"select", "select_by", "select_at", *ADAM}
    unused |= set() if any(s.schedule == "exponential" for s in settings) else {"lr_decay"}
    for name in Training.model_fields:
        values = dict.fromkeys(str(getattr(s, name)).lower() for s in settings)
        if name not in unused and set(values) != {"none"}:
            yield f"{name.replace('_', ' ')} {' or '.join(values)}"
