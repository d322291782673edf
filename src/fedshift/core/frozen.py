"""The base of all settings and records: pydantic models that never change."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, model_validator

from .errors import UserError


class Frozen(BaseModel):
    """Plain data that does not change and knows all its keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="wrap")
    @classmethod
    def _numbers_are_given_as_numbers(cls, values: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Refuse `true` for a number, and text for a whole number, which pydantic would turn into one."""
        model = handler(values)
        for key, value in values.items() if isinstance(values, dict) else ():
            if _is_turned_into_a_number(value, getattr(model, key, None)):
                raise UserError(key, f"must be a number (got {value!r})")
        return model


def _is_turned_into_a_number(given: Any, got: Any) -> bool:
    if isinstance(given, list | tuple) and isinstance(got, list | tuple):
        return any(map(_is_turned_into_a_number, given, got))
    # Text may stand for other numbers: YAML reads 1e-3, without a dot, as text.
    return (isinstance(given, bool) and type(got) in (int, float)) or (isinstance(given, str) and type(got) is int)
