"""Completion in a shell: the script that is printed, loaded by the shell itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from fedshift.cli import parser as cli

ASK = """
eval "$(cat script)"
COMP_WORDS=({words})
COMP_CWORD={at}
_fedshift
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(shell: str, *words: str) -> list[str]:
    """What a shell offers for the last of some words."""
    quoted = " ".join(f"'{word}'" for word in words)
    # zsh counts from 1, and bashcompinit gives its functions the arrays of bash
    ask = ASK.format(words=quoted, at=len(words) - 1)
    program = [shell, "-c", ask if shell == "bash" else f"emulate -L ksh\n{ask}"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    # zsh itself drops what does not begin with the word
    return [word for word in done.stdout.split() if word.startswith(words[-1])]


@pytest.mark.parametrize("shell", ["bash", "zsh"])
@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("fedshift", "che"), {"check"}),
        (("fedshift", "re"), {"repeat", "replay", "report"}),
        (("fedshift", "check", "--s"), {"--scale", "--set", "--studies"}),
        (("fedshift", "new", "x", "--t"), {"--table"}),
        (("fedshift", "run", "lu"), {"lungs"}),
        (("fedshift", "run", "unifed-t"), {"unifed-table2", "unifed-table3"}),
        (("fedshift", "table", "lu"), set()),
        (("fedshift", "chek", "--s"), set()),
    ],
)
def test_a_shell_completes_what_the_parser_knows(
    shell: str,
    words: tuple[str, ...],
    some: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    monkeypatch.chdir(tmp_path)
    Path("config/studies").mkdir(parents=True)
    Path("config/studies/lungs.yaml").write_text("title: x\n")
    assert cli.main(["completion", shell]) == 0
    Path("script").write_text(capsys.readouterr().out)
    assert set(completed(shell, *words)) == some
