"""The base of all settings and records, and of all plug-ins: pydantic models that never change."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    model_validator,
)

from .errors import UserError, did_you_mean


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


class _Single:
    """The JSON schema of a list that may be written without brackets if it has one member."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(core)
        return {"anyOf": [several["items"], several]}


def as_list(value: Any) -> Any:
    """Return a value as the only member of a list, and a list or tuple as it is."""
    return value if isinstance(value, list | tuple) else [value]


MANY = (BeforeValidator(as_list), _Single())
"""Validators of a list that may be written without brackets if it has one member."""


KINDS = ("algorithm", "dataset", "model", "addon", "inference", "metric", "figure", "transform")
"""The kinds of plug-ins. The package with the plural as its name holds those of a kind."""


class Plugin(Frozen, allow_inf_nan=False):
    """Base class of every plug-in. The base class of a kind sets `kind`; `name` is usually the name of the file."""

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    display_name: ClassVar[str] = ""
    """The name on pages, by default that of its class. It is part of no identity."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Slow modules of other packages that it uses in a training: they are imported once for all local trainings."""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    """The tasks that it is for: a study of another task refuses it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Earlier names, oldest first, which studies and old specifications may still use."""
    identity_name: ClassVar[str] = ""
    """The oldest name. Identities use it, so a new name changes no id."""
    documentation_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that only people read: they are part of no identity, and a change of them reruns no job."""
    later_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that came later: at their default they are part of no identity, so that earlier studies keep ids."""
    label_fields: ClassVar[frozenset[str]] = frozenset()
    """Settings that the label always shows, even at their default."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        cls.aliases = vars(cls).get("aliases", ())  # a subclass is another plug-in, and inherits no name
        cls.display_name = vars(cls).get("display_name", cls.__name__)
        module = cls.__module__
        file = module.rpartition(".")[2]
        helper = file.startswith("_") and module != "__main__"
        # Only where several share a file, whose name can be none of a plug-in, does a class state its own.
        cls.call_it(vars(cls).get("name", file) if helper else file)
        # Base classes have hooks for others: they lie in modules with a leading underscore, or in this package.
        if not (helper or cls.__name__.startswith("_") or module.startswith("fedshift.")):
            cls.require_hooks()

    @classmethod
    def require_task(cls, task: str, where: str) -> None:
        """Raise UserError, at the place `where`, if the plug-in is not for a task."""
        if task not in cls.tasks:
            problem = f"{cls.kind} {cls.name} is for {' and '.join(cls.tasks)}, and this is {task}"
            raise UserError(where, problem, f"choose another {cls.kind}")

    @classmethod
    def require_hooks(cls) -> None:
        """Raise UserError for a public method that no base class has: nothing would call it."""
        inherited = {name for base in cls.__bases__ for name in dir(base)}
        for name, method in vars(cls).items():
            if name.startswith("_") or name in inherited or not inspect.isfunction(method):
                continue
            hooks = inherited.difference(dir(Frozen), vars(Plugin), cls.model_fields)
            remedy = did_you_mean(name, {hook for hook in hooks if callable(getattr(cls, hook, None))})
            problem = f"nothing would call it: {cls.kind}s have no such method"
            remedy += " (begin the name of a helper with an underscore)"
            raise UserError(f"{cls.__name__}.{name}", problem, remedy)

    @classmethod
    def call_it(cls, name: str) -> None:
        """Set the name by which studies and identities know this plug-in."""
        cls.name = name
        cls.identity_name = (*cls.aliases, name)[0]

    def spec(self) -> dict[str, Any]:
        """Return the name and all settings, defaults included, as plain data from which `build` makes it again."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def identity(self) -> dict[str, Any]:
        """Return the oldest name and the settings that influence results; digests of this make ids."""
        changed = self.model_dump(mode="json", exclude_defaults=True)
        unused = self.documentation_fields | (self.later_fields - changed.keys())
        settings = {k: v for k, v in self.model_dump(mode="json").items() if k not in unused}
        return {"name": self.identity_name, **settings}

    @property
    def label(self) -> str:
        """Return the name with the settings that differ from their defaults: `fedprox(mu=0.1)`."""
        return self.labelled({})

    def labelled(self, words: Mapping[str, str]) -> str:
        """Return the label with words in the place of some settings: `fedprox(mu=chosen)`."""
        shown = self.label_fields | self.model_dump(mode="json", exclude_defaults=True).keys() | words.keys()
        settings = {**self.model_dump(mode="json"), **words}
        inside = ", ".join(f"{key}={value}" for key, value in settings.items() if key in shown)
        return f"{self.name}({inside})" if inside else self.name

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the docstring."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]
