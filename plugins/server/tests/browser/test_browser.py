"""Tests of the page in Chromium: keyboard, themes and live updates."""

from __future__ import annotations

import csv
import importlib.resources
import math
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from detcore.records import MetricRecord
from detcore_report import read_view
from detcore_report.pages.experiment_page import Report, report_page

from .conftest import Site, Window

DARK = {"color_scheme": "dark"}
NARROW = {"viewport": {"width": 320, "height": 640}}
ALL_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
PATHS = (
    "/ui/experiments", "/ui/experiments?name=nothing+is+called+that",
    "/ui/experiments/{searched}", "/ui/experiments/{searched}?metric=loss",
    "/ui/experiments/{searched}?where=units+%3E+99&sort=steps&column=trial&column=steps",
    "/ui/experiments/{searched}?where=unit+%3E+99",
    "/ui/experiments/{searched}/hyperparameters", "/ui/experiments/{searched}/compare",
    "/ui/experiments/{searched}/compare?trial=2&trial=3&trial=4",
    "/ui/experiments/{searched}/checkpoints", "/ui/experiments/{searched}/configuration",
    "/ui/experiments/{running}", "/ui/experiments/{single}", "/ui/experiments/{single}/checkpoints",
    "/ui/experiments/{failed}", "/ui/experiments/{empty}", "/ui/trials/1", "/ui/trials/1/log",
    "/ui/experiments/{searched}?group=hparams.optimizer.name",
    "/ui/compare?experiment={searched}&experiment={single}",
    "/ui/checkpoints/{checkpoint}", "/ui/models", "/ui/models/1",
)  # fmt: skip


def paths(site: Site) -> list[str]:
    """Return the URL of one page of each kind."""
    return [path.format(**vars(site)) for path in PATHS]


def report(site: Site, step: int, value: float, *, best: int = 0) -> None:
    """Report a validation of each running trial. One of them becomes the best."""
    site.database.add_metrics([
        MetricRecord(
            trial_id=trial.id, run_id=1, kind="validation", steps_completed=step,
            metrics={"val_loss": value / 2 if trial.id == best else value + trial.id / 1000},
        )
        for trial in site.database.list_trials(site.running)
    ])  # fmt: skip


def barriers(page: Page, rules: object = ALL_RULES) -> list[str]:
    """Return the accessibility violations that axe-core finds."""
    # From a package that contains the script, so that the test needs no network.
    script = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js")
    page.evaluate(script.read_text(encoding="utf-8"))
    results = page.evaluate("rules => axe.run(document, {runOnly: rules})", rules)
    assert len(results["passes"]) > (15 if rules is ALL_RULES else 0)  # the check ran
    return [
        f"{violation['id']}: {node['html'][:200]}"
        for violation in results["violations"]
        for node in violation["nodes"]
    ]


# -- what everybody sees --------------------------------------------------------------------------


@pytest.mark.soak
def test_pages_have_no_accessibility_violations(site: Site, window: Window) -> None:
    """Checks the rules of WCAG 2.2 AA."""
    for path in paths(site):
        assert barriers(window.open(path)) == [], path


@pytest.mark.parametrize("window", [DARK], indirect=True)
def test_dark_theme_has_contrast(site: Site, window: Window) -> None:
    """All other rules are independent of the theme."""
    for path in paths(site):
        rules = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}
        assert barriers(window.open(path), rules) == [], path


def test_accessibility_check_finds_violations(site: Site, window: Window) -> None:
    page = window.open("/ui/models")
    page.evaluate(
        "document.querySelector('h1').style.color = '#999999';"
        "const main = document.querySelector('main');"
        "for (const tag of ['input', 'button']) main.append(document.createElement(tag));"
    )
    rules = {barrier.partition(":")[0] for barrier in barriers(page)}
    assert {"color-contrast", "label", "button-name"} <= rules


def test_login_page_has_no_accessibility_violations(site: Site, window: Window) -> None:
    window.context.clear_cookies()  # first, because the form redirects logged-in users
    page = window.open("/ui/login")
    page.get_by_label("Name").fill("eve")
    page.get_by_label("Password").fill("guess")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_have_text("The name or the password is wrong.")
    assert barriers(page) == []
    assert [fault for fault in window.faults if "403" not in fault] == []
    window.faults.clear()


@pytest.mark.parametrize("window", [NARROW], indirect=True)
def test_narrow_window_has_no_horizontal_scrolling(site: Site, window: Window) -> None:
    """320 pixels are a small phone, or a window of 1280 pixels at 400 %."""
    for path in paths(site):
        window.open(path)
        assert window.overflow() <= 0, path


MEASURE = """() => [...document.querySelectorAll("svg.fit")]
  .filter((svg) => svg.getClientRects().length)
  .map((svg) => {
    const texts = [...svg.querySelectorAll("text")].map((one) => one.getBoundingClientRect());
    const box = svg.getBoundingClientRect();
    return {
      right: box.right, height: box.height,
      low: Math.min(...texts.map((one) => one.height)),
      high: Math.max(...texts.map((one) => one.height)),
      textLeft: Math.min(...texts.map((one) => one.left)),
      textRight: Math.max(...texts.map((one) => one.right)),
    };
  })"""


def assert_charts_fit(page: Page, width: int, where: str) -> None:
    """Check that charts and their labels are inside the window and readable."""
    measures = page.evaluate(MEASURE)
    assert measures, where
    for chart in measures:
        message = f"{where} at {width}: {chart}"
        assert chart["right"] <= width, message
        assert chart["textLeft"] >= 0, message
        assert chart["textRight"] <= width, message
        assert 120 <= chart["height"] <= 560, message
        # A text box is about 1.2 times the font size: 9 to 17 pixels.
        assert chart["low"] >= 10.5, message
        assert chart["high"] <= 20, message


@pytest.mark.parametrize("width", [320, 420, 768, 1280])
def test_charts_fit_window_and_are_readable(
    site: Site, browser: Any, signed_in: Path, width: int
) -> None:
    context = browser.new_context(storage_state=signed_in, viewport={"width": width, "height": 800})
    window = Window(context, site.server.url)
    for path in (f"/ui/experiments/{site.searched}", "/ui/trials/1"):
        page = window.open(path)
        chart = page.locator("#chart-0 canvas")
        expect(chart).to_be_visible()
        box = chart.bounding_box()
        assert box is not None
        assert (box["x"] >= 0, box["x"] + box["width"] <= width) == (True, True), path
        assert window.overflow() <= 0, path
    path = f"/ui/experiments/{site.searched}/hyperparameters"
    page = window.open(path)
    assert window.overflow() <= 0
    assert_charts_fit(page, width, path)
    assert window.faults == []
    context.close()


@pytest.mark.parametrize("width", [320, 420, 1280])
def test_report_charts_fit_window(site: Site, browser: Any, width: int) -> None:
    view = read_view(site.database, site.searched, all_metrics=True)
    report = Report(
        config="searcher: {}", settings={}, checkpoints=[], logs={},
        written_at="now",
    )  # fmt: skip
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_content(report_page(view, report))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_charts_fit(page, width, "report")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 420])
def test_light_and_dark_themes(
    site: Site, browser: Any, signed_in: Path, tmp_path: Path, scheme: str, width: int
) -> None:
    context = browser.new_context(
        storage_state=signed_in, color_scheme=scheme, viewport={"width": width, "height": 800}
    )
    window = Window(context, site.server.url)
    page = window.open(f"/ui/experiments/{site.searched}/hyperparameters")
    page.screenshot(path=tmp_path / "page.png", full_page=True)
    assert (tmp_path / "page.png").stat().st_size > 10_000
    colours = page.evaluate(
        "() => [getComputedStyle(document.body).backgroundColor, "
        "getComputedStyle(document.querySelector('g.t.best path')).stroke]"
    )
    light = ["rgb(255, 255, 255)", "rgb(200, 76, 0)"]
    assert colours == (light if scheme == "light" else ["rgb(20, 23, 27)", "rgb(255, 155, 92)"])
    assert window.faults == []
    context.close()


# -- by keyboard ----------------------------------------------------------------------------------


def focus(page: Page) -> str:
    """Return what has the focus: its text, or its name."""
    name: str = page.evaluate(
        "(document.activeElement.textContent || document.activeElement.ariaLabel || "
        "document.activeElement.name || '').trim().slice(0, 40)"
    )
    return name


def test_keyboard_reaches_all_controls(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.single}")
    page.keyboard.press("Tab")
    assert focus(page) == "Skip to content"
    box = page.get_by_text("Skip to content").bounding_box()
    assert box is not None
    assert box["x"] >= 0  # it is visible while it has the focus
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    names = []
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break
        names.append(focus(page))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", f"no one sees that {names[-1]!r} has the focus"
    else:
        pytest.fail(f"the focus does not leave the page: {names}")
    for expected in ("Archive", "Curves and trials", "Configuration", "The numbers of this chart"):
        assert expected in names, names


def test_keyboard_compares_trials(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}")
    boxes = page.get_by_role("checkbox")
    for index in (0, 2):
        boxes.nth(index).focus()
        page.keyboard.press("Space")
    page.get_by_role("button", name="Compare selected trials").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/compare?trial=*&trial=*")
    assert page.title() == f"Side by side · experiment {site.searched} · detcore"
    table = page.get_by_role("table", name="Hyperparameters, differing values first")
    assert table.get_by_role("columnheader").count() == 2
    assert table.get_by_role("rowheader", name="units differs").count() == 1
    chart = page.get_by_role(
        "application", name=re.compile(r"^val_loss \(validation\) of 2 trials")
    )
    expect(chart).to_be_visible()


def test_screen_reader_structure(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}")
    for role in ("banner", "main"):
        assert page.get_by_role(role).count() == 1, role
    for name in ("Main", "You are here", "About this experiment"):
        assert page.get_by_role("navigation", name=name).count() == 1, name
    current = page.locator("[aria-current=page]")
    assert current.all_inner_texts() == ["Curves and trials"]
    assert page.get_by_role("heading", level=1).count() == 1
    page.get_by_text("The numbers of this chart").press("Enter")
    table = page.get_by_role("table", name="val_loss (validation) of each trial")
    expect(table).to_be_visible()
    assert table.get_by_role("row").count() == 25


# -- charts and tables that answer ----------------------------------------------------------------


def test_chart_pointer_and_keyboard(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}")
    plot = page.locator("#chart-0 .plot")
    expect(plot.locator("canvas")).to_be_visible()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 120)
    values = page.locator("#chart-0 .told")
    expect(values).to_contain_text(re.compile(r"trial \d+: [\d.]+ at step \d+"))
    expect(values).to_contain_text("and 16 more")  # eight of 24 are listed
    back = page.get_by_role("button", name="Zoom back")
    expect(back).to_be_disabled()
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 120, steps=3)
    page.mouse.up()
    expect(back).to_be_enabled()
    match = re.search(r"from=([\d.]+)&to=([\d.]+)$", page.url)
    assert match
    low, high = float(match[1]), float(match[2])
    assert 40 < low < high < 100
    plot.focus()
    status = page.locator("#said")
    for _ in range(2):
        page.keyboard.press("ArrowLeft")
    expect(status).to_contain_text(re.compile(r"^trial \d+: "))
    first = status.inner_text()
    assert low <= int(first.split()[-1]) <= high
    page.keyboard.press("ArrowUp")
    expect(status).not_to_have_text(first)
    page.keyboard.press("Escape")
    expect(back).to_be_disabled()
    assert page.url.endswith(f"/ui/experiments/{site.searched}")


def test_view_state_is_in_url(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}")
    page.get_by_label("Vertical axis").select_option("log")
    expect(page.locator("#chart-0")).to_contain_text("The vertical axis is logarithmic.")
    page.get_by_text("Choose lines").click()
    page.get_by_role("button", name="Hide all").click()
    expect(page.locator("#chart-0")).to_contain_text("All lines are hidden")
    page.get_by_role("button", name="Show all").click()
    box = page.locator(".lines input").first
    hidden = box.get_attribute("value")
    box.uncheck()
    page.get_by_role("link", name="units").click()
    page.wait_for_url("**sort=hparams.units**")
    page.get_by_label("Filter").fill("units > 99 and dropout < 0.4")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=units**")
    for expected in ("sort=hparams.units", "yaxis=log", f"hide={hidden}"):
        assert expected in page.url
    page.reload()
    assert page.get_by_label("Vertical axis").input_value() == "log"
    chart = page.get_by_role(
        "application", name=re.compile(r"^val_loss \(validation\) of 23 trials")
    )
    expect(chart).to_be_visible()
    expect(page.get_by_role("table", name=re.compile("of 24 pass the filter"))).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV of this table").click()
    with Path(download.value.path()).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))  # notes can have several lines
    assert rows[0][:5] == ["trial", "state", "labels", "steps", "best val_loss"]
    assert len(rows) == 1 + page.locator("#trials tbody tr").count()


def test_group_bands_and_chart_download(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}")
    page.get_by_label("Group by").select_option("hparams.optimizer.name")
    page.get_by_role("button", name="Apply").click()
    page.wait_for_url("**group=hparams.optimizer.name")
    chart = page.get_by_role("application", name=re.compile(r"^val_loss .* of 3 groups"))
    expect(chart).to_be_visible()
    page.keyboard.press("Tab")
    chart.focus()
    page.keyboard.press("ArrowLeft")
    pattern = re.compile(r"^(sgd|adam|rmsprop): mean [\d.]+, [\d.]+ to [\d.]+ of \d+ at step \d+$")
    expect(page.locator("#said")).to_have_text(pattern)
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG of val_loss (validation)").click()
    assert download.value.suggested_filename == "val_loss-validation.png"
    picture = Path(download.value.path()).read_bytes()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 5000
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG of this table").click()
    image = Path(download.value.path()).read_bytes()
    width, height = (int.from_bytes(image[at : at + 4], "big") for at in (16, 20))
    table = page.locator("#trials-box table").bounding_box()
    assert table is not None
    assert (width, height) == (math.ceil(table["width"]), math.ceil(table["height"]))
    assert len(image) > 5000


def test_epoch_axis_without_length_explains(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.searched}?x=epoch")
    note = page.locator("#chart-0").get_by_text("The number of steps per epoch is unknown")
    expect(note).to_be_visible()
    page.get_by_label("Across").select_option("time")
    expect(page.locator("#chart-0 canvas")).to_be_visible()


# -- while trials report --------------------------------------------------------------------------


def test_curves_update_live(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.running}")
    box = page.get_by_role("checkbox").last  # the worst trial becomes the best
    value = box.get_attribute("value") or ""
    box.check()
    box.focus()
    page.get_by_text("The numbers of this chart").click()
    box.focus()
    for step in (500, 510):
        report(site, step, 0.2 - step / 10000, best=int(value))
        expect(page.locator("#chart-0 figcaption")).to_have_text(
            f"3 trials over {step} steps", timeout=20_000
        )
    # The selection, the open details and the focus are unchanged.
    assert page.get_by_role("checkbox").first.get_attribute("value") == value
    assert page.locator("#trials input:checked").get_attribute("value") == value
    assert page.evaluate("document.activeElement.value") == value
    expect(page.get_by_role("table", name="val_loss (validation) of each trial")).to_be_visible()
    expect(page.locator("#updated")).to_contain_text("updated")


def test_updates_can_be_paused(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.running}")
    button = page.get_by_role("button", name="Pause updates")
    button.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    page.wait_for_load_state("networkidle")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    report(site, 900, 0.1)
    page.wait_for_timeout(3000)  # longer than the update interval
    assert urls == []
    assert "900 steps" not in page.inner_text("#curves")
    button.press("Enter")
    expect(page.locator("#chart-0 figcaption")).to_contain_text("over 900 steps", timeout=20_000)


def test_server_outage_is_shown_and_survived(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.running}")
    site.server.kill()
    note = page.locator("#updated")
    expect(note).to_have_text("The server does not answer. Retrying …", timeout=20_000)
    report(site, 1200, 0.05)
    site.server.start()
    expect(page.locator("#chart-0 figcaption")).to_contain_text("over 1200 steps", timeout=30_000)
    expect(note).to_contain_text("updated")
    # Refused, reset or empty: the browser reports only the kind of failure.
    window.faults = [fault for fault in window.faults if "resource: net::ERR_" not in fault]


def test_logout_elsewhere_is_shown(site: Site, window: Window) -> None:
    page = window.open(f"/ui/experiments/{site.running}")
    expect(page.locator("#updated")).to_contain_text("updated", timeout=20_000)
    window.context.clear_cookies()
    expect(page.locator("#updated")).to_contain_text("You are logged out", timeout=20_000)
    expect(page.locator("#chart-0 canvas")).to_be_visible()  # the content is unchanged


def test_checkpoint_is_verified(site: Site, window: Window) -> None:
    page = window.open(f"/ui/checkpoints/{site.damaged}")
    page.get_by_role("button", name="Check all files").press("Enter")
    expect(page.locator("#verification")).to_contain_text("✗ damaged", timeout=20_000)
    expect(page.locator("#verification")).to_contain_text("weights.bin: has changed")


def test_times_use_browser_time_zone(site: Site, browser: Any, signed_in: Path) -> None:
    times = []
    for zone in ("Pacific/Kiritimati", "Pacific/Honolulu"):  # 24 hours apart
        context = browser.new_context(storage_state=signed_in, timezone_id=zone, locale="en-GB")
        page = Window(context, site.server.url).open(f"/ui/experiments/{site.single}")
        time = page.locator("dd time").first
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", time.get_attribute("datetime") or ""
        )
        times.append(time.inner_text())
        context.close()
    assert times[0][:10] != times[1][:10]
    assert times[0][10:] == times[1][10:]


@pytest.mark.parametrize("window", [{"java_script_enabled": False}], indirect=True)
def test_page_works_without_scripts(site: Site, window: Window) -> None:
    page = window.open("/ui/experiments")
    page.get_by_role("searchbox", name="Name").fill("digits")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="digits, random search").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("digits, random search")
    assert "UTC" in page.locator("dd time").first.inner_text()
    expect(page.get_by_role("button", name="Pause updates")).to_have_count(0)
    page.get_by_role("link", name="Hyperparameters").click()
    expect(page.locator("svg:visible")).to_have_count(5)
    window.open(f"/ui/experiments/{site.running}")
    expect(page.get_by_text("Without JavaScript this page does not update")).to_be_visible()
