"""The process of one site of the matrix over Flower: `python matrix_site.py SITE HOST:PORT FOLDER`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from combinations import all_combinations

from fedshift.engine.site import Site
from fedshift.flower import nodes, processes
from fedshift.hospitals.hospital import Hospital
from fedshift.io.paths import Paths


class MatrixHospital(Hospital):
    """A hospital whose runs are the combinations. It opens its part anew for each message, from folder/RUN/SITE.

    It gives nothing of its test images.
    """

    gives = False

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.paths = name, folder, Paths()
        self.sent = Counter()
        self.runs = {str(combination): combination for combination in all_combinations()}  # type: ignore[misc]

    def _site(self, key: str) -> Site:
        return self.runs[key].in_memory(self.folder / key).site(self.name)  # type: ignore[attr-defined,no-any-return]


if __name__ == "__main__":
    site, address, folder = sys.argv[1:]
    processes.require_flower()
    with processes.ended_by_signals():
        nodes.take_part(MatrixHospital(site, Path(folder)), address, None, None)
