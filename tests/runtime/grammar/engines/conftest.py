"""The real tokenizers, and a router for each."""

import pytest

from ramet.runtime.grammar.engines import EngineRouter
from ramet.runtime.tokenizer import FastTokenizer
from tests.runtime.grammar.engines.walking import TINY
from tests.runtime.tokenizer.conftest import (  # noqa: F401
    gemma,
    gemma_fields,
    gemma_spec,
    smollm2,
    smollm2_fields,
    smollm2_path,
    smollm2_spec,
)


@pytest.fixture(scope="session")
def router(smollm2: FastTokenizer) -> EngineRouter:  # noqa: F811
    return EngineRouter(smollm2)


@pytest.fixture(scope="session")
def tiny_router() -> EngineRouter:
    return EngineRouter(TINY)


@pytest.fixture(scope="session")
def smollm2_router(router: EngineRouter) -> EngineRouter:
    return router


@pytest.fixture(scope="session")
def gemma_router(gemma: FastTokenizer) -> EngineRouter:  # noqa: F811
    return EngineRouter(gemma)
