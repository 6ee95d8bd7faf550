"""The page in a real browser, against a server on a real port."""

import struct
import threading
from collections.abc import Iterator

import httpx
import pytest

from ramet.runtime.server import ServerConfig
from tests.runtime.server.browser import Browser, browser
from tests.runtime.server.speaking_server import SECONDS, Live, live

pytestmark = pytest.mark.slow

ANSWERS = ".turn.assistant .said"


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def open_server() -> Iterator[Live]:
    with live() as one:
        yield one


def visit(page: Browser, server: Live, state: str = "ready") -> None:
    page.resize(1400, 1000)
    page.open(f"{server.url}/")
    page.until(lambda: page.text("#state") == state, state)
    page.complaints()


def say(page: Browser, text: str) -> None:
    """Sends a message and waits for the whole answer."""
    before = page.count(ANSWERS)
    page.type("#text", text)
    page.click("#send")
    last = (
        "return [...document.querySelectorAll('.turn.assistant .figures')].slice(arguments[0])"
        ".map(one => one.textContent).join('')"
    )
    page.until(lambda: page.run(last, before), f"an answer to {text}")


def last_answer(page: Browser) -> str:
    return str(page.run(f"return [...document.querySelectorAll('{ANSWERS}')].pop().textContent"))


def test_a_conversation(page: Browser, open_server: Live) -> None:
    visit(page, open_server)
    assert page.text("#model") == "speaking"
    say(page, "say:hello")
    assert last_answer(page) == "hello"
    figures = page.text(".turn.assistant .figures")
    assert "first token" in figures
    assert "prompt tokens cached" in figures
    say(page, "again")
    # The model repeats what follows: the conversation was sent whole.
    assert last_answer(page).endswith("again")
    # The first turn's prompt and answer came from the cache.
    assert " 0 of" not in str(page.run("return [...document.querySelectorAll('.figures')].pop().textContent"))
    page.click("#clear")
    assert page.count(".turn") == 0
    assert page.complaints() == []


@pytest.mark.parametrize(
    "text",
    ["<img src=x onerror=document.title='bad'>", "<b>bold</b> &amp;", "<script>document.title='bad'</script>"],
)
def test_what_is_said_is_never_html(page: Browser, open_server: Live, text: str) -> None:
    visit(page, open_server)
    say(page, f"say:{text}")
    assert last_answer(page) == text
    assert page.text(".turn.user .said") == f"say:{text}"
    assert page.count(".turn b, .turn img, .turn script") == 0
    assert page.run("return document.title") != "bad"
    assert page.complaints() == []


def test_settings_reach_the_server(page: Browser, open_server: Live) -> None:
    visit(page, open_server)
    page.click(".settings summary")
    page.fill("#max_tokens", "3")
    page.fill("#stop_text", "zzz")
    say(page, "say:abcdef")
    assert last_answer(page) == "abc"
    assert "ended: length" in page.text(".turn.assistant .figures")
    page.run(
        "const chosen = document.querySelector('#constraint');"
        "chosen.value = 'choice'; chosen.dispatchEvent(new Event('change'))"
    )
    page.fill("#constraint_text", "aye\nno")
    say(page, "say:zzz")
    assert last_answer(page) in ("aye", "no")
    # What the server refuses is shown in its own words.
    page.fill("#temperature", "-1")
    say(page, "say:x")
    assert "temperature" in str(page.run("return [...document.querySelectorAll('.figures')].pop().textContent"))


def test_activity_and_the_tree_are_drawn(page: Browser, open_server: Live) -> None:
    shared = "You are a helpful assistant of some length. "
    for name in ("one", "two", "three"):
        body = {"model": "speaking", "prompt": f"{shared}say:{name}", "max_tokens": 5}
        httpx.post(f"{open_server.url}/v1/completions", json=body, timeout=SECONDS)
    slow = {"model": "speaking", "prompt": f"{shared}slow", "max_tokens": 1800, "request_id": "from-elsewhere"}
    ended: list[int] = []

    def ask() -> None:
        ended.append(httpx.post(f"{open_server.url}/v1/completions", json=slow, timeout=SECONDS).status_code)

    running = threading.Thread(target=ask)
    running.start()
    visit(page, open_server)
    page.until(lambda: "from-elsewhere" in page.text("#requests"), "the live request")
    page.until(lambda: page.count("rect.node.locked") > 0, "nodes that are read")
    page.click("#requests button")
    running.join(SECONDS)
    assert len(ended) == 1
    page.until(lambda: "None at the moment" in page.text("#requests"), "its end")
    assert page.count("rect.node") >= 4
    assert page.count("rect.heat-2, rect.heat-3, rect.heat-4") >= 1
    assert "nodes" in page.text("#tree-summary")
    for chart in ("ttft", "throughput", "hits"):
        assert page.count(f"#chart-{chart} svg .grid") == 3
    assert page.count("#chart-throughput .series") >= 1
    assert page.count("#tiles .tile") == 6
    assert page.complaints() == []


def test_a_narrow_screen_shows_one_view_and_nothing_sticks_out(page: Browser, open_server: Live) -> None:
    visit(page, open_server)
    assert page.is_shown("#turns")
    assert page.is_shown("#tiles")
    assert not page.is_shown(".views")
    page.resize(500, 900)
    for view, selector in (("activity", "#tiles"), ("cache", "#tree-summary"), ("chat", "#turns")):
        page.click(f"[data-show={view}]")
        page.until(lambda selector=selector: page.is_shown(selector), selector)  # type: ignore[misc]
        assert page.run("return document.documentElement.scrollWidth <= window.innerWidth")
    assert not page.is_shown("#tiles")


def test_light_and_dark(page: Browser, open_server: Live) -> None:
    visit(page, open_server)
    ground = "return getComputedStyle(document.body).backgroundColor"
    found = set()
    for _ in range(3):
        page.click("#theme")
        found.add(page.run(ground))
    assert len(found) == 2
    assert page.picture()[:8] == b"\x89PNG\r\n\x1a\n"
    width, _ = struct.unpack(">II", page.picture()[16:24])
    assert width > 1000


def test_the_key_is_asked_for_and_stays_in_the_tab(page: Browser) -> None:
    with live(ServerConfig(drain_timeout=1.0, api_keys=("k1",))) as server:
        visit(page, server, "needs an API key")
        page.click("#key")
        page.type("#key-text", "k1")
        page.click("#key-dialog .primary")
        page.until(lambda: page.text("#state") == "ready", "ready")
        say(page, "say:hello")
        assert last_answer(page) == "hello"
        assert page.run("return Object.values(localStorage).includes('k1')") is False
        assert page.run("return document.cookie") == ""
        assert page.run("return document.querySelector('#key-text').value") == ""
        page.run("sessionStorage.clear()")
