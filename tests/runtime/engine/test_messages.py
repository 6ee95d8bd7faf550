import builtins

import msgspec
import pytest

from ramet.runtime import protocol
from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.messages import (
    Abort,
    Call,
    Close,
    Died,
    ErrorRecord,
    FromEngine,
    Outputs,
    Ready,
    Refused,
    Result,
    StartFailed,
    Submit,
    ToEngine,
    describe_error,
    revive_error,
    revive_ramet_error,
)
from tests.runtime.engine.builders import byte_spec

ERROR = ErrorRecord("ValueError", "x")
INPUT = protocol.GenerateInput(
    request_id="r",
    token_ids=[1, 2],
    params=protocol.SamplingParams(
        stop=("a",), logit_bias={3: -1.5}, grammar=protocol.Choice(("x", "y")), stop_token_ids=(1,)
    ),
    tag=protocol.ProgramTag(branch="0/1", remaining_calls=2, deadline=1.5),
)
ENTRY = protocol.TokenLogprobs(
    protocol.Logprob(1, float("-inf"), 3), (protocol.Logprob(2, -0.5, 0), protocol.Logprob(1, -0.7, 1))
)
OUTPUT = protocol.TextOutput(
    request_id="r",
    text="é",
    token_ids=[1],
    logprobs=[ENTRY],
    prompt_logprobs=[None, ENTRY],
    finish_reason=protocol.FinishReason.STOP,
    stop_reason="é",
    stats=protocol.RequestStats(ttft=0.5),
)
INFO = EngineInfo(model="m", vocab_size=1, context_length=2, kv_tokens=3, timings={"read": 1.5})


@pytest.mark.parametrize("message", [Submit([INPUT]), Abort(["a"]), Call(1, "stats"), Close()])
def test_requests_survive_the_journey(message: ToEngine) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToEngine) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(INFO, byte_spec()),
        StartFailed(ERROR),
        Outputs([OUTPUT]),
        Refused("r", ERROR),
        Result(1, error=ERROR),
        Died(ERROR),
    ],
)
def test_replies_survive_the_journey(message: FromEngine) -> None:
    got: FromEngine = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromEngine)
    if isinstance(message, Result):
        assert isinstance(got, Result)
        assert (got.call_id, got.error, bytes(got.value)) == (1, ERROR, b"\xc0")
    else:
        assert got == message


@pytest.mark.parametrize("name", [name for name in protocol.__all__ if name.endswith("Error")])
def test_every_error_of_ours_comes_back_as_itself(name: str) -> None:
    original = getattr(protocol, name)("what, 5")
    revived = revive_error(describe_error(original))
    assert type(revived) is type(original)
    assert str(revived) == "what, 5"
    assert isinstance(revive_ramet_error(describe_error(original)), type(original))


def test_the_field_comes_back() -> None:
    revived = revive_error(describe_error(protocol.PromptTooLongError("x", field="prompts")))
    assert isinstance(revived, protocol.PromptTooLongError)
    assert revived.field == "prompts"


@pytest.mark.parametrize(
    "name", ["FileNotFoundError", "MemoryError", "ValueError", "AssertionError", "OSError"]
)
def test_pythons_own_errors_come_back_as_themselves(name: str) -> None:
    revived = revive_error(ErrorRecord(name, "x"))
    assert type(revived) is getattr(builtins, name)
    assert str(revived) == "x"


@pytest.mark.parametrize(
    "name", ["Strange", "UnicodeDecodeError", "ExceptionGroup", "print", "KeyboardInterrupt", "__doc__"]
)
def test_anything_else_becomes_a_dead_engine_that_names_it(name: str) -> None:
    revived = revive_error(ErrorRecord(name, "x"))
    assert type(revived) is protocol.EngineDeadError
    assert str(revived) == f"{name}: x"


def test_only_our_errors_end_requests() -> None:
    assert str(revive_ramet_error(ErrorRecord("ValueError", "x"))) == "ValueError: x"
