"""The page in a browser: filters, widths, nothing fetched. Needs Debian's chromium-driver."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from svr_lightning.cli.report import write_report
from svr_lightning.report.figures import all_figures
from svr_lightning.report.runs import read_methods
from svr_lightning.report.tables import all_tables
from tests.hostile_text import EVIL
from tests.synthetic import recording
from tests.trajectories import save

webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs Chromium: apt-get install chromium chromium-driver"
)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
SETS = {"gsm8k": (40, 0.6, 0.4, 0.2), "math500": (30, 0.4, 0.3, 0.3)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    rows = recording(SETS, turns=4)
    rows[0]["question"] = rows[0]["turns"][0]["text"] = EVIL
    rows[1]["id"] = "x" * 400  # nothing to break the line at
    save(folder / "a", rows)
    save(folder / "b", recording(SETS, turns=4, seed=1, skill=0.7))
    out = folder / "report"
    methods = read_methods([f"SVR={folder / 'a'}", f"other={folder / 'b'}"])
    figures, notes = all_figures(methods)
    some = figures[:4]  # the rest takes its time and adds nothing to the page's layout
    write_report(out, methods, some, notes, all_tables(methods), most=100)
    return (out / "index.html").as_uri()


def shown(browser: Any) -> list[str]:
    """The classes of the trajectories that can be seen."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.t')]"
        ".filter(one => getComputedStyle(one).display != 'none').map(one => one.className)"
    )


def choose(browser: Any, radio: str) -> None:
    browser.execute_script(f"document.querySelector('label[for={radio}]').click()")


def resize(browser: Any, width: int) -> None:
    size = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def test_filters_show_what_they_say_alone_and_together(browser: Any, page: str) -> None:
    resize(browser, 1400)
    browser.get(page)
    everything = shown(browser)
    assert len(everything) == 2 * (40 + 30)
    radios = browser.execute_script(
        "return [...document.querySelectorAll('.filters label')].map(label =>"
        " [label.htmlFor, Number(label.querySelector('small').textContent)])"
    )
    assert len(radios) == 6 + 3 + 3
    for radio, count in radios:
        choose(browser, radio)
        wanted = (
            everything if radio.endswith("-0") else [t for t in everything if radio in t.split()]
        )
        assert shown(browser) == wanted
        assert len(wanted) == count > 0
        choose(browser, f"{radio.split('-')[0]}-0")
    for radio in ("kind-1", "method-2", "set-1"):
        choose(browser, radio)
    both = [t for t in everything if {"kind-1", "method-2", "set-1"} <= set(t.split())]
    assert shown(browser) == both != []


def test_nothing_scrolls_sideways_on_a_phone_and_every_trajectory_opens(
    browser: Any, page: str
) -> None:
    for width in (1400, 390):
        resize(browser, width)
        browser.get(page)
        browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert browser.execute_script("return document.scrollingElement.scrollWidth") <= width
    text = browser.execute_script("return document.querySelector('.t').innerText")
    assert "<script>alert(1)</script>" in text
    assert "STOP" in browser.execute_script("return document.body.innerText")


def test_the_page_runs_and_fetches_nothing(browser: Any, page: str) -> None:
    browser.get(page)
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.execute_script("return document.scripts.length") == 0
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []
