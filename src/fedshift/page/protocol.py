"""The methods section of a page, its glossary, the rules of the WILDS benchmark, and what left real sites.

WILDS rules: https://wilds.stanford.edu/submit (Koh et al. 2021). The official Camelyon17 split trains on centres 0, 3
and 4, validates on centre 1 and tests on centre 2, with 10 seeds. In a standard entry, neither labels nor statistics of
test images, such as those of batch norm, influence a prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from ..addons import Addon
from ..algorithms import ADAM, Algorithm, Training
from ..analysis.estimates import FEWEST, LEVEL
from ..analysis.findings import Findings
from ..analysis.values import inner, listed
from ..core.registry import Plugin
from ..core.spelling import counted, plural
from ..data.partition import Partition
from ..datasets.camelyon17 import Camelyon17
from ..jobs.run_files import REVEALS, STAYS, SUMS, WITH_EACH_ANSWER, row_columns
from ..nn.policies import BATCH, POLICIES, BNPolicy
from ..study.run import Run
from .history import Trained
from .phrases import capital, first_line, in_samples, metric_named, verb
from .study_report import StudyReport
from .summary import LOSS_RECOVERED
from .threshold_and_probabilities import described

BN = (
    "batch normalisation: layers that scale what they get by a mean and a variance, in training those of a batch, in "
    "prediction those of the training or of the site. Other scanners or stains change just these."
)
COLLAPSE = (
    "predictions end in one class, whatever the image. Methods that learn from their own predictions at a site can do "
    "that, and their entropy then looks best."
)
RECOVERED = (
    "What an inference adds to the external mean, in units of the headline metric. The gap may shrink by less or more, "
    "where an inference changes the internal mean too. It is given where the intervals of the gap with training "
    "statistics and of the gain exclude zero."
)
EACH_ONCE = "Each site counts once, whatever its size. A site where a metric is not defined does not count."
GAP = " The gap is the internal mean minus the external mean."
OPTIMISERS = {"sgd": "Stochastic gradient descent (SGD)", "adam": "Adam", "adamw": "AdamW"}
TRAINED: dict[str | tuple[str, ...], str] = {
    "all": "All layers.",
    "head": "The last layer alone: a linear probe. All else, running statistics of batch norm too, keeps its initial "
    "values and does not travel.",
    ("norm", "head"): "Norms and the last layer: norm tuning. All else keeps its initial values and does not travel.",
}
VERBATIM = ("Dataset", "Partition", "Initial weights")
"""Items whose names come from others, so that "image" in them is not replaced by the dataset's noun."""
HOOKS = ("loss", "gradient", "backward", "correct")
BALANCED = "all training images of the internal sites, divided by the number of classes and by the images of the class"


def glossary(findings: Findings) -> list[tuple[str, str]]:
    """Return words of the page with their explanations: batch norm, its policies, and inference methods.

    The word Collapse is added if a method adapts by gradient steps.
    """
    policies = dict.fromkeys(run.bn for run in findings.plan.runs.values())
    kinds = {inference.display_name: inference for inference in findings.plan.inferences.values()}
    words = {"BN": BN}
    words |= {f"{_title(name).capitalize()} BN": _kept(POLICIES[name]) for name in policies}
    for name, inference in kinds.items():
        text = first_line(inference)
        if not text[:2].isupper():
            text = f"{text[:1].lower()}{text[1:]}"
        words[name] = text
    if any(inference.gradients for inference in kinds.values()):
        words["Collapse"] = COLLAPSE
    sample = findings.plan.study.dataset.sample_noun
    return [(f"{name}:", in_samples(text, sample)) for name, text in words.items()]


def _kept(policy: BNPolicy) -> str:
    """Return which tensors of batch norm layers a site keeps for itself under a batch norm policy."""
    shared = {"trained factors": policy.affine, "means and variances": policy.statistics}
    kept = [part for part, travels in shared.items() if not travels]
    if not kept:
        return "the server averages these layers over sites, as it does with all weights."
    return f"each site keeps the {' and the '.join(kept)} of these layers for itself."


def protocol(findings: Findings) -> list[tuple[str, list[str]]]:
    """Return the items of the methods section, such as Model or Optimiser, each with its lines of text."""
    study = findings.plan.study
    runs = list(findings.plan.runs.values())
    settings = [training for run in runs for training in run.trainings]
    trained = _distinct(TRAINED[training.train] for training in settings)
    card = runs[0].data.card
    items = {
        "Dataset": [", version ".join(filter(None, [card.title, card.version]))],
        "WILDS' rules": wilds_rules(findings),
        "Partition": [_partition(partition) for partition in study.partition],
        "Model": _plugins(run.model for run in runs),
        "Initial weights": _distinct(map(_initial_weights, runs)),
        "Trained layers": [] if trained == [TRAINED["all"]] else trained,
        "Transforms": _plugins(study.transforms) or ["none"],
        "Algorithms": _plugins(run.algorithm for run in runs),
        "Add-ons": _plugins(run.addon for run in runs if run.addon),
        "BN policies": _distinct(_policy(run.bn, run.norms) for run in runs),
        "Sites outside": _distinct(f"{a.label}: {a.external}." for a in (run.algorithm for run in runs) if a.external),
        "Optimiser": _distinct(map(_optimiser, settings)),
        "Loss": _distinct(map(_loss, runs)),
        "Training": ["; ".join(_training(settings)) + "."],
        "Seeds": [", ".join(map(str, study.seeds))],
        "Inference": [line for key in findings.keys for line in _inference(findings, key)],
        "Model selection": _distinct(map(_selection, runs)),
        "Operating point": described(study) if study.two_classes else [],
        "Standard deviation": ["Over seeds, of one value a run (sample standard deviation, n - 1)."],
        "Intervals": _intervals(findings),
        "Mean over sites": [f"{EACH_ONCE}{GAP if findings.tests_inside else ''}"],
    }
    if findings.baseline and findings.others() and findings.tests_inside:
        items[LOSS_RECOVERED] = [RECOVERED]
    sample = study.dataset.sample_noun
    return [
        (name, lines if name in VERBATIM else [in_samples(line, sample) for line in lines])
        for name, lines in items.items()
        if lines
    ]


def _distinct(lines: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(lines))


def _intervals(findings: Findings) -> list[str]:
    metrics = findings.metrics.values()
    few = f"None is given under {FEWEST} test patients"
    if by_class := [inner(metric) for metric in metrics if metric.by_class]:
        few += f" ({listed(by_class)}: of each class that counts)"
    few += "; the mean over sites leaves out those with fewer, where others have enough"
    if without := [inner(metric) for metric in metrics if not metric.has_interval]:
        few += f"; {listed(without)} {verb(len(without), 'come')} without"
    unit = findings.plan.study.resampled(known=True)
    return [
        *([f"Where this protocol says patients, this study has {plural(unit)}."] if unit != "patient" else []),
        f"{LEVEL:.0%} t intervals over patients and trainings, by how much each patient moves the score: the two-way "
        "analysis of variance of trainings that score the same patients (trainings + patients - residual, negative "
        "components counted as zero), with Satterthwaite's degrees of freedom. They say how the result would vary "
        "with other test patients of the same sites and other trainings on the same training patients, not with other "
        "sites. They are over single images where patients are unknown. With one seed they are over patients only, and "
        "about that model, not about the method.",
        "A share varies as Wilson's interval for as many independent samples as vary as much, more towards the middle "
        "than towards its end, and at least as if half a patient more were answered wrongly, as far as the images of "
        "a patient agree. A difference between sites adds these distances, but is paired by seeds: what a training "
        "does to both sites alike cancels. One on the same patients is paired by patients, too.",
        *(metric.interval_note for metric in metrics if metric.interval_note),
        f"{few}.",
    ]


def _initial_weights(run: Run) -> str:
    """Return the origin of a run's initial weights: pretrained or random."""
    if run.model.origin:
        start = "pretrained; the last layer is drawn at random from the run's seed"
        return f"{run.model.label}: {start}. Weights: {run.model.origin}."
    return "Drawn at random from the run's seed, not pretrained; all clients start from the same weights."


def _optimiser(training: Training) -> str:
    """Return the clients' optimiser with its learning rate, momentum or betas, and weight decay."""
    momentum = f"betas {training.beta1:g} and {training.beta2:g}"
    if training.optimiser == "sgd":
        momentum = f"momentum {training.momentum:g}" if training.momentum else "no momentum"
    decay = f"weight decay {training.weight_decay:g}" if training.weight_decay else "no weight decay"
    parts = [f"learning rate {training.lr:g} ({training.schedule} over rounds)", momentum, decay]
    return (
        f"{OPTIMISERS[training.optimiser]} at each client, {listed(parts)}; its state starts again in each round. "
        "What the server does with the clients' updates is part of the algorithm."
    )


def _loss(run: Run) -> str:
    """Return the loss that clients minimise, its class weights, and the plug-ins that change it or its gradient."""
    plugins: list[tuple[Plugin, type[Plugin]]] = [(run.algorithm, Algorithm)]
    if run.addon:
        plugins.append((run.addon, Addon))
    # what has a loss or a gradient other than that of its base class
    sources = [
        plugin.label
        for plugin, base in plugins
        if any(getattr(type(plugin), hook, None) is not getattr(base, hook, None) for hook in HOOKS)
    ]
    weights, classes = getattr(run.training, "class_weights", None), "classes unweighted"
    if weights:
        by = ", ".join(f"{w:g}" for w in weights) if isinstance(weights, tuple) else BALANCED
        classes = f"each with the weight of its class ({by})"
    text = f"{run.data.task.loss_in_words}, mean over the images of a batch, {classes}"
    if sources:
        text += f"; {listed(sources)} {verb(len(sources), 'change')} the loss or its gradient"
    return f"{text}."


def _selection(run: Run) -> str:
    """Return how the round to keep was chosen: by validation, or as the last one.

    Without validation samples it is the last round, whatever the setting.
    """
    sites, best = run.training.select_at, best_by(getattr(run.training, "select_by", "accuracy"))
    if sites and run.training.select != "last":
        best = best.replace("over clients", "").strip()
        return f"The round with the {best} at {listed([*sites])}, not used for training or tests."
    if run.partition.split.val == 0:
        return "The last round: there are no validation samples to choose a round by."
    if run.training.select == "last":
        return "The last round."
    return f"The round with the {best}. Test data play no part."


def best_by(name: str) -> str:
    """Return the criterion of model selection in words: `highest mean validation accuracy over clients`.

    `name` is a metric or `loss`.
    """
    if name == "loss":
        return "lowest mean validation loss (cross-entropy) over clients"
    metric = metric_named(name)
    extreme = {True: "highest", False: "lowest"}[metric.higher_is_better]
    return f"{extreme} mean validation {inner(metric)} over clients"


def _inference(findings: Findings, key: str) -> Iterator[str]:
    """Yield the description of an inference method, then each of its settings with its meaning.

    `key` is the id of the method in the study.
    """
    inference = findings.plan.inferences[key]
    yield f"{findings.name(key)}: {first_line(inference)}"
    for name, value in inference.described().items():
        text = f"{_title(name)} = {json.dumps(value).strip(chr(34))}"
        if description := type(inference).model_fields[name].description:
            text += f": {description}"
        yield text


def _plugins(plugins: Iterable[Plugin]) -> list[str]:
    """Return `name: description` for each plug-in, without repetitions."""
    return _distinct(f"{plugin.label}: {first_line(plugin)}" for plugin in plugins)


def _partition(partition: Partition) -> str:
    shares = ", ".join(f"{name} {share:.0%}" for name, share in partition.split.shares.items())
    if partition.split.column:
        shares = f"as the column {partition.split.column!r} of the table states"
    external = [*partition.external]
    if partition.leave_one_out:
        external.append("each internal site in turn")
    text = f"Internal: {', '.join(partition.internal)}"
    if partition.deal:
        text += f" (no real sites: {partition.deal.words})"
    text += (
        f". External: {', '.join(external) or 'none'}. Internal sites are split into {shares} by {partition.by} "
        f"(seed {partition.seed})"
    )
    if partition.split.folds:
        text += f"; each of {partition.split.folds} folds tests other patients"
    if partition.truncate:
        text += "; internal sites are cut to the size of the smallest"
    if partition.cut:
        text += (
            f"; the training samples of each site are then cut into {partition.cut.parts} parts, one for each of its "
            f"clients ({partition.cut.clients}), which share its test samples out"
        )
    return f"{text}; external sites are tested whole."


def _policy(name: str, norms: tuple[str, ...]) -> str:
    """Return which tensors of norm layers a batch norm policy aggregates, and which ones external sites get.

    `norms` are the kinds of normalisation that the policy covers, such as batch.
    """
    policy = POLICIES[name]
    aggregated = {"gamma and beta": policy.affine, "running statistics": policy.statistics}
    local = [part for part, travels in aggregated.items() if not travels]
    of = "" if norms == BATCH else f" of {listed([f'{kind} norm' for kind in norms])}"
    if not local:
        return f"{_title(name)}: all tensors of the BN layers are aggregated; external sites get the global model."
    return (
        f"{_title(name)}: {' and '.join(local)}{of} stay at each client, which is tested with its own; "
        "external sites get their average over clients."
    )


def _title(name: str) -> str:
    return name.replace("_", " ")


def _training(settings: list[Training]) -> Iterator[str]:
    """Yield each training setting that has an effect, with its value, or its values where runs differ."""
    unused = {"train", "select", "select_by", "select_at", *ADAM}
    if all(training.schedule != "exponential" for training in settings):
        unused.add("lr_decay")
    for name in Training.model_fields:
        values = dict.fromkeys(str(getattr(training, name)).lower() for training in settings)
        if name not in unused and set(values) != {"none"}:
            yield f"{_title(name)} {' or '.join(values)}"


SEEDS = 10
WILDS_TRAINED, CHOSEN_AT, TESTED = {"centre0", "centre3", "centre4"}, ("centre1",), ("centre2",)


def wilds_rules(findings: Findings) -> list[str]:
    """Return one line on whether a Camelyon17 study follows the rules of WILDS; empty for any other dataset."""
    if not isinstance(findings.plan.study.dataset, Camelyon17):
        return []
    departures = list(_departures(findings))
    verdict = "standard, as far as fedshift can tell"
    if departures:
        verdict = f"non-standard, because {'; '.join(departures)}"
    if any(data.synthetic for data in findings.plan.data.values()):
        return [f"They do not apply to synthetic images. On the real images, these settings would be {verdict}."]
    return [f"{capital(verdict)}. This is not an official entry, which takes WILDS' own evaluator."]


def _departures(findings: Findings) -> Iterator[str]:
    """Yield each way in which a study departs from the rules for a standard WILDS entry."""
    plan = findings.plan
    names = {key: findings.name(key) for key in plan.inferences}
    if any(run.algorithm.collaboration.count(len(WILDS_TRAINED)) > 1 for run in plan.runs.values()):
        yield "training is federated, which is another protocol"
    seeds = min(len(condition.seeds) for condition in findings.conditions)
    if seeds < SEEDS:
        there_are = {1: "there is one seed"}.get(seeds, f"there are {seeds} seeds")
        yield f"{there_are}, fewer than the {SEEDS} for Camelyon17"
    for part in plan.partitions:
        # one partition that departs is enough; the sentence does not name it
        if set(part.internal) != WILDS_TRAINED or part.external != TESTED or part.split.train < 1 or part.truncate:
            yield "the split is not the official one (training at centres 0, 3 and 4, test at centre 2)"
            break
    if any(run.data.dataset.model_dump().get("id_val") for run in plan.runs.values()):
        yield "the patches that WILDS keeps for in-distribution validation train too"
    if any(run.training.select != "last" and run.training.select_at != CHOSEN_AT for run in plan.runs.values()):
        yield "the round is not chosen at centre 1"
    batches = [names[key] for key, inference in plan.inferences.items() if inference.score_columns()["batch_size"]]
    if batches:
        yield f"{listed(batches)} {verb(len(batches), 'take')} statistics of test images, without labels"
    if labelled := [names[key] for key, inference in plan.inferences.items() if inference.uses_labels]:
        yield f"{listed(labelled)} {verb(len(labelled), 'use')} labels of the test centre"


ITEM = "Real sites"


def between_sites(report: StudyReport) -> list[tuple[str, list[str]]]:
    """Return the item of the methods section on what real sites sent; empty if all runs trained in one place."""
    runs = [run for run in report.runs if run.manifest.get("sites")]
    if not runs:
        return []
    names = list(dict.fromkeys(name for run in runs for name in run.manifest["sites"]))
    trained = "All runs were" if len(runs) == len(report.runs) else f"{len(runs)} of {len(report.runs)} runs were"
    columns = ", ".join(row_columns(report.plan.study))
    summed = f"; in their place {listed(report.sites_summed)} sent {SUMS}" if report.summed else ""
    lines = [
        f"{trained} trained between {counted(len(names), 'real site')}, {listed(names)}, which kept their images.",
        "What left a site: in each round the tensors that the method sends (see Communication and time), with "
        f"{WITH_EACH_ANSWER}; once, after training, {columns} of each scored image, under drawn numbers of image and "
        f"patient{summed}. {STAYS} at the site. {REVEALS}",
        _missing(runs),
    ]
    return [(ITEM, [in_samples(line, report.nouns.sample) for line in lines])]


def _missing(runs: list[Trained]) -> str:
    """Return how many messages of real sites are missing, by site."""
    lost = [str(answer["site"]) for run in runs for answer in run.manifest.get("missing") or ()]
    if not lost:
        return "All sites answered in every round."
    counts = [f"{site} {lost.count(site)}" for site in dict.fromkeys(lost)]
    return f"{counted(len(lost), 'answer')} of sites are missing: {listed(counts)}. The manifests of the runs say why."
