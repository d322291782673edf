"""The page in a real browser: light and dark, wide and narrow, on paper, without script and network."""

import io
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import disc_study
import fake_study
import numpy as np
import pandas as pd
import pytest
from near_copies import with_copies
from patience import PATIENCE
from PIL import Image
from scored_study import summarised

from fedshift.analysis import study_results
from fedshift.io.paths import Paths
from fedshift.jobs.apply import Applied, apply, chosen
from fedshift.page import applied, gallery, page
from fedshift.study.plan import Plan

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]
if BROWSER is None and os.environ.get("REQUIRE_BROWSER") != "1":
    pytest.skip("no Chromium on this machine", allow_module_level=True)

from playwright.sync_api import Browser, Page, sync_playwright  # noqa: E402

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert BROWSER is not None, "REQUIRE_BROWSER=1, but there is no Chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=ARGUMENTS, timeout=1000 * PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with all it can have: synthetic data, a missing run, names full of markup."""
    root = tmp_path_factory.mktemp("page")
    plan, paths = summarised(root, without={"bn": "local", "seed": 2})
    loaded = study_results.load(plan, paths)
    for name in plan.figures:
        study_results.draw(loaded, name)
    return page.write(loaded).as_uri()


@pytest.fixture
def tab(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(**getattr(request, "param", {}))
    context.set_default_timeout(1000 * PATIENCE)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize(
    "tab", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_no_accessibility_violations(tab: Page, url: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.goto(url)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize(
    "tab", [{"color_scheme": "light"}, {"color_scheme": "dark"}], indirect=True, ids=["light", "dark"]
)
def test_ink_follows_the_scheme(tab: Page, url: str) -> None:
    tab.goto(url)
    dark = tab.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    colours = tab.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.querySelector('svg text')).fill]"
    )
    assert colours == (["rgb(17, 17, 17)", "rgb(230, 231, 234)"] if dark else ["rgb(255, 255, 255)", "rgb(27, 29, 33)"])


OPEN = "document.querySelectorAll('details').forEach(d => d.open = true)"
WIDE = {"viewport": {"width": 1280, "height": 900}}
NARROW = {"viewport": {"width": 390, "height": 844}}


@pytest.mark.parametrize("tab", [NARROW], indirect=True, ids=["390"])
def test_no_accessibility_violations_on_a_phone_nor_in_print(tab: Page, url: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.goto(url)
    tab.evaluate(OPEN)
    assert Axe().run(tab).violations_count == 0
    tab.emulate_media(media="print")
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("tab", [WIDE, NARROW], indirect=True, ids=["1280", "390"])
def test_pictures_of_near_copies_are_accessible_side_by_side_and_on_paper(tab: Page, tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.goto(with_copies(tmp_path)[0].as_uri())
    pairs = tab.locator(".pairs figure")
    assert pairs.count() == 3
    assert pairs.first.is_hidden()
    tab.locator("summary", has_text="3 pairs as pictures").click()
    first, second = (box.bounding_box() for box in pairs.first.locator("img").all())
    assert first is not None and second is not None
    assert first["y"] == second["y"] and first["x"] + first["width"] < second["x"]
    assert second["x"] + second["width"] <= tab.evaluate("innerWidth")
    found = Axe().run(tab, "#care")
    assert found.violations_count == 0, found.generate_report()
    tab.locator("summary", has_text="3 pairs as pictures").click()
    tab.emulate_media(media="print")
    assert pairs.first.is_visible()
    assert Axe().run(tab, "#care").violations_count == 0


@pytest.mark.parametrize("tab", [WIDE], indirect=True, ids=["1280"])
def test_no_column_is_clipped_on_a_desktop(tab: Page, url: str) -> None:
    tab.goto(url)
    tab.evaluate(OPEN)
    clipped = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert tab.evaluate(clipped) == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("tab", [NARROW], indirect=True, ids=["390"])
def test_a_shade_shows_where_a_table_goes_on(tab: Page, url: str) -> None:
    """The rightmost pixels beside an empty table cell are darker before scrolling than at the table's end."""
    tab.goto(url)
    table = tab.locator("#sites .scroll").first
    assert tab.evaluate("e => e.scrollWidth > e.clientWidth", table.element_handle())
    before = table.screenshot()
    tab.evaluate("e => { e.scrollLeft = e.scrollWidth }", table.element_handle())
    assert _ink_at_the_right(before) > 20 + _ink_at_the_right(table.screenshot())


def _ink_at_the_right(png: bytes) -> float:
    """Return how much darker than paper the last column of pixels is, on average."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=float)
    return float(255 - pixels[:, -2].mean())


@pytest.mark.parametrize("tab", [WIDE], indirect=True, ids=["1280"])
def test_letters_of_figures_are_of_one_size(tab: Page, url: str) -> None:
    """Pixels of the screen for a unit of the drawing, in every figure: 60 rem of 16 pixels for 8.4 inches."""
    tab.goto(url)
    tab.evaluate(OPEN)
    scales = tab.evaluate(
        "[...document.querySelectorAll('figure:not(.forest):not(.flow) .scroll > svg')]"
        ".map(e => e.getBoundingClientRect().width / e.viewBox.baseVal.width)"
    )
    assert len(scales) == 5
    assert max(scales) <= 60 * 16 / (72 * 8.4) + 0.01


@pytest.mark.parametrize(
    ("tab", "width"),
    [({"viewport": {"width": 1280, "height": 900}}, 1280), ({"viewport": {"width": 390, "height": 844}}, 390)],
    indirect=["tab"],
    ids=["1280", "390"],
)
def test_verdict_and_picture_are_in_the_first_screen(tab: Page, width: int, url: str) -> None:
    """Without scrolling: the word, the sentence and the whole picture of the hospitals, drawn for that width."""
    tab.goto(url)
    height = 900 if width == 1280 else 844
    for selector in (".verdict .word", ".verdict", ".forest.wide svg" if width == 1280 else ".forest.narrow svg"):
        box = tab.locator(selector).bounding_box()
        assert box is not None
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height
    assert tab.locator(".forest:visible").count() == 1


@pytest.mark.parametrize("tab", [{"viewport": {"width": 360, "height": 740}}], indirect=True)
def test_no_sideways_scrolling_on_a_phone(tab: Page, url: str) -> None:
    tab.goto(url)
    tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize("tab", [{"java_script_enabled": False}], indirect=True)
def test_nothing_is_requested_and_no_script_is_needed(tab: Page, url: str) -> None:
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(url)
    assert [u for u in asked if not u.startswith(("data:", url))] == []
    assert tab.get_by_role("heading", level=1).inner_text() == "Does it hold up?"
    assert tab.get_by_text("Two hospitals trained a model together").is_visible()
    assert tab.get_by_text("TsmoBN adds 20.0 points at external sites").first.is_hidden()
    tab.get_by_text("With the names of the methods", exact=True).click()
    assert tab.get_by_text("TsmoBN adds 20.0 points at external sites").first.is_visible()
    # forest, flow, sites, ROC, calibration and patches; the training curve is folded
    assert tab.get_by_role("img").count() == 6
    assert tab.get_by_text("Brier score").first.is_hidden()
    tab.locator("summary", has_text="All metrics").click()
    assert tab.get_by_role("columnheader", name="Brier score").first.is_visible()


def test_no_complaints_in_the_console(tab: Page, url: str) -> None:
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: said.append(dialog.message))
    tab.goto(url)
    assert said == []


def test_a_table_can_be_downloaded(tab: Page, url: str) -> None:
    tab.goto(url)
    with tab.expect_download() as waiting:
        tab.get_by_role("link", name="CSV: Overview table").click()
    assert waiting.value.suggested_filename == "synthetic-fake-overview.csv"
    assert (
        waiting.value.path()
        .read_text(encoding="utf-8")
        .startswith("Condition,Inference,Patients (internal + external),Internal mean,95% interval")
    )


def test_it_prints_what_a_reader_needs_and_says_what_it_leaves_out(tab: Page, url: str) -> None:
    """Folds of the answer are open on paper; secondary ones say that the file has them."""
    tab.goto(url)
    tab.emulate_media(media="print")
    assert tab.pdf(format="A4").startswith(b"%PDF")
    shown = "s => getComputedStyle(document.querySelector(s), '::details-content').contentVisibility"
    assert tab.evaluate(shown, "#words details") == "visible"
    assert tab.evaluate(shown, "#protocol details") == "visible"
    assert tab.evaluate(shown, "#provenance details") == "hidden"
    secondary = tab.locator("details.secondary > summary").all_inner_texts()
    assert all("not printed: the file of this page has it" in text for text in secondary)
    named = [text.partition(" (not printed")[0].strip() for text in secondary]
    assert {"All metrics", "Training curves", "Provenance", "Reporting checklists"} <= set(named)


def test_cells_on_paper_have_7_5_points_or_more(tab: Page, url: str) -> None:
    tab.goto(url)
    tab.evaluate(OPEN)
    tab.emulate_media(media="print")
    sizes = tab.evaluate(
        "[...document.querySelectorAll('td, th, td *, th *')].filter(e => e.innerText && e.innerText.trim())"
        ".map(e => parseFloat(getComputedStyle(e).fontSize) * 72 / 96)"
    )
    assert len(sizes) > 200
    assert min(sizes) >= 7.5 - 1e-6


def test_print_leaves_out_specifications_and_repeats_what_a_page_must_say(tab: Page, url: str) -> None:
    tab.goto(url)
    tab.emulate_media(media="print")
    assert tab.get_by_label("Specification:").first.is_hidden()
    assert tab.locator(".hashes").first.is_hidden()
    assert tab.get_by_text("For research only.").first.is_visible()
    margins = tab.evaluate(
        "[...document.styleSheets].flatMap(s => [...s.cssRules])"
        ".filter(r => r instanceof CSSPageRule).map(r => r.cssText)"
    )
    assert "For research only. Synthetic: not a result. Incomplete: 1 missing." in " ".join(margins)


@pytest.fixture(scope="module")
def index_url(url: str) -> str:
    """The index beside that page."""
    root = Path(url.removeprefix("file://")).parents[1]
    return gallery.write(root / "config" / "studies", Paths(root)).as_uri()


@pytest.mark.parametrize(
    "tab",
    [WIDE, NARROW, {"color_scheme": "dark"}],
    indirect=True,
    ids=["1280", "390", "dark"],
)
def test_the_index_is_accessible_and_says_what_it_is_for(tab: Page, index_url: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    tab.goto(index_url)
    found = Axe().run(tab)
    assert found.violations_count == 0, found.generate_report()
    assert tab.get_by_text("For research only.").is_visible()
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def applied_url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run on new images of several sites, some of them without a label, and one that is no image."""
    out = tmp_path_factory.mktemp("applied")
    plan = fake_study.plan(out)
    label, site = np.arange(40) % 2, ["centre0"] * 20 + ["new <b>site</b>"] * 20
    p1 = np.where(np.arange(40) % 5 > 0, 0.1 + 0.8 * label, 0.4)
    known = pd.array(label, dtype="Int64")
    known[:3] = pd.NA
    table = pd.DataFrame({"path": [f"{i}.png" for i in range(40)], "label": known, "site": site})
    table = table.assign(predicted=pd.array((p1 > 0.5).astype(int), dtype="Int64"), p0=1 - p1, p1=p1)
    run, inference = next(iter(plan.runs.values())), plan.inferences["tsmobn"]
    examples = {k: np.zeros((2, 8, 8, 3), np.uint8) for k in (0, 1)}
    lost, looks = {"lost.png": "no such image"}, np.full((40, 3), 60.0)
    made = Applied(run, {}, inference, Path("new images"), out, table, lost, 1, examples, looks, out)
    return applied.write(made).as_uri()


def require_accessible(tab: Page) -> None:
    """Fail for a violation of accessibility: wide, narrow, dark and on paper."""
    from axe_playwright_python.sync_playwright import Axe

    steps: dict[str, Callable[[], None]] = {
        "1280": lambda: None,
        "390": lambda: tab.set_viewport_size({"width": 390, "height": 844}),
        "dark": lambda: tab.emulate_media(color_scheme="dark"),
        "print": lambda: tab.emulate_media(media="print", color_scheme="light"),
    }
    for name, step in steps.items():
        step()
        found = Axe().run(tab)
        assert found.violations_count == 0, f"{name}: {found.generate_report()}"
        if name == "390":
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("tab", [WIDE], indirect=True, ids=["all"])
def test_the_page_of_new_images_is_accessible_wide_narrow_dark_and_in_print(tab: Page, applied_url: str) -> None:
    tab.goto(applied_url)
    require_accessible(tab)
    assert tab.get_by_text("17 of them are of centre0, where the model was trained").is_visible()


@pytest.fixture(scope="module")
def masks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Paths]:
    """A study of masks that has been carried out."""
    return disc_study.finished(tmp_path_factory.mktemp("masks"))


@pytest.mark.parametrize("tab", [WIDE], indirect=True, ids=["all"])
def test_the_page_of_a_study_of_masks_is_accessible_wide_narrow_dark_and_in_print(
    tab: Page, masks: tuple[Plan, Paths]
) -> None:
    plan, paths = masks
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(paths.page(plan.name).as_uri())
    tab.evaluate(OPEN)
    clipped = "[...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
    assert tab.evaluate(clipped) == 0
    # Outlines are drawn over the images themselves, at their place.
    drawn = "[...document.querySelectorAll('#examples svg.row')].map(e => e.querySelectorAll('image').length)"
    assert tab.evaluate(drawn) == [6, 6, 6]
    require_accessible(tab)
    assert said == []


@pytest.mark.parametrize("tab", [WIDE], indirect=True, ids=["all"])
def test_the_page_of_new_masks_is_accessible_wide_narrow_dark_and_in_print(
    tab: Page, masks: tuple[Plan, Paths], tmp_path: Path
) -> None:
    plan, paths = masks
    (run,) = plan.runs
    pixels = np.random.default_rng(0).integers(80, 120, (5, 40, 60)).astype(np.uint8)
    for n, image in enumerate(pixels):
        image[10:20, 10 + n : 20 + n] = 180
        Image.fromarray(image).save(tmp_path / f"{n}.png")
    table = pd.DataFrame(
        {"path": [f"{n}.png" for n in range(5)], "site": ["north", "north", "a <b>", "a <b>", "a <b>"]}
    )
    table.to_csv(tmp_path / "images.csv", index=False)
    made = apply(paths.run(run), tmp_path / "images.csv", chosen("tsmobn", [], None), tmp_path / "out")
    tab.goto(applied.write(made).as_uri())
    require_accessible(tab)
    assert tab.get_by_text("Without masks drawn by a reader, nothing here says").is_visible()
    assert tab.locator("#examples img").count() == len(made.examples.get(0, ())) + len(made.examples.get(1, ()))


@pytest.mark.parametrize("tab", [{"viewport": {"width": 680, "height": 960}}], indirect=True, ids=["A4"])
def test_no_table_is_wider_than_a_sheet_of_paper(tab: Page, url: str) -> None:
    """182 mm between the margins of A4 are 688 pixels; wider tables would shrink all text of the print."""
    tab.goto(url)
    tab.emulate_media(media="print")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 688


def test_words_are_explained_and_open_items_counted(tab: Page, url: str) -> None:
    tab.goto(url)
    tab.get_by_text("With the names of the methods", exact=True).click()
    glossary = tab.locator(".glossary").last
    assert glossary.locator("dt").all_inner_texts() == ["BN:", "Aggregated BN:", "Local BN:", "Source:", "TsmoBN:"]
    assert "batch normalisation" in glossary.inner_text()
    tab.get_by_text("Reporting checklists", exact=True).click()
    tab.get_by_text("CLAIM 2024: prefilled by fedshift; 29 of 44 items need you").click()
    assert tab.get_by_role("rowheader", name="44", exact=True).is_visible()
