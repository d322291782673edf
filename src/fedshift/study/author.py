"""Statements that only authors can make: of the study (key `author`), of its sites, and of what its patients are."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..datasets import SiteKind

PARTS = ("department", "scanner")
"""Kinds of which one hospital may have several."""


class Author(Frozen):
    """Statements of the authors, shown on the page as they are written. An empty one is an open item there."""

    summary: str = Field("", description="structured summary that names the kind of model and how it was trained")
    intended_use: str = Field("", description="clinical background, purpose of the model, and who would use it where")
    hypotheses: str = Field("", description="aims and hypotheses, and whether they were fixed before the results")
    design: str = Field("", description="prospective or retrospective; what the study is for: development, evaluation")
    data_sources: str = Field("", description="where, in which setting and between which dates the data were collected")
    eligibility: str = Field("", description="who was included and excluded, and treatments that they had received")
    preparation: str = Field(
        "", description="what was done to the data before fedshift read them: patches cut, missing data, rows removed"
    )
    deidentification: str = Field("", description="how the data were de-identified")
    acquisition: str = Field("", description="how images were acquired: scanners, protocols, stains, magnification")
    predictors: str = Field("", description="inputs beside the image, why they were chosen and who assessed them")
    reference_standard: str = Field("", description="definition of the reference standard, and the reason for it")
    annotation: str = Field("", description="who annotated training and test data, how qualified, blinded to what")
    variability: str = Field("", description="variability within and between annotators, and how it was resolved")
    sample_size: str = Field("", description="the intended sample size and how it was determined")
    participants: str = Field("", description="demographic and clinical characteristics, and patients lost on the way")
    fairness: str = Field("", description="known health inequalities between groups, and what was done about them")
    robustness: str = Field("", description="how robust the results are to changes of data and assumptions")
    explainability: str = Field("", description="methods that explain predictions, and their validation; or none")
    failures: str = Field("", description="cases in which the model fails, as read by an expert")
    interpretation: str = Field("", description="interpretation of the results, beside those of other studies")
    limitations: str = Field("", description="limitations of the study")
    usability: str = Field("", description="poor or missing inputs in use, interaction with users, and next steps")
    protocol: str = Field("", description="where the full protocol of the study can be read")
    registration: str = Field("", description="registration number of the study or trial")
    ethics: str = Field("", description="ethics approval, and consent or its waiver")
    involvement: str = Field("", description="how patients and the public were involved; or not")
    data_availability: str = Field("", description="where others obtain the data, or why they cannot")
    code_availability: str = Field("", description="where others obtain code and trained weights")
    funding: str = Field("", description="funding, and the role of the funders")
    conflicts: str = Field("", description="conflicts of interest of the authors")

    def statements(self) -> dict[str, str]:
        """Return the statements that have text, by the name of their field, in the order of the fields."""
        texts = {name: str(getattr(self, name)).strip() for name in type(self).model_fields}
        return {name: text for name, text in texts.items() if text}


class SiteWords(Frozen):
    """What one site is."""

    kind: SiteKind = Field(
        description="hospital, collection (images of several hospitals), department or scanner (of one hospital), "
        "domain, client, or site"
    )
    of: str = Field(
        "",
        description="the hospital that a scanner or a department belongs to: a site of the study, or any name. Where "
        "it trained with other sites, the page says so, and does not count it as a hospital outside",
    )

    @model_validator(mode="after")
    def _part_of_a_hospital(self) -> SiteWords:
        if self.of and self.kind not in PARTS:
            raise UserError("of", f"is for a {' or a '.join(PARTS)}, and the site is a {self.kind}", "leave it out")
        return self


def _singular(noun: str) -> str:
    """Return a noun if it can be one in the singular. Raises UserError for any other text."""
    if not (noun.isascii() and noun.isalpha() and noun.islower()):
        raise UserError("", f"{noun!r} is no plain noun", "write one word in small letters, such as lesion")
    if noun.endswith("s") and not noun.endswith(("ss", "us", "is")):
        raise UserError("", f"{noun!r} is a plural", "write the singular, such as lesion")
    return noun


Unit = Annotated[str, AfterValidator(_singular), Field(max_length=30)]
"""What the column of patients names, as a noun in the singular."""
