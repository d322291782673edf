"""The items of the reporting checklists, in our words: who answers each, and where on the page.

CLAIM 2024: Tejani et al. 2024, Radiology: Artificial Intelligence 6(4):e240300, 44 items.
TRIPOD+AI: Collins et al. 2024, BMJ 385:e078378, 27 items in 52 parts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Who = Literal["fedshift", "partly", "you"]
ANSWER, SITES, COHORT, PROTOCOL, PROVENANCE = "answer", "sites", "cohort", "protocol", "provenance"


@dataclass(frozen=True)
class Item:
    """One item of a checklist.

    Attributes
    ----------
    number, topic : as the checklist counts it, and what it is about
    who : fedshift answers it alone, partly, or only the author can
    section : id of the section of the page with the part of fedshift; empty where there is none
    prefilled : what that section says about it
    field : field of the study's key `author` with the author's part; empty where there is none
    """

    number: str
    topic: str
    who: Who
    section: str = ""
    prefilled: str = ""
    field: str = ""


def _tool(number: str, topic: str, section: str, prefilled: str) -> Item:
    return Item(number, topic, "fedshift", section, prefilled)


def _partly(number: str, topic: str, section: str, prefilled: str, field: str) -> Item:
    return Item(number, topic, "partly", section, prefilled, field)


def _author(number: str, topic: str, field: str) -> Item:
    return Item(number, topic, "you", field=field)


CLAIM = (
    _partly("1", "Title or abstract names the AI technology", PROTOCOL, "model and algorithms", "summary"),
    _partly("2", "Structured summary", ANSWER, "the numbers", "summary"),
    _author("3", "Background and intended clinical role", "intended_use"),
    _partly("4", "Aims and hypotheses", ANSWER, "question and headline metric", "hypotheses"),
    _author("5", "Prospective or retrospective", "design"),
    _partly("6", "Goal of the study", ANSWER, "question", "design"),
    _partly("7", "Data sources", PROVENANCE, "source and version of the data, sites", "data_sources"),
    _partly("8", "Inclusion and exclusion criteria", COHORT, "images that were counted", "eligibility"),
    _tool("9", "Preprocessing", PROTOCOL, "transforms"),
    _partly("10", "Selection of data subsets", PROTOCOL, "partition", "preparation"),
    _author("11", "De-identification", "deidentification"),
    _partly("12", "Missing data", COHORT, "patients, labels and images that are unknown", "preparation"),
    _author("13", "Image acquisition", "acquisition"),
    _author("14", "Definition of the reference standard", "reference_standard"),
    _author("15", "Rationale for the reference standard", "reference_standard"),
    _author("16", "Source of annotations", "annotation"),
    _author("17", "Annotation of the test set", "annotation"),
    _author("18", "Variability within and between annotators", "variability"),
    _tool("19", "Assignment of data to partitions", PROTOCOL, "partition and its seed"),
    _tool("20", "Level at which partitions are disjoint", COHORT, "checks of the splits"),
    _partly("21", "Intended sample size", COHORT, "images and patients of each site", "sample_size"),
    _tool("22", "Model, inputs and outputs", PROTOCOL, "model"),
    _tool("23", "Software", PROVENANCE, "versions"),
    _tool("24", "Initialization of model parameters", PROTOCOL, "initial weights"),
    _tool("25", "Training", PROTOCOL, "training, optimiser, loss and seeds"),
    _tool("26", "Selection of the final model", PROTOCOL, "model selection"),
    _tool("27", "Ensembling", PROTOCOL, "none: values of single trainings, averaged over seeds"),
    _tool("28", "Metrics", SITES, "every metric"),
    _tool("29", "Significance and uncertainty", PROTOCOL, "intervals"),
    _partly("30", "Robustness and sensitivity", SITES, "sites and seeds apart", "robustness"),
    _author("31", "Explainability", "explainability"),
    _tool("32", "Internal testing", SITES, "internal sites"),
    _tool("33", "External testing", SITES, "external sites"),
    _author("34", "Registration of a clinical trial", "registration"),
    _partly("35", "Numbers included and excluded", COHORT, "numbers from the first loaded row on", "participants"),
    _partly("36", "Demographic and clinical characteristics", COHORT, "classes of each split", "participants"),
    _tool("37", "Performance with its uncertainty", SITES, "values and intervals"),
    _tool("38", "Diagnostic performance and precision", SITES, "every metric with intervals"),
    _partly("39", "Failure analysis", SITES, "the worst site", "failures"),
    _partly("40", "Limitations", ANSWER, "caveats", "limitations"),
    _author("41", "Implications and intended use", "intended_use"),
    _author("42", "Access to the protocol", "protocol"),
    _partly("43", "Availability of code, model and data", PROVENANCE, "commit, digests, licence", "code_availability"),
    _author("44", "Funding", "funding"),
)
"""The items of CLAIM 2024 in its order."""

TRIPOD_AI = (
    _partly("1", "Title", ANSWER, "model and sites", "summary"),
    _partly("2", "Abstract", ANSWER, "the numbers", "summary"),
    _author("3a", "Health-care context", "intended_use"),
    _author("3b", "Purpose and intended users", "intended_use"),
    _author("3c", "Health inequalities", "fairness"),
    _partly("4", "Objectives: development or evaluation", ANSWER, "question", "hypotheses"),
    _partly("5a", "Sources of data", PROVENANCE, "source and version of the data", "data_sources"),
    _author("5b", "Dates of data collection", "data_sources"),
    _author("6a", "Setting", "data_sources"),
    _author("6b", "Eligibility of participants", "eligibility"),
    _author("6c", "Treatments received", "eligibility"),
    _tool("7", "Data preparation and quality", COHORT, "transforms, and checks of the splits"),
    _author("8a", "Outcome and its definition", "reference_standard"),
    _author("8b", "Assessors of the outcome", "annotation"),
    _author("8c", "Blinding of the assessors", "annotation"),
    _partly("9a", "Choice of predictors", PROTOCOL, "the image as input", "predictors"),
    _partly("9b", "Definition of predictors", PROTOCOL, "transforms of the image", "predictors"),
    _partly("9c", "Assessors of predictors", PROTOCOL, "none for an image", "predictors"),
    _partly("10", "Sample size", COHORT, "images and patients of each site", "sample_size"),
    _partly("11", "Missing data", COHORT, "patients, labels and images that are unknown", "preparation"),
    _tool("12a", "Use and partition of the data", PROTOCOL, "partition"),
    _tool("12b", "Handling of predictors", PROTOCOL, "transforms"),
    _tool("12c", "Model type, building, tuning and internal testing", PROTOCOL, "model, training, model selection"),
    _tool("12d", "Heterogeneity over clusters: methods", PROTOCOL, "mean over sites, intervals"),
    _tool("12e", "Measures and plots of performance", SITES, "every metric"),
    _tool("12f", "Updating of the model", PROTOCOL, "inference"),
    _tool("12g", "How predictions are computed", PROTOCOL, "inference"),
    _tool("13", "Class imbalance", COHORT, "share of the classes"),
    _partly("14", "Fairness: approaches", SITES, "each site apart", "fairness"),
    _tool("15", "Output of the model", PROTOCOL, "model and inference"),
    _partly("16", "Differences between development and evaluation data", COHORT, "each site", "participants"),
    _author("17", "Ethics approval and consent", "ethics"),
    _author("18a", "Funding", "funding"),
    _author("18b", "Conflicts of interest", "conflicts"),
    _author("18c", "Protocol", "protocol"),
    _author("18d", "Registration", "registration"),
    _partly("18e", "Availability of data", PROVENANCE, "source, checksums and licence", "data_availability"),
    _partly("18f", "Availability of code", PROVENANCE, "commit and digest", "code_availability"),
    _author("19", "Patient and public involvement", "involvement"),
    _partly("20a", "Flow of participants", COHORT, "numbers from the first loaded row on", "participants"),
    _partly("20b", "Characteristics of participants", COHORT, "classes of each split", "participants"),
    _partly("20c", "Comparison with the development data", COHORT, "each site", "participants"),
    _tool("21", "Participants and events in each analysis", COHORT, "images, patients and classes"),
    _tool("22", "The full model, so that others can predict", PROVENANCE, "runs, whose folders hold the weights"),
    _tool("23a", "Performance with intervals", SITES, "values and intervals"),
    _tool("23b", "Heterogeneity over clusters: results", SITES, "each site"),
    _tool("24", "Results of updating", SITES, "gains of each inference"),
    _author("25", "Interpretation", "interpretation"),
    _partly("26", "Limitations", ANSWER, "caveats", "limitations"),
    _author("27a", "Poor or missing input in use", "usability"),
    _author("27b", "Interaction with users", "usability"),
    _author("27c", "Next steps", "usability"),
)
"""The parts of the items of TRIPOD+AI in its order."""
