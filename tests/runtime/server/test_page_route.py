"""The page's files, and what it is drawn from."""

import asyncio
import re
from importlib.resources import files
from pathlib import Path

import pytest

from ramet.runtime.server import ServerConfig
from ramet.runtime.server.page_route import MEDIA_TYPES, NAMES, PAGE_PATHS
from tests.runtime.server.speaking_server import SECONDS, Served, error_of, served

FOLDER = Path(str(files("ramet.runtime.server"))) / "page"


def with_key(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_page_is_served_with_a_strict_policy(server: Served) -> None:
    for path in PAGE_PATHS - {"/page/index.html"}:
        response = server.get(path)
        assert response.status_code == 200, path
        assert response.headers["x-content-type-options"] == "nosniff"
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert server.get(path, headers={"if-none-match": response.headers["etag"]}).status_code == 304
        assert server.request("HEAD", path).status_code == 200
    assert server.get("/").headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    "path", ["/page/", "/page/nothing.js", "/page/../app.py", "/page/%2e%2e/app.py", "/page/%2fetc/passwd"]
)
def test_nothing_else_is_opened(server: Served, path: str) -> None:
    assert server.get(path).status_code == 404


def test_the_files_are_those_of_the_folder() -> None:
    assert sorted(one.name for one in FOLDER.iterdir()) == sorted(NAMES)
    assert {Path(name).suffix for name in NAMES} == set(MEDIA_TYPES)


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_html_of_text() -> None:
    for name in NAMES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        found = re.findall(r"https?://[\w./]+", text)
        assert set(found) <= {"http://www.w3.org/2000/svg"}, name
        for forbidden in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
        ):
            assert forbidden not in text, (name, forbidden)
        assert not re.search(r"\sstyle=|\son\w+=|<script>|<style", text), name
        for asset in re.findall(r'(?:src|href|from) ?=? ?"([^"]+)"', text):
            assert asset.removeprefix("./").removeprefix("/page/") in NAMES, (name, asset)


def test_what_scripts_look_for_is_in_the_page() -> None:
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    for name in NAMES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        wanted = re.findall(r'(?:byId|field)\("([^"]+)"\)', text) + re.findall(r'chart\("([^"]+)"', text)
        assert set(wanted) <= set(ids), name


def test_activity_tells_of_what_ran(server: Served) -> None:
    prompt = "an activity of its own, say:hello"
    server.complete(prompt)
    server.complete(prompt)
    told = server.get("/activity").json()
    assert (told["model"], told["requests"], told["other_requests"], told["draining"]) == (
        "speaking",
        [],
        0,
        False,
    )
    assert told["engine"]["finished_requests"] >= 2
    seconds = told["history"]
    assert sum(second[1] for second in seconds) >= 2
    assert sum(second[2] for second in seconds) >= 2
    assert all(abs(told["now"] - second[0]) < 600 for second in seconds)
    outline = server.get("/cache_tree").json()
    assert outline["capacity"] == 8000
    assert any(node[0] == -1 for node in outline["nodes"])
    # Two prompts went through the first one's node.
    assert max(node[2] for node in outline["nodes"]) >= 1


def test_a_key_sees_its_own_requests_and_trees_only() -> None:
    config = ServerConfig(api_keys=("k1", "k2"))
    secret = "a secret prompt"
    body = {"model": "speaking", "prompt": f"{secret} slow", "max_tokens": 1800, "request_id": "private"}

    async def look(server: Served) -> None:
        async with server.client() as client:
            running = asyncio.ensure_future(client.post("/v1/completions", json=body, headers=with_key("k1")))
            while not (mine := (await client.get("/activity", headers=with_key("k1"))).json())["requests"]:
                await asyncio.sleep(0.005)
            (request,) = mine["requests"]
            assert request["request_id"] == "private"
            assert request["prompt_tokens"] == len(f"{secret} slow")
            assert request["state"] in ("waiting", "running")
            for key, sees in (("k1", True), ("k2", False)):
                activity = await client.get("/activity", headers=with_key(key))
                tree = await client.get("/cache_tree", headers=with_key(key))
                assert ("private" in activity.text) is sees
                assert bool(tree.json()["nodes"]) is sees
                assert secret not in activity.text + tree.text
                assert activity.json()["other_requests"] == (0 if sees else 1)
            await client.post("/abort", json={"request_id": "private"}, headers=with_key("k1"))
            await running

    with served(config) as server:
        server.post("/v1/completions", {"prompt": f"{secret} first"}, headers=with_key("k1"))
        for path in ("/activity", "/cache_tree"):
            error_of(server.get(path), 401)
        assert server.get("/").status_code == 200
        assert server.get("/page/app.js").status_code == 200
        asyncio.run(asyncio.wait_for(look(server), SECONDS))


def test_without_an_engine_the_page_has_what_the_server_knows() -> None:
    with served() as server:
        server.engine.close()
        assert server.get("/activity").json()["engine"] is None
        error_of(server.get("/cache_tree"), 503)
