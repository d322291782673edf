"""What leaves a site, said before it does: the tensors of a run by name, and how often each may be asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..jobs.run_files import REVEALS, STAYS, WITH_EACH_ANSWER, row_columns
from .hospital import Hospital

SENTENCE = f"{STAYS} here. What leaves is listed above. {REVEALS}"
"""What each site is told about everything that leaves."""


def leaves(hospital: Hospital) -> Iterator[str]:
    """Yield lines that say what leaves a site, and the budget of each kind of message."""
    for key, run in hospital.runs.items():
        forms, budgets = hospital.forms(key), hospital.budgets(key)
        yield f"  {run.method}, bn {run.bn}, seed {run.seed}: {run.training.rounds} rounds"
        for kind, budget in budgets.items():
            sets = [known for (asked, _), known in forms.answers.items() if asked == kind]
            tensors = {name: form for known in sets for one in known for name, form in one.items()}
            for name, (shape, _) in sorted(tensors.items()):
                yield f"    {kind}: {name}, {math.prod(shape):,} numbers, at most {budget:,} times"
        counts = ", ".join(f"{kind} {budget:,}" for kind, budget in budgets.items())
        yield f"    answered at most so often, then refused: {counts}"
    yield f"  with each answer: {WITH_EACH_ANSWER}"
    if hospital.rows:
        columns = ", ".join(row_columns(hospital.local.study))
        yield f"  once at the end, for each scored image under drawn numbers of image and patient: {columns}"
        yield "    (--no-rows keeps them here; the page then lacks this site)"
    yield SENTENCE
