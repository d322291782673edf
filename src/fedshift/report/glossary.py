"""The words of the first sentences that a reader may not know: batch norm, its policies, and the inferences."""

from __future__ import annotations

from ..analysis.findings import Findings
from ..nn.bn_policy import POLICIES, BNPolicy

BN = (
    "batch normalisation: layers that scale what they get by a mean and a variance, in training those of a batch, in "
    "prediction those of the training or of the site. Other scanners or stains change just these."
)

COLLAPSE = (
    "predictions end in one class, whatever the image. Methods that learn from their own predictions at a site can do "
    "that, and their entropy then looks best."
)


def glossary(findings: Findings) -> list[tuple[str, str]]:
    """Return each word with its meaning: BN, the BN policies of the study, and its inferences."""
    policies = dict.fromkeys(run.bn for run in findings.plan.runs.values())
    kinds = {inference.display_name: inference for inference in findings.plan.inferences.values()}
    return [
        ("BN:", BN),
        *((f"{name.replace('_', ' ').capitalize()} BN:", _policy(POLICIES[name])) for name in policies),
        *((f"{name}:", _sentence(inference.summary())) for name, inference in kinds.items()),
        *([("Collapse:", COLLAPSE)] if any(inference.gradients for inference in kinds.values()) else []),
    ]


def _policy(policy: BNPolicy) -> str:
    """Return what a site shares of its BN layers."""
    if policy.affine and policy.statistics:
        return "the server averages these layers over sites, as it does with all weights."
    kept = [
        *(["trained factors"] if not policy.affine else []),
        *(["means and variances"] if not policy.statistics else []),
    ]
    return f"each site keeps the {' and the '.join(kept)} of these layers for itself."


def _sentence(summary: str) -> str:
    """Return the first line of a docstring as the rest of a sentence after a colon."""
    text = summary.replace("`", "")
    return text if text[:2].isupper() else f"{text[:1].lower()}{text[1:]}"
