"""What single sites of a study are, and what its patients are: words of the page, which no run depends on."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from ..core.errors import UserError
from ..core.plugin import Frozen
from ..datasets import SiteKind

PARTS = ("department", "scanner")
"""Kinds of which one hospital may have several."""


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
