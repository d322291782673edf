"""Completion of commands, options and names of studies in a shell: a script that knows them, so that no Python runs."""

from __future__ import annotations

import argparse
import inspect

from ..io.paths import STUDIES
from ..study import known
from .group import Group

SHELLS = {"bash": "~/.bashrc", "zsh": "~/.zshrc"}
"""The shells, and the file of each in which the script is loaded."""
SCRIPT = """\
{zsh}_fedshift() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command=${{COMP_WORDS[1]}} words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "$command" in
{cases}
    esac
    case "$command" in
      {of_studies}) words="$words {shipped} $(cd {folder} 2>/dev/null && ls *.yaml 2>/dev/null | sed 's/\\.yaml$//')" ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _fedshift fedshift
"""
ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
autoload -U +X bashcompinit && bashcompinit
"""
"""Lets zsh take completions that are written for bash."""


def add(group: Group) -> None:
    """Add the command completion."""
    command = group.add_bare(completion)
    command.add_argument("shell", choices=list(SHELLS), help="the shell that is to complete")
    command.set_defaults(group=group)


def completion(args: argparse.Namespace) -> None:
    """Print a script that lets a shell complete commands, options and names of studies.

    Its first line says how a shell loads it.
    """
    print(script(args.shell, args.group.commands.choices), end="")


def script(shell: str, commands: dict[str, argparse.ArgumentParser]) -> str:
    """Return the script of a shell for commands, which are given with their parsers."""
    options = {
        name: " ".join(sorted(word for word in parser._option_string_actions if word.startswith("--")))
        for name, parser in commands.items()
    }
    lines = [f'      {name}) words="{words}" ;;' for name, words in sorted(options.items())]
    named = [name for name, parser in commands.items() if any(a.dest == "study" for a in parser._actions)]
    loading = f'# eval "$(fedshift completion {shell})"   in {SHELLS[shell]}\n'
    text = SCRIPT.format(
        zsh=ZSH if shell == "zsh" else "",
        commands=" ".join(sorted(commands)),
        cases="\n".join(lines),
        of_studies="|".join(sorted(named)),
        shipped=" ".join(known(STUDIES / "of no project")),
        folder=STUDIES,
    )
    return loading + inspect.cleandoc(text) + "\n"
