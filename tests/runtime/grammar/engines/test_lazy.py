"""The router is imported when the first constraint comes, and answers as itself."""

import subprocess
import sys
from importlib import import_module

import pytest

from ramet.runtime.grammar import engines
from ramet.runtime.grammar.backend import RiskyBackend
from ramet.runtime.grammar.engines import EngineRouter, LazyRouter
from ramet.runtime.protocol import Prefix, Regex, UnsupportedConstraintError
from tests.runtime.grammar.engines.walking import TINY, tiny_takes


def test_it_answers_as_the_router() -> None:
    lazy, router = LazyRouter(TINY), EngineRouter(TINY)
    assert isinstance(lazy, RiskyBackend)
    assert (lazy.kinds, lazy.probe_builder) == (router.kinds, router.probe_builder)
    assert tiny_takes(lazy.compile(Regex("a+")))("aa")
    assert tiny_takes(lazy.compile(Prefix("x", Regex("a+"))))("xaa")
    assert lazy.needs_probe(Regex("a", "xgrammar"))
    assert not lazy.needs_probe(Regex("a"))
    with pytest.raises(UnsupportedConstraintError, match="look-around"):
        lazy.compile(Regex("(?=a)"))


def test_the_builder_of_the_probe_is_there() -> None:
    module, _, name = LazyRouter(TINY).probe_builder.partition(":")
    assert getattr(import_module(module), name) is EngineRouter


def test_names_that_are_not_there() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = engines.Nothing


def test_an_engine_starts_without_it() -> None:
    code = (
        "import ramet.runtime.engine.build, sys\n"
        "print([name for name in sys.modules if name.startswith('ramet.runtime.grammar.schema')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
