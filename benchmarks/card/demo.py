"""The demo, from drawn images to its page, as a user of one workstation with a GPU calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from .setting import Case, Figures, NotHereError, Setting, WrongError

ROOT = Path(__file__).parents[2]
VERDICT = Path("results/studies/demo/headline.json")


def cases(setting: Setting) -> Iterator[Case]:
    """The demo with the card, then without it on the same machine, and whether both say the same."""
    leads: dict[str, str] = {}
    yield Case("on the card", 90, partial(_run, setting, leads, {}))
    if not setting.small:
        yield Case("on the CPU of this machine", 90, partial(_run, setting, leads, {"CUDA_VISIBLE_DEVICES": ""}))
        yield Case("the same verdict", 0, partial(_same, leads))


def _run(setting: Setting, leads: dict[str, str], environment: Mapping[str, str]) -> Figures:
    """Run the demo in a folder of its own, or in the small form only plan it."""
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--profile", str(ROOT / "profiles" / "gpu"), *["--dry-run"] * setting.small]
        command += ["--directory", folder, "--config", "study=demo", "scale=mini"]
        begun = time.monotonic()
        done = subprocess.run(
            command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
        )
        seconds = time.monotonic() - begun
        if done.returncode:
            lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise WrongError(f"code {done.returncode}: {' / '.join(lines[-3:])[:250]}", {"seconds": seconds})
        if setting.small:
            return {"seconds of its plan": seconds}
        lead = json.loads((Path(folder) / VERDICT).read_text(encoding="utf-8"))["lead"]
    leads["CPU" if environment else "card"] = lead
    return {"seconds": seconds, "verdict": lead}


def _same(leads: Mapping[str, str]) -> Figures:
    """Compare the words: figures may differ, since another order of sums is another sample of the same training."""
    if len(leads) < 2:
        raise NotHereError("one of the two was not run to its end")
    if len({re.sub(r"\d[\d.,]*", "N", lead) for lead in leads.values()}) > 1:
        raise WrongError("the card says another thing than the CPU", {})
    return {"the same words": True, "the same figures": len(set(leads.values())) == 1}
