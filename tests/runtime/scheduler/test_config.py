"""SchedulerConfig refuses sizes that make no sense."""

from dataclasses import replace
from typing import Any

import pytest

from ramet.runtime.protocol import InvalidRequestError
from ramet.runtime.scheduler import SchedulerConfig

CONFIG = SchedulerConfig(num_pages=4, page_size=16, context_length=32, vocab_size=100)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_pages", 0),
        ("page_size", -1),
        ("context_length", 0),
        ("vocab_size", 1.5),
        ("max_running_requests", 0),
        ("max_tokens_per_step", True),
        ("max_overtakes", -1),
        ("admission_headroom", -1),
    ],
)
def test_names_the_field_and_the_value(field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError, match=rf"{field} is {value!r}; it must be an integer") as caught:
        replace(CONFIG, **{field: value})
    assert caught.value.field == field


def test_zero_is_right_where_it_means_never_or_none() -> None:
    assert replace(CONFIG, max_overtakes=0, admission_headroom=0).num_slots == 64
