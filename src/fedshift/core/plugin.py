"""Base classes of all settings and records (Frozen) and of all plug-ins (Plugin): immutable pydantic models."""

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
    """Base class of immutable pydantic models that refuse unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    @model_validator(mode="wrap")
    @classmethod
    def _numbers_are_given_as_numbers(cls, values: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Raise UserError for a bool given as a number, and for text given as an int, which pydantic would convert."""
        model = handler(values)
        for key, value in values.items() if isinstance(values, dict) else ():
            if _is_turned_into_a_number(value, getattr(model, key, None)):
                raise UserError(key, f"must be a number (got {value!r})")
        return model


def _is_turned_into_a_number(given: Any, got: Any) -> bool:
    """Return True if a bool was converted to a number, or text to an int; `got` is the value after conversion."""
    if isinstance(given, list | tuple) and isinstance(got, list | tuple):
        return any(map(_is_turned_into_a_number, given, got))
    # Text may stand for other numbers: YAML reads 1e-3, without a dot, as text.
    return (isinstance(given, bool) and type(got) in (int, float)) or (isinstance(given, str) and type(got) is int)


class _Single:
    """An annotation whose JSON schema allows a list, or its only member without brackets."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        several = handler(core)
        return {"anyOf": [several["items"], several]}


def as_list(value: Any) -> Any:
    """Return a list or tuple unchanged, and any other value as a list with one member."""
    return value if isinstance(value, list | tuple) else [value]


MANY = (BeforeValidator(as_list), _Single())
"""Annotations of a list field: a list with one member may be written without brackets."""


KINDS = ("algorithm", "dataset", "model", "addon", "inference", "metric", "figure", "transform")
"""The kinds of plug-ins. Each kind has a subpackage named by its plural, such as `fedshift.algorithms`."""


class Plugin(Frozen, allow_inf_nan=False):
    """Base class of every plug-in: an immutable pydantic model whose fields are the plug-in's settings.

    The base class of a kind, such as Algorithm, sets `kind`. `name` is usually the name of the plug-in's file.
    """

    kind: ClassVar[str] = ""
    name: ClassVar[str] = ""
    display_name: ClassVar[str] = ""
    """The name that pages show, by default the name of the class. It changes no id."""
    libraries: ClassVar[tuple[str, ...]] = ()
    """Slow modules of other packages that the plug-in uses in training. The fork server imports them in advance."""
    tasks: ClassVar[tuple[str, ...]] = ("classification", "segmentation")
    """The tasks that the plug-in supports. A study of another task refuses the plug-in."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Earlier names of the plug-in, oldest first, which studies and stored specifications may still use."""
    identity_name: ClassVar[str] = ""
    """The oldest name of the plug-in. Ids are made from it, so that renaming the plug-in changes no id."""
    documentation_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of settings that only people read, such as a title: they change no id, and a change reruns no job."""
    later_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of settings that a later version added. At their default they change no id: earlier runs keep their ids."""
    label_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of settings that `label` shows even at their default."""

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
        """Raise UserError, with the key `where`, if the plug-in does not support a task such as segmentation."""
        if task not in cls.tasks:
            problem = f"{cls.kind} {cls.name} is for {' and '.join(cls.tasks)}, and this is {task}"
            raise UserError(where, problem, f"choose another {cls.kind}")

    @classmethod
    def require_hooks(cls) -> None:
        """Raise UserError for a public method that overrides no method of a base class: nothing would call it."""
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
        """Set the plug-in's name, and with it the oldest name, from which ids are made."""
        cls.name = name
        cls.identity_name = (*cls.aliases, name)[0]

    def spec(self) -> dict[str, Any]:
        """Return the name and all settings, defaults included, as plain data; `registry.build` accepts them."""
        return {"name": self.name, **self.model_dump(mode="json")}

    def identity(self) -> dict[str, Any]:
        """Return the oldest name and the settings that influence results, as plain data from which ids are made."""
        changed = self.model_dump(mode="json", exclude_defaults=True)
        unused = self.documentation_fields | (self.later_fields - changed.keys())
        settings = {k: v for k, v in self.model_dump(mode="json").items() if k not in unused}
        return {"name": self.identity_name, **settings}

    @property
    def label(self) -> str:
        """Return the name with the settings that differ from their defaults: `fedprox(mu=0.1)`."""
        return self.labelled({})

    def labelled(self, words: Mapping[str, str]) -> str:
        """Return the label with texts in place of values: `fedprox(mu=chosen)`. `words` maps a setting to its text."""
        shown = self.label_fields | self.model_dump(mode="json", exclude_defaults=True).keys() | words.keys()
        settings = {**self.model_dump(mode="json"), **words}
        inside = ", ".join(f"{key}={value}" for key, value in settings.items() if key in shown)
        return f"{self.name}({inside})" if inside else self.name

    @classmethod
    def summary(cls) -> str:
        """Return the first line of the class's docstring, which lists and documentation show."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]
