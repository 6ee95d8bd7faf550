"""Servers that several tests share; what is asked of one leaves no trace that another would see."""

from collections.abc import Iterator

import pytest

from tests.runtime.server.speaking_server import HERMES_TEMPLATE, Live, Served, live, served


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with served() as one:
        yield one


@pytest.fixture(scope="session")
def hermes() -> Iterator[Served]:
    with served(template=HERMES_TEMPLATE) as one:
        yield one


@pytest.fixture
def live_server() -> Iterator[Live]:
    with live() as one:
        yield one
