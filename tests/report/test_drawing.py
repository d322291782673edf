"""A figure of a stranger's study is shown only where it is shapes and text."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedshift.core.errors import UserError
from fedshift.figures._canvas import svg
from fedshift.report.drawing import read_drawing

FRAME = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">{}</svg>'


@pytest.mark.parametrize(
    "inside",
    [
        "<script>alert(1)</script>",
        "<g><foreignObject><p xmlns='http://www.w3.org/1999/xhtml'>x</p></foreignObject></g>",
        "<style>@import 'http://x.org'</style>",
        "<animate attributeName='href' values='javascript:alert(1)'/>",
        "<title><script>alert(1)</script></title>",
        "<path onload='alert(1)'/>",
        "<path ONCLICK='alert(1)'/>",
        "<a href='#x'><path/></a>",
        "<use href='http://x.org/y.svg#z'/>",
        "<use xlink:href='data:image/svg+xml;base64,AAAA'/>",
        "<image href='http://x.org/pixel.png'/>",
        "<image href=' javascript:alert(1)'/>",
        "<path style='fill: url(http://x.org/y)'/>",
        "<path fill=\"url('//x.org/y')\"/>",
        "<!-- --><path/>",
        "<![CDATA[<script>alert(1)</script>]]>",
        "<path",
        "&amp;&unknown;",
    ],
)
def test_what_runs_or_fetches_is_refused(tmp_path: Path, inside: str) -> None:
    path = tmp_path / "sites.svg"
    path.write_text(FRAME.format(inside))
    with pytest.raises(UserError, match=r"sites\.svg: (holds an|not a readable figure)") as caught:
        read_drawing(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "<p>x</p>", "<!DOCTYPE svg>" + FRAME.format(""), "\x00", "<html><svg/></html>"])
def test_what_is_no_figure_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.svg").write_text(text)
    with pytest.raises(UserError, match=r"x\.svg: not a readable figure file"):
        read_drawing(tmp_path / "x.svg")


def test_our_own_figures_are_shown_as_they_are(tmp_path: Path) -> None:
    def draw(figure: object) -> None:
        axes = figure.subplots()  # type: ignore[attr-defined]
        axes.plot([0, 1], [1, 0], marker="o", label="<script>alert(1)</script>")
        axes.imshow([[0, 1], [1, 0]])
        axes.legend()

    text = svg("x", "a & b <i>", (3, 2), draw)
    (tmp_path / "x.svg").write_text(text, encoding="utf-8")
    assert read_drawing(tmp_path / "x.svg") == text
    shapes = FRAME.format("<defs><path id='a'/></defs><use href='#a'/><image href='data:image/png;base64,AAAA'/>")
    (tmp_path / "x.svg").write_text(shapes)
    assert read_drawing(tmp_path / "x.svg") == shapes


def test_a_figure_that_is_not_drawn_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_drawing(tmp_path / "x.svg")
