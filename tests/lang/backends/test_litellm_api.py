"""Programs through litellm: what it is called with, and what becomes of its chunks. The package is not
needed."""

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest

import ramet
from ramet.lang.backends.base import Backend
from ramet.lang.backends.litellm_api import LiteLLM
from ramet.lang.errors import GenerationError, UnsupportedError
from ramet.runtime.protocol import InvalidRequestError


class Provider:
    """An acompletion that says a text word by word, or raises."""

    def __init__(self, text: str = "in Rome", error: Exception | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.num_closed = 0
        self._text = text
        self._error = error

    async def __call__(self, **arguments: Any) -> AsyncIterator[dict[str, Any]]:
        self.calls.append(arguments)
        if self._error is not None:
            raise self._error
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for word in self._text.split(" "):
                yield {"choices": [{"index": 0, "delta": {"content": f"{word} "}, "finish_reason": None}]}
            yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
            yield {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
        finally:
            self.num_closed += 1


@ramet.function
def ask(s: Any, **options: Any) -> None:
    s += ramet.user("Where?") + ramet.assistant(ramet.gen("x", **options))


def test_a_program() -> None:
    provider = Provider()
    backend: Backend = LiteLLM("some/model", api_key="k", timeout=9.0, acompletion=provider)
    state = ask.run(backend=backend, max_tokens=7, stop="x")
    assert state["x"] == "in Rome "
    assert state.get_meta_info("x")["prompt_tokens"] == 3
    assert provider.calls == [
        {
            "model": "some/model",
            "messages": [{"role": "user", "content": "Where?"}],
            "stop": ["x"],
            "max_tokens": 7,
            "stream": True,
            "stream_options": {"include_usage": True},
            "api_key": "k",
            "timeout": 9.0,
            "num_retries": 5,
        }
    ]
    assert provider.num_closed == 1
    assert ramet.get_server_info(backend) == {"backend": "litellm with model 'some/model'"}


def test_a_choice() -> None:
    backend = LiteLLM("m", acompletion=Provider('{"answer": "b"}'))
    assert ask.run(backend=backend, choices=["a", "b"])["x"] == "b"


def test_what_litellm_raises_is_the_cause() -> None:
    backend = LiteLLM("m", acompletion=Provider(error=KeyError("no such provider")))
    with pytest.raises(GenerationError, match="litellm with model 'm': KeyError: 'no such provider'"):
        ask.run(backend=backend)
    backend = LiteLLM("m", acompletion=Provider('{"answer": "c'))
    with pytest.raises(GenerationError, match="raise max_tokens"):
        ask.run(backend=backend, choices=["a", "b"])


def test_what_it_does_not_have() -> None:
    backend = LiteLLM("m", acompletion=Provider())
    with pytest.raises(UnsupportedError, match="does not honour top_k=3"):
        ask.run(backend=backend, top_k=3)
    with pytest.raises(UnsupportedError, match="no cache_salt"):
        backend.prompt(cache_salt="s")
    with pytest.raises(UnsupportedError, match="cannot be told to drop its cache"):
        ramet.flush_cache(backend)


@pytest.mark.skipif(find_spec("litellm") is not None, reason="litellm is installed")
def test_without_the_package() -> None:
    with pytest.raises(InvalidRequestError, match=r"pip install 'ramet\[litellm\]', or give acompletion"):
        LiteLLM("m")
