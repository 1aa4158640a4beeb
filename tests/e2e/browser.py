"""A real browser for the tests: the system's Chromium, by Playwright."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root with one.
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_TIMEOUT_MS = 120_000.0
_PRESSES, _PATIENCE_MS = 8, 15_000.0


class Person:
    """What a person does in Prefect's UI."""

    def __init__(self, page: object, base: str, pictures: Path) -> None:
        from playwright.sync_api import Error, Page

        self._error = Error
        assert isinstance(page, Page)
        self.page = page
        self.base = base
        self.pictures = pictures

    def picture(self, name: str) -> None:
        """Takes a screenshot."""
        self.page.wait_for_timeout(1000)  # Fonts and animations.
        self.page.screenshot(path=self.pictures / f"{name}.png")

    def open_form(self, deployment: str) -> None:
        """Opens the form of a custom run, from the first page on."""
        page = self.page
        page.goto(f"{self.base}/")
        page.get_by_role("link", name="Deployments").first.click()
        page.get_by_role("link", name=deployment).first.click()
        page.get_by_role("button", name="Run").first.click()
        page.get_by_role("menuitem", name=re.compile("custom run", re.IGNORECASE)).click()
        page.get_by_text("Parameters").first.wait_for()

    def open_section(self, name: str) -> None:
        """Opens a section of params.yaml in the form."""
        self.page.get_by_role("tab", name=name, exact=True).click()

    def fill(self, name: str, value: str) -> None:
        """Fills the first field of this name."""
        self.page.get_by_label(re.compile(rf"^{name}( |$)")).first.fill(value)

    def submit(self) -> None:
        """Presses Submit."""
        self.page.get_by_role("button", name="Submit").click()

    def submit_until_taken(self) -> None:
        """Presses Submit until the form is gone: it looks at what was typed a moment later, and refuses until then."""
        button = self.page.get_by_role("button", name="Submit")
        for left in reversed(range(_PRESSES)):
            button.click()
            try:
                button.wait_for(state="detached", timeout=_PATIENCE_MS)
                return
            except self._error:
                if not left:
                    raise

    def open_run(self, run: str) -> None:
        """Opens a run's page."""
        self.page.goto(f"{self.base}/v2/runs/flow-run/{run}")
        self.page.get_by_role("button", name="Open menu").wait_for()

    def choose(self, action: str) -> None:
        """Chooses an action from the run's menu."""
        self.page.get_by_role("button", name="Open menu").click()
        self.page.get_by_role("menuitem", name=action).click()


@contextmanager
def person(base: str, pictures: Path) -> Iterator[Person]:
    """Opens the browser; skips where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip("needs Chromium or Chrome (Debian: apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(_FLAGS))
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(_TIMEOUT_MS)
        try:
            yield Person(page, base, pictures)
        finally:
            browser.close()
