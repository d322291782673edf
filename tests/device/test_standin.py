"""Whatever is trained or predicted on an accelerator has the CPU's bits, and a local step never waits for it.

The accelerator is a stand-in without hardware, see standin.cpp: it refuses what a GPU refuses, and counts waits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import device_worker
import pytest
import standin
import toy
from rotation import of_day


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What differs in each case, from one process that runs them all."""
    if not standin.compiler():
        assert not os.environ.get("REQUIRE_COMPILER"), "g++ is not there"
        pytest.skip("needs g++, which builds the stand-in accelerator")
    library = standin.build(request.config.cache.mkdir("standin"))  # type: ignore[union-attr]
    out = tmp_path_factory.mktemp("device") / "outcomes.json"
    path = os.pathsep.join([str(Path(toy.__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, device_worker.__file__, str(library), str(out)]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=7200, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(out.read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("case", of_day(device_worker.cases(), 4))
def test_the_device_has_the_bits_of_the_cpu(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == ""
