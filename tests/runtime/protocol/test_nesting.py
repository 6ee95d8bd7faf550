"""Depth is told as recursion would find it, without recursion."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.protocol.nesting import is_nested_within, json_is_nested_within


class Struct(msgspec.Struct):
    inner: Any


@dataclass
class Record:
    inner: Any


VALUES = st.recursive(
    st.none() | st.integers() | st.text('[]{}"\\ab', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), inner, max_size=3)
    ),
    max_leaves=20,
)


def levels_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(levels_of, value.values()), default=0)
    return 1 + max(map(levels_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES)
def test_depth_is_exact(value: object) -> None:
    levels = levels_of(value)
    text = json.dumps(value)
    for depth in range(levels + 2):
        within = depth >= levels
        assert is_nested_within(value, depth) == within
        assert json_is_nested_within(text, depth) == within
        assert json_is_nested_within(text.encode(), depth) == within


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: {"a": x}, Struct, Record, lambda x: [1, x]])
def test_whatever_holds_others_is_looked_into(wrap: Any) -> None:
    value: Any = "x"
    for _ in range(20):
        value = wrap(value)
    assert is_nested_within(value, 20)
    assert not is_nested_within(value, 19)


def test_what_holds_itself_or_has_no_end() -> None:
    endless: list[Any] = [1]
    endless.append({"again": endless})
    assert not is_nested_within(endless)
    record = Record(None)
    record.inner = [record]
    assert not is_nested_within(record)
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    assert not is_nested_within(deep)


def test_what_is_shared_is_looked_at_once() -> None:
    shared: list[Any] = []
    for _ in range(150):
        shared = [shared, shared]
    assert is_nested_within(shared)


@pytest.mark.parametrize(
    ("text", "within"),
    [
        ("[" * 200 + "]" * 200, True),
        ("[" * 201, False),
        ("[{" * 100_000, False),
        ('"' + "[" * 300, True),
        ("[]" * 10_000, True),
        ('"\\"' + "[" * 300 + '"', True),
        ('"\\\\"' + "[" * 300, False),
    ],
)
def test_text_that_need_not_be_json(text: str, within: bool) -> None:
    assert json_is_nested_within(text) == within
    assert json_is_nested_within(text.encode()) == within
