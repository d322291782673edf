"""The documentation site: built strictly, complete, without a dead link, and with nothing from another server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from patience import PATIENCE

import fedshift
from fedshift.cli.parser import parser
from fedshift.core import registry
from fedshift.study.declaration import Study

LIMIT = 1000 * PATIENCE
"""Milliseconds for a step of the browser."""
ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-docs/bin/python"
LOADED = {("script", "src"), ("link", "href"), ("img", "src"), ("iframe", "src"), ("source", "src")}
"""Attributes of elements whose files a browser loads by itself."""


class Built(HTMLParser):
    """One page of the site: the ids of its elements, and what they refer to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.ids = {""}
        self.references: list[tuple[str, str]] = []
        self.loads: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        for name in ("href", "src"):
            if name in values and values.get("rel") not in ("canonical", "preconnect"):
                self.references.append((tag, values[name]))
                self.loads += [values[name]] if (tag, name) in LOADED else []


class Site:
    """The built site, whose pages are read when they are needed, each once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def pages(self) -> dict[Path, Built]:
        return {path: Built(path) for path in sorted(self.folder.rglob("*.html"))}

    def ids(self, page: str) -> set[str]:
        return self.pages[self.folder / page].ids


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    if not PYTHON.exists() and os.environ.get("REQUIRE_DOCS") != "1":
        pytest.skip("the documentation's environment is missing: make docs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [PYTHON, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"the site has warnings:\n{done.stderr[-6000:]}"
    return Site(folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plugin_is_in_the_reference(site: Site, kind: str) -> None:
    plugins = set(registry.discover(kind))
    assert plugins and plugins <= site.ids(f"reference/{kind}s.html")
    package = import_module(f"fedshift.{kind}s")
    assert {f"{package.__name__}.{name}" for name in package.__all__} <= site.ids(f"reference/{kind}s.html")


@pytest.mark.slow
def test_every_public_name_command_and_key_is_in_the_reference(site: Site) -> None:
    assert {f"fedshift.{name}" for name in fedshift.__all__} <= site.ids("reference/python.html")
    (commands,) = [action.choices for action in parser()._actions if isinstance(action.choices, dict)]
    assert commands.keys() <= site.ids("reference/commands.html")
    text = (site.folder / "reference/study.html").read_text(encoding="utf-8")
    assert all(f'<td style="text-align: left;"><code>{key}</code></td>' in text for key in Study.model_fields)


def internal(page: Built, site: Site) -> Iterator[tuple[str, Path, str]]:
    """Yield the links of a page to other places of the site: as written, the file, and the id of the place."""
    for _, reference in page.references:
        parts = urlsplit(reference)
        if not parts.scheme and not parts.netloc:
            path = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            yield reference, path, unquote(parts.fragment)


@pytest.mark.slow
def test_every_internal_link_and_anchor_leads_somewhere(site: Site) -> None:
    dead, checked = [], 0
    for page in site.pages.values():
        if page.path.name == "404.html":  # it may be shown for any address, and so names the root of the site
            continue
        for reference, path, fragment in internal(page, site):
            checked += 1
            anchors = site.pages[path].ids if path in site.pages else {""}
            if not path.is_file() or fragment not in anchors:
                dead.append(f"{page.path.relative_to(site.folder)}: {reference}")
    assert not dead, "\n".join(dead[:20])
    assert checked > 1000


@pytest.mark.slow
def test_nothing_is_loaded_from_another_server(site: Site) -> None:
    for page in site.pages.values():
        assert not [load for load in page.loads if urlsplit(load).netloc], page.path


@pytest.mark.slow
@pytest.mark.browser
def test_a_search_finds_pages_where_the_site_was_opened_from_a_folder(site: Site) -> None:
    """A browser starts no worker from a file, and none of the requests may leave the folder."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--headless", "--no-sandbox"], timeout=LIMIT
        )
        tab = browser.new_page()
        tab.set_default_timeout(LIMIT)
        requests = list[str]()
        tab.on("request", lambda request: requests.append(request.url))
        tab.goto((site.folder / "index.html").as_uri())
        tab.locator(".md-search__input").first.click()
        tab.keyboard.type("fedprox")
        tab.wait_for_selector(".md-search-result__item")
        pages = [link.get_attribute("href") for link in tab.locator(".md-search-result__link").all()]
        browser.close()
    assert any(page and "algorithms.html" in page for page in pages)
    assert requests
    assert not [url for url in requests if not url.startswith(site.folder.as_uri())]


@pytest.mark.slow
def test_a_file_outside_of_the_docs_is_a_page_with_numbered_lines(site: Site) -> None:
    """Line 1 of a source is its line 1 on the page, so that links to lines lead to the right ones."""
    source = (ROOT / "src/fedshift/algorithms/fedadam.py").read_text(encoding="utf-8").splitlines()
    page = site.pages[site.folder / "source/src/fedshift/algorithms/fedadam.py.html"]
    lines = {id for id in page.ids if id.startswith("L-")}
    assert lines == {f"L-{number}" for number in range(1, len(source) + 1)}


def test_what_the_workflows_of_the_repository_call_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    workflows = sorted((ROOT / ".github/workflows").glob("*.yml"))
    assert [path.stem for path in workflows] == ["ci", "docs", "release"]
    for path in workflows:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
        commands = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
        assert commands
        assert {c.split()[1] for c in commands if c.startswith("make ")} <= targets
        assert all(os.access(ROOT / c, os.X_OK) for c in commands if c.startswith(".ci/"))
