"""The error that users see: where something is wrong, what it is, and what to do about it."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

SHOWN = 20
"""The most faults of one kind that are printed one by one."""


class UserError(ValueError):
    """An error in the input. The command line prints it as one line and exits with code 2.

    Parameters
    ----------
    where : the file, key or row that is at fault
    what : what is wrong with it
    remedy : what to do about it

    Examples
    --------
    >>> import fedshift
    >>> try:
    ...     fedshift.load_study("my-studdy")
    ... except fedshift.UserError as error:
    ...     print(error.where, error.what, error.remedy, sep=" | ")
    study | unknown study 'my-studdy' | did you mean 'my-study'?
    """

    exit_code = 2

    def __init__(self, where: object, what: str, remedy: str = "") -> None:
        self.where = str(where)
        self.what = what
        self.remedy = remedy
        text = f"{self.where}: {what}"
        if remedy:
            text += f"; {remedy}"
        # An error is one line, also where a path or a library's message has line breaks.
        super().__init__(" ".join(text.split()))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, str, str]]:
        return UserError, (self.where, self.what, self.remedy)


class UserErrors(UserError):  # noqa: N818 - they are several
    """Several errors that were found together. Each is printed on its own line.

    `where`, `what` and `remedy` are those of the first, for a caller that has room for one.
    """

    def __init__(self, errors: Iterable[UserError]) -> None:
        self.errors = list(errors)
        self.where, self.what, self.remedy = self.errors[0].where, self.errors[0].what, self.errors[0].remedy
        ValueError.__init__(self, "\n".join(str(e) for e in self.errors))

    def __reduce__(self) -> tuple[type[UserErrors], tuple[list[UserError]]]:  # type: ignore[override]
        return UserErrors, (self.errors,)


def require_none(faults: Iterable[UserError]) -> None:
    """Raise UserErrors with all faults, if there are any."""
    found = list(faults)
    if found:
        raise UserErrors(found)


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A request to stop the training. What the last checkpoint holds is not lost."""

    exit_code = 143
    """The exit code after SIGTERM. Whoever knows the signal sets 128 plus its number."""


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory is short, of the machine or of a GPU; torch has no one class for it."""
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in words)


def shortened(faults: Iterable[UserError], number: int, where: object) -> list[UserError]:
    """Return the first 20 of `number` faults of one kind and, if there are more, an error that counts the others."""
    first = list(itertools.islice(faults, SHOWN))
    hidden = number - len(first)
    if hidden:
        first.append(UserError(where, f"{hidden:,} more like these"))
    return first


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a remedy that names the closest known word, or all known words if none is close."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words) or 'none'}"
