"""The page says what external sites are predicted with, where clients have layers or networks of their own."""

from __future__ import annotations

import html
from pathlib import Path

from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.analysis.values import listed
from fedshift.page import page
from fedshift.page.answer import answer
from fedshift.page.protocol import protocol


def test_the_page_says_what_external_sites_get(tmp_path: Path) -> None:
    names = ["lg_fedavg", "fedper", "fedbabu", "ditto", "apfl", "fedavg"]
    changes = {"runs": [{"algorithm": name} for name in names], "seeds": [0], "figures": [], "inferences": ["source"]}
    plan, paths = summarised(tmp_path, lambda *_: 0.9, **changes)
    findings = study_results.load(plan, paths).findings
    assert dict(protocol(findings))["Sites outside"] == [
        "lg_fedavg: external sites are not predicted, since the mean of the clients' bodies has no meaning.",
        "fedper: external sites get the plain mean of the clients' last layers, on the common body.",
        "fedbabu: external sites get the random last layer that all clients share and none trains, on the common body.",
        "ditto: external sites get the global model, internal sites their personal networks.",
        "apfl: external sites get the global model, internal sites mixtures of it with their personal networks.",
    ]
    titles = {condition.run.algorithm.name: condition.title for condition in findings.conditions}
    named = listed([titles[name] for name in names[1:5]])
    two = f"{named}: internal sites are predicted with their own networks or layers"
    caveat = "each client has its own body, so there is no model for external sites."
    text = html.unescape(page.write(study_results.load(plan, paths)).read_text(encoding="utf-8"))
    assert caveat in text
    assert two in text
    first = answer(findings)
    assert "Each client has its own body: only the last layer travels." in " ".join([first.lead, *first.others])


def test_a_study_of_global_models_alone_has_no_such_lines(tmp_path: Path) -> None:
    plan, paths = summarised(tmp_path, runs=[{"algorithm": "fedavg"}], seeds=[0], figures=[])
    assert "Sites outside" not in dict(protocol(study_results.load(plan, paths).findings))
    assert "compares two networks" not in page.write(study_results.load(plan, paths)).read_text(encoding="utf-8")
