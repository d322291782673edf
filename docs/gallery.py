"""Put the page of a study into the gallery of the documentation: `make gallery STUDY=demo`.

The page is read from `reports/`, or from where `make reproduce` has written it. It is copied to `docs/gallery/` under a
fixed name; of an entry whose file is an SVG, only its first picture is. Then the list in `docs/gallery.md` is written
again: it has the studies of `docs/gallery/studies.yaml` whose files are there. Without a study, only the list is.
"""

from __future__ import annotations

import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "gallery"
BEGIN = "<!-- The list begins: make gallery writes it -->"
END = "<!-- The list ends -->"
LARGEST = 2_000_000
"""The most bytes of a page."""
PICTURE = re.compile(r'<figure class="forest wide">\s*(<svg.*?</svg>)', re.DOTALL)
"""The first picture of a page."""
WIDTH = 150
"""The most characters of a line of Markdown."""


@dataclass(frozen=True)
class Exhibit:
    """A study whose page can be shown.

    `file` is the name in the gallery, of a page (.html) or of its first picture (.svg); `shows` and `limits` are a
    sentence each, and `images` says whether the page may contain images of the data, as far as their licence goes.
    """

    study: str
    file: str
    title: str
    shows: str
    limits: str
    images: bool = False


EXHIBITS = [Exhibit(**entry) for entry in yaml.safe_load((FOLDER / "studies.yaml").read_text(encoding="utf-8"))]


def listing(gallery: Path) -> str:
    """Return the list of the studies whose pages are in a folder, as Markdown."""
    entries = []
    for exhibit in EXHIBITS:
        if (gallery / exhibit.file).is_file():
            link = f"[Open the page of `{exhibit.study}`](gallery/{exhibit.file})"
            if exhibit.file.endswith(".svg"):
                link = f"![The answer of the study {exhibit.study}](gallery/{exhibit.file})"
            words = textwrap.fill(f"{exhibit.shows} {exhibit.limits}", WIDTH)
            entries.append(f"## {exhibit.title}\n\n{words}\n\n{link}")
    return "\n\n".join(entries)


def written(page: str, gallery: Path) -> str:
    """Return the gallery's Markdown with the list between its two marks."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{listing(gallery)}\n\n{END}{rest.partition(END)[2]}"


def shown(exhibit: Exhibit, html: str) -> str:
    """Return what the gallery has of a page: all of it, or its first picture, dark on white; empty if it has none."""
    if exhibit.file.endswith(".html"):
        return html
    picture = PICTURE.search(html)
    if picture is None:
        return ""
    return picture[1].replace('style="', 'style="color: #111; background: #fff; ', 1) + "\n"


def fault(exhibit: Exhibit, page: Path) -> str:
    """Return what keeps a page from the gallery, and what to do about it; an empty text if nothing does."""
    if not page.is_file():
        return f"no such page; run the study first, or name its page: PAGE=FILE make gallery STUDY={exhibit.study}"
    html = page.read_text(encoding="utf-8")
    size = page.stat().st_size
    if f"from the files of study <b>{exhibit.study}</b>" not in html:
        return f"is not the page of {exhibit.study}"
    if str(ROOT) in html:
        return f"names the folder {ROOT}; name the study by a relative path, and run fedshift report"
    if size >= LARGEST:
        return f"has {size:,} bytes, and a page of the gallery has less than {LARGEST:,}; leave figures out"
    if not shown(exhibit, html):
        return "has no picture of its answer; run fedshift report"
    if not exhibit.images and "data:image/png" in html:
        problem = "shows images of the data, whose licence does not allow it here"
        return f"{problem}; leave patches and mistakes out of figures, and run fedshift report"
    return ""


def written_page(name: str, root: Path) -> Path:
    """Return the page of a study below the folder `reports/`, or below that of its reproduction if it is only there."""
    page = root / "reports" / f"{name}.html"
    reproduced = root / "build" / "reproductions" / name / "reports" / page.name
    return reproduced if reproduced.is_file() and not page.is_file() else page


def main(name: str = "", page: str = "", root: Path = ROOT) -> int:
    """Copy a study's page or its picture, and write the list. Returns 0, or 2 for bad input, which changes no file."""
    gallery = root / "docs" / "gallery"
    known = {exhibit.study: exhibit for exhibit in EXHIBITS}
    if name and name not in known:
        print(f"STUDY: {name} is not one of {', '.join(known)}", file=sys.stderr)
        return 2
    if name:
        source = Path(page) if page else written_page(name, root)
        wrong = fault(known[name], source)
        if wrong:
            print(f"{source}: {wrong}", file=sys.stderr)
            return 2
        gallery.mkdir(exist_ok=True)
        html = source.read_text(encoding="utf-8")
        (gallery / known[name].file).write_text(shown(known[name], html), encoding="utf-8")
    markdown = gallery.with_suffix(".md")
    markdown.write_text(written(markdown.read_text(encoding="utf-8"), gallery), encoding="utf-8")
    there = [exhibit.file for exhibit in EXHIBITS if (gallery / exhibit.file).is_file()]
    print(f"docs/gallery.md lists {', '.join(there) or 'nothing'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
