"""The records of a request's way through the engine."""

import msgspec

from ramet.runtime.protocol import RequestStats, TextOutput


def test_forwards_per_token_say_what_drafts_saved() -> None:
    assert RequestStats().forwards_per_token is None
    assert RequestStats(num_output_tokens=8, num_sampling_steps=8).forwards_per_token == 1.0
    drafted = RequestStats(num_output_tokens=8, num_sampling_steps=2, num_accepted_draft_tokens=6)
    assert drafted.forwards_per_token == 0.25


def test_an_error_travels_with_its_kind() -> None:
    output = TextOutput(request_id="a", error="no", error_kind="UnsupportedConstraintError")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(output), type=TextOutput) == output
