"""Engines in this process are token engines: the types say so, and the backend runs on one."""

import asyncio

from ramet.lang.backends.local import LocalBackend
from ramet.lang.backends.token_engine import TokenEngine
from ramet.runtime.protocol import ProgramTag, SamplingParams
from tests.runtime.engine.speaking import open_speaking


def test_an_engine_is_one() -> None:
    with open_speaking() as face:
        engine: TokenEngine = face
        token_ids = engine.tokenizer.encode("ab")

        async def answer() -> str:
            params = SamplingParams(max_tokens=3, temperature=0.0)
            stream = engine.astream(token_ids, params, tag=ProgramTag(), priority=0, cache_salt="")
            async with stream:
                return "".join([increment.text async for increment in stream])

        assert (
            asyncio.run(answer())
            == face.generate(token_ids, SamplingParams(max_tokens=3, temperature=0.0)).text
        )


def test_a_backend_is_called_what_one_likes() -> None:
    with open_speaking() as face:
        assert LocalBackend(face, name="my engine").capabilities.name == "my engine"
        assert "'speaking'" in LocalBackend(face).capabilities.name
