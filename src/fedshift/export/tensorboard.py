"""Export of a study to TensorBoard: a folder of events for each run, which the tab HPARAMS compares by scores."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..io.shipped import extra
from .account import Account, text
from .own_folder import own_folder

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

HOME = Path("results", "exports", "tensorboard")


def export(accounts: Iterable[Account], study: str, where: str | None = None) -> str:
    """Write the folder `where`, whole or not at all, in the place of an earlier export. Returns a sentence for people.

    Raises UserError where the folder holds anything else, or the package is missing. Numbers are float32.
    """
    with extra("tensorboard"):
        import tensorboard  # noqa: F401 - imported first, since torch's own error speaks of a version
        from torch.utils.tensorboard import SummaryWriter
    out = Path(where or HOME / study)
    settings: dict[str, Any] = {}
    tags: dict[str, int] = {}
    names: list[str] = []
    with own_folder(out, "--to") as new:
        for account in accounts:
            with SummaryWriter(str(new / account.name)) as writer:
                _write(account, writer)
            settings |= _shown(account)
            tags |= {tag: 0 for tag, _ in account.scores}
            names.append(account.name)
        # HPARAMS takes the columns of its table from one run: the first declares the settings and scores of all.
        with SummaryWriter(str(new / names[0])) as writer:
            _declare(settings, tags, writer)
    return f"wrote {len(names)} runs to {out}; to look at them: tensorboard --logdir {out}"


def _write(account: Account, writer: SummaryWriter) -> None:
    """Write one run: its rounds, its scores at the selected round, its settings, and facts for people."""
    from torch.utils.tensorboard.summary import hparams

    end = max(account.clock.values())
    for tag, number, value in account.rounds:
        writer.add_scalar(tag, value, number, account.clock[number])
    for tag, value in account.scores:
        writer.add_scalar(tag, value, account.kept, end)
    facts = "\n".join(f"- {key}: {text(value)}" for key, value in account.facts.items())
    writer.add_text("facts", facts, account.kept, end)
    for session in hparams(_shown(account), {})[1:]:
        writer.file_writer.add_summary(session, walltime=end)  # type: ignore[attr-defined]


def _shown(account: Account) -> dict[str, Any]:
    """Return settings as HPARAMS takes them, as numbers and words; a setting without a value is left out."""
    shown: dict[str, Any] = {}
    for key, value in account.settings.items():
        if type(value) in (int, float):  # a truth value is an int for Python, and shown as a word
            shown[key] = value
        elif value is not None:
            shown[key] = text(value)
    return shown


def _declare(settings: dict[str, Any], tags: dict[str, int], writer: SummaryWriter) -> None:
    """Name the settings and scores of all runs."""
    from torch.utils.tensorboard.summary import hparams

    writer.file_writer.add_summary(hparams(settings, tags)[0])  # type: ignore[attr-defined]
