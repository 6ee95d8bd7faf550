"""A headless Chromium, driven over the W3C WebDriver protocol; tests skip where there is none."""

import base64
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

SECONDS = 60.0
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def command(self, method: str, path: str, **parameters: Any) -> Any:
        body = None if method == "GET" else parameters
        response = self._client.request(method, f"/session/{self._session}{path}", json=body)
        value = response.json()["value"]
        assert response.status_code == 200, value
        return value

    def open(self, url: str) -> None:
        self.command("POST", "/url", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """The body of a function."""
        return self.command("POST", "/execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        self.command("POST", f"/element/{self._element(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        self.command("POST", f"/element/{self._element(selector)}/value", text=text)

    def fill(self, selector: str, text: str) -> None:
        """As typed, in place of what was there."""
        self.command("POST", f"/element/{self._element(selector)}/clear")
        self.type(selector, text)

    def is_shown(self, selector: str) -> bool:
        return bool(self.command("GET", f"/element/{self._element(selector)}/displayed"))

    def resize(self, width: int, height: int) -> None:
        self.command("POST", "/window/rect", width=width, height=height)

    def picture(self) -> bytes:
        return base64.b64decode(self.command("GET", "/screenshot"))

    def complaints(self) -> list[str]:
        """What the console has of errors, violations of the content security policy among them."""
        entries = self.command("POST", "/se/log", type="browser")
        return [one["message"] for one in entries if one["level"] == "SEVERE"]

    def until(self, holds: Callable[[], object], what: str) -> None:
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end, f"{what}: {self.complaints()}"
            time.sleep(0.05)

    def _element(self, selector: str) -> str:
        found = self.command("POST", "/element", using="css selector", value=selector)
        return str(found[ELEMENT])


@contextmanager
def browser() -> Iterator[Browser]:
    driver = shutil.which("chromedriver")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if driver is None or chromium is None:
        pytest.skip("there is no Chromium with its driver here")
    with (
        tempfile.TemporaryDirectory() as profile,
        _driver(driver, profile) as url,
        httpx.Client(base_url=url, timeout=SECONDS) as client,
    ):
        arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={profile}/profile",
            "--window-size=1400,1000",
        ]
        options = {"binary": chromium, "args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        if "sessionId" not in answer:
            pytest.skip(f"Chromium does not start here: {answer.get('message', '')[:200]}")
        try:
            yield Browser(client, answer["sessionId"])
        finally:
            # Ends Chromium, which would outlive its driver.
            client.delete(f"/session/{answer['sessionId']}")


@contextmanager
def _driver(path: str, folder: str) -> Iterator[str]:
    """Its address. What it says goes to a file, so that no full pipe stops it."""
    said = Path(folder) / "driver"
    with said.open("wb") as output:
        process = subprocess.Popen([path, "--port=0"], stdout=output, stderr=subprocess.STDOUT)
        try:
            end = time.monotonic() + SECONDS
            while not (found := re.search(r"on port (\d+)\.", said.read_text())):
                assert time.monotonic() < end
                assert process.poll() is None, said.read_text()
                time.sleep(0.02)
            yield f"http://127.0.0.1:{found[1]}"
        finally:
            process.terminate()
            process.wait(SECONDS)
