"""A headless Chromium, where there is one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--window-size=1280,900",
)  # fmt: skip
NUMBER = re.compile(r"\d+\.\d+")
MAPS = "style-src"
"""The one thing that the page's policy blocks: styles that plotly.js brings for maps, of which the page has none."""


class Page:
    """A tab with the dashboard."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        """Load it; ``reloaded`` tells whether that happened again."""
        self.driver.get(url)
        self.driver.execute_script("window.unbroken = true")

    @property
    def reloaded(self) -> bool:
        """Whether the document is another than the one that was opened."""
        return self.driver.execute_script("return window.unbroken") is not True

    def all(self, selector: str) -> list[Any]:
        """Elements."""
        return list(self.driver.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        """What the first of them says, as the document has it; empty where there is none."""
        script = "return document.querySelector(arguments[0])?.textContent ?? ''"
        return str(self.driver.execute_script(script, selector))

    def tile(self, name: str) -> str:
        """A number of the section `now`."""
        return self.text(f'[data-tile="{name}"]')

    def number(self, name: str) -> float | None:
        """The same as a number."""
        found = NUMBER.search(self.tile(name))
        return float(found[0]) if found else None

    def press(self, selector: str, key: str = "\ue007") -> None:
        """As with the keyboard: focus and Enter. The page draws itself anew now and then, so in one go."""
        self.driver.execute_script("document.querySelector(arguments[0]).focus()", selector)
        webdriver.ActionChains(self.driver).send_keys(key).perform()

    def confirm(self) -> None:
        """Say yes in the dialog, and see it close."""
        until(lambda: self.all("#ask[open]"), "it asks")
        self.press("#ask-yes")
        until(lambda: not self.all("#ask[open]"), f"it is done: {self.text('#ask-error')}")

    def complaints(self) -> list[str]:
        """What the browser holds against the page."""
        severe = [line["message"] for line in self.driver.get_log("browser") if line["level"] == "SEVERE"]
        return [said for said in severe if not ("plotly.min.js" in said and MAPS in said)]


@contextmanager
def chromium(folder: Path) -> Iterator[Page]:
    """Skips where Chromium or its driver is missing."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Page(started)
    finally:
        started.quit()
