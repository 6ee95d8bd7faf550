"""Responses that are kept: what the store holds, and what clients see of it."""

import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.runtime.protocol import InvalidRequestError, RequestFailedError
from ramet.runtime.server import ServerConfig
from ramet.runtime.server.response_store import ResponseStore, StoredResponse
from tests.runtime.server.speaking_server import PLAIN_TEMPLATE, SECONDS, Live, error_of, live, served


def stored(response_id: str, text: str = "x") -> StoredResponse:
    return StoredResponse({"id": response_id, "text": text}, [{"text": text}, {"text": "answer"}], 1)


def test_tenants_see_their_own(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db")
    store.save("a", stored("1", "of a"))
    store.save("b", stored("1", "of b"))
    assert store.load("a", "1") == stored("1", "of a")
    assert store.load("c", "1") is None
    assert not store.delete("c", "1")
    assert store.delete("a", "1")
    assert not store.delete("a", "1")
    assert store.load("a", "1") is None
    found = store.load("b", "1")
    assert found is not None
    assert found.input_items == [{"text": "of b"}]
    store.close()
    store.close()


def test_they_outlive_the_process_and_are_nobody_elses_to_read(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    first = ResponseStore(path)
    first.save("a", stored("1"))
    first.close()
    second = ResponseStore(path)
    assert second.load("a", "1") == stored("1")
    second.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["save", "delete"]), st.sampled_from("abcd"), st.integers(0, 300)),
        max_size=12,
    )
)
def test_it_stays_within_its_size(tmp_path_factory: pytest.TempPathFactory, steps: list[Any]) -> None:
    path = tmp_path_factory.mktemp("store") / "r.db"
    store = ResponseStore(path, max_bytes=600)
    kept: dict[str, int] = {}
    for action, name, size in steps:
        kept.pop(name, None)
        if action == "delete":
            store.delete("t", name)
            continue
        one = StoredResponse({"id": name, "text": ""}, [{"text": "x" * size}], 1)
        store.save("t", one)
        kept[name] = len('{"id":"a","text":""}') + len('[{"text":""}]') + size
        while sum(kept.values()) > 600:
            kept.pop(next(iter(kept)))
    assert {name for name in "abcd" if store.load("t", name) is not None} == set(kept)
    store.close()


def test_threads(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db")

    def work(tenant: str) -> None:
        for number in range(20):
            store.save(tenant, stored(str(number)))
            assert store.load(tenant, str(number)) is not None

    threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert all(store.delete(name, str(number)) for name in "abc" for number in range(20))
    store.close()


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database, and long enough to be seen as none " * 20)
    for path in (tmp_path, tmp_path / "no" / "folder", tmp_path / "text"):
        with pytest.raises(InvalidRequestError, match="cannot be opened"):
            ResponseStore(path)


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "r.db")
    store.close()
    with pytest.raises(RequestFailedError, match="could not be stored"):
        store.save("a", stored("1"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    path = tmp_path_factory.mktemp("store") / "r.db"
    with live(ServerConfig(drain_timeout=1.0, response_store=str(path)), template=PLAIN_TEMPLATE) as one:
        yield one


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", timeout=SECONDS, max_retries=0) as one:
        yield one


def test_a_conversation_goes_on_from_a_stored_response(client: openai.OpenAI) -> None:
    first = client.responses.create(
        model="speaking", input="one", instructions="I", max_output_tokens=3, store=True, temperature=0
    )
    assert first.output_text
    second = client.responses.create(
        model="speaking", input="say:two", previous_response_id=first.id, store=True, temperature=0
    )
    assert (second.output_text, second.previous_response_id) == ("two", first.id)
    # The instructions of the first one are not carried along.
    turns = ("user: one", f"assistant: {first.output_text}", "user: say:two")
    assert second.usage is not None
    assert second.usage.input_tokens == sum(map(len, turns)) + 2
    got = client.responses.retrieve(second.id)
    assert got.output == second.output
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["message"] * 3
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    third = client.responses.create(model="speaking", input="three", previous_response_id=second.id)
    assert third.output_text.startswith("two")
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(third.id)


def test_a_streamed_response_is_stored_before_its_last_event(client: openai.OpenAI) -> None:
    with client.responses.stream(model="speaking", input="say:hello", store=True) as stream:
        for event in stream:
            if event.type == "response.completed":
                assert client.responses.retrieve(event.response.id).output_text == "hello"
                assert event.response.model_dump()["store"] is True


def test_what_is_not_there(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="speaking", input="x", previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(openai.NotFoundError):
        client.responses.delete("resp_none")
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("../../etc/passwd")


def test_keys_and_servers_without_a_store(tmp_path: Path) -> None:
    config = ServerConfig(api_keys=("k1", "k2"), response_store=str(tmp_path / "r.db"))
    with served(config) as server:
        mine, other = ({"authorization": f"Bearer {key}"} for key in config.api_keys)
        body = {"input": "say:x", "store": True, "request_id": "mine"}
        assert server.post("/v1/responses", body, headers=mine).status_code == 200
        assert server.get("/v1/responses/mine", headers=mine).json()["id"] == "mine"
        for path in ("/v1/responses/mine", "/v1/responses/mine/input_items"):
            error_of(server.get(path, headers=other), 404)
        error_of(server.request("DELETE", "/v1/responses/mine", headers=other), 404)
        following = {"input": "say:y", "previous_response_id": "mine"}
        error_of(server.post("/v1/responses", following, headers=other), 400)
        server.app.state.server.response_store.close()
        failed = server.post("/v1/responses", body, headers=mine)
        assert (failed.status_code, failed.json()["error"]["code"]) == (500, "request_failed")
    with served() as server:
        error_of(server.get("/v1/responses/mine"), 404)
        error_of(server.post("/v1/responses", {"input": "x", "store": True}), 400)
