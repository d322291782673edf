"""Pictures of pages are laid out and painted only for the tests that look at them."""

from typing import IO

import pytest
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def unpainted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave pictures empty, but for tests marked `painted`: placing every letter takes most of the time of a page.

    What fills a picture runs all the same, and its description for readers who cannot see it is there.
    """

    def empty(figure: Figure, out: IO[bytes], **_: object) -> None:
        out.write(b"<svg></svg>")

    if request.node.get_closest_marker("painted") is None:
        monkeypatch.setattr(Figure, "savefig", empty)
