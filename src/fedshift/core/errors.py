"""Errors that users see (UserError: where something is wrong, what is wrong, what to do), and related functions."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable

SHOWN = 20
"""The most errors of one kind that `shortened` keeps."""


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
    """Several UserErrors that were found together, listed in `errors`. Each is printed on its own line.

    `where`, `what` and `remedy` are copied from the first error, for a caller that shows only one.
    """

    def __init__(self, errors: Iterable[UserError]) -> None:
        self.errors = list(errors)
        self.where, self.what, self.remedy = self.errors[0].where, self.errors[0].what, self.errors[0].remedy
        ValueError.__init__(self, "\n".join(str(e) for e in self.errors))

    def __reduce__(self) -> tuple[type[UserErrors], tuple[list[UserError]]]:  # type: ignore[override]
        return UserErrors, (self.errors,)


def require_none(faults: Iterable[UserError]) -> None:
    """Raise one UserErrors that contains all given errors. Do nothing if there are none."""
    found = list(faults)
    if found:
        raise UserErrors(found)


class Interrupted(Exception):  # noqa: N818 - it is no error
    """A request to stop a training, such as SIGTERM. The training can resume from its last checkpoint."""

    exit_code = 143
    """The exit code of the command: 143 for SIGTERM. A handler of another signal sets 128 plus the signal's number."""


def out_of_memory(error: BaseException) -> bool:
    """Return True if an error means that memory of the machine or of a GPU ran out.

    The message is searched too, since torch raises errors of several classes.
    """
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError) or any(text in str(error).lower() for text in words)


def shortened(faults: Iterable[UserError], number: int, where: object) -> list[UserError]:
    """Return the first 20 of `number` errors of one kind, and an error at `where` that counts the others, if any."""
    first = list(itertools.islice(faults, SHOWN))
    hidden = number - len(first)
    if hidden:
        first.append(UserError(where, f"{hidden:,} more like these"))
    return first


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a remedy for a misspelt word: `did you mean 'x'?` with the closest known word, or else all known words."""
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(words) or 'none'}"
