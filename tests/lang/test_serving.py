"""Programs that came as data, run on an engine in this process."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from ramet.lang.backends.token_engine import TokenEngine
from ramet.lang.errors import BranchError, GenerationError
from ramet.lang.serving import ProgramRunner, ServedProgram, error_of
from ramet.runtime.protocol import (
    InvalidRequestError,
    PromptTooLongError,
    Regex,
    SamplingParams,
    programs,
)
from tests.lang.backends.random_engine import open_random
from tests.lang.backends.saying_engine import SayingEngine
from tests.lang.backends.small_tokenizer import CHATML, small_tokenizer

SECONDS = 60.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)


def of(*branches: list[programs.Operation]) -> programs.WireProgram:
    return programs.WireProgram(
        version=1,
        branches=[
            programs.ProgramBranch(name=str(number), operations=own) for number, own in enumerate(branches)
        ],
    )


def gen(variable: str, **fields: Any) -> programs.Gen:
    return programs.Gen(variable=variable, params=GREEDY, **fields)


def run(
    engine: TokenEngine,
    program: programs.WireProgram,
    act: "Callable[[ServedProgram, programs.ProgramEvent], None] | None" = None,
    **options: Any,
) -> list[Any]:
    """All events. ``act`` sees each as it is told."""
    told: list[Any] = []

    async def main() -> None:
        def tell(event: programs.ProgramEvent) -> None:
            told.append(event)
            if act is not None:
                act(served, event)

        served = ProgramRunner(engine).start(program, engine, tell, program_id="p", **options)
        async with asyncio.timeout(SECONDS):
            told.append(await served.run())

    asyncio.run(main())
    return told


def test_what_the_model_says_becomes_variables() -> None:
    engine = SayingEngine(small_tokenizer(CHATML), ["blue", "yes"])
    program = of(
        [
            programs.BeginRole(role="user"),
            programs.SayText(text="Which?"),
            programs.EndRole(role="user"),
            programs.BeginRole(role="assistant"),
            gen("colour"),
            programs.EndRole(role="assistant"),
            programs.BeginRole(role="user"),
            programs.SayText(text="Sure of "),
            programs.SayValue(variable="colour"),
            programs.EndRole(role="user"),
            programs.BeginRole(role="assistant"),
            gen("sure"),
        ]
    )
    told = run(engine, program)
    done = {event.variable: event.value for event in told if isinstance(event, programs.VariableDone)}
    assert done == {"colour": "blue", "sure": "yes"}
    assert told[-1] == programs.ProgramDone(id="p", status="completed")
    assert engine.prompts[1].endswith("user\nSure of blue<|im_end|>\n<|im_start|>assistant\n")


def test_calls_are_told_instead_where_that_is_wanted() -> None:
    with open_random(small_tokenizer(CHATML)).face as face:
        program = of(
            [
                programs.SayText(text="a"),
                gen("x"),
                programs.Select(variable="s", options=["http", "//"], normalization="unconditional"),
                programs.Fork(branches=["1", "2"]),
            ],
            [gen("y")],
            [gen("z")],
        )
        told = run(face, program, tells_calls=True)
        # Two branches that ask the same are answered each, by one request.
        assert face.stats().finished_requests == 1 + 2 + 1
    calls = {(event.variable, event.number) for event in told[:-1]}
    assert calls == {("x", 0), ("s", 0), ("s", 1), ("y", 0), ("z", 0)}
    deltas = [event for event in told if isinstance(event, programs.CallDelta)]
    answers = {
        name: [one for event in deltas if event.variable == name for one in event.event.token_ids]
        for name in ("y", "z")
    }
    assert len(answers["y"]) == 4
    assert answers["y"] == answers["z"]


def test_branches_that_ask_the_same_are_answered_once_otherwise() -> None:
    opened = open_random(small_tokenizer(CHATML))
    with opened.face as face:
        program = of([programs.SayText(text="a"), programs.Fork(branches=["1", "2"])], [gen("y")], [gen("z")])
        done = [event for event in run(face, program) if isinstance(event, programs.VariableDone)]
        assert len({event.value for event in done}) == 1
        assert face.stats().finished_requests == 1


CALL = '{"name": "add", "arguments": {"a": 1}}'
OFFERED = programs.OfferedTools(
    tools=[programs.ToolDescription(name="add", description="Adds.", parameters={"type": "object"})]
)
ASKING = of(
    [
        programs.BeginRole(role="assistant"),
        gen("answer", tools=OFFERED),
        programs.EndRole(role="assistant"),
    ]
)


def test_tools_are_asked_for_and_told() -> None:
    engine = SayingEngine(small_tokenizer(CHATML), [CALL, '{"answer": "3"}'])

    def act(served: ServedProgram, event: programs.ProgramEvent) -> None:
        if isinstance(event, programs.ToolCallsMade):
            (call,) = event.calls
            assert (call.name, call.arguments) == ("add", '{"a": 1}')
            result = programs.ToolResult(id=call.id, content="three")
            for results in ([], [result, result], [programs.ToolResult(id="x", content="")]):
                with pytest.raises(InvalidRequestError, match="one for each of"):
                    served.answer_tools(programs.ToolResults(variable="answer", results=results))
            with pytest.raises(InvalidRequestError, match="waits for no"):
                served.answer_tools(programs.ToolResults(variable="other", results=[result]))
            served.answer_tools(programs.ToolResults(variable="answer", results=[result]))

    told = run(engine, ASKING, act)
    assert told[-1].status == "completed"
    assert "three" in engine.prompts[1]


def test_it_can_be_cancelled_while_it_waits_for_a_tool() -> None:
    engine = SayingEngine(small_tokenizer(CHATML), [CALL])

    def act(served: ServedProgram, event: programs.ProgramEvent) -> None:
        if isinstance(event, programs.ToolCallsMade):
            served.cancel("enough")

    told = run(engine, ASKING, act)
    assert told[-1] == programs.ProgramDone(id="p", status="cancelled")
    assert isinstance(told[-2], programs.VariableFailed)


def test_whoever_stops_waiting_ends_it() -> None:
    async def main() -> None:
        engine = SayingEngine(small_tokenizer(CHATML), [CALL])
        asked = asyncio.Event()
        reasons = []

        def tell(event: programs.ProgramEvent) -> None:
            if isinstance(event, programs.ToolCallsMade):
                asked.set()
            if isinstance(event, programs.VariableFailed):
                reasons.append(event.error.message)

        served = ProgramRunner(engine).start(ASKING, engine, tell, program_id="p")
        task = asyncio.create_task(served.run())
        await asyncio.wait_for(asked.wait(), SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert reasons == ["the program was cancelled: its time was over"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([programs.EndRole(role="user")], "no role is open"),
        ([programs.BeginRole(role="user"), programs.BeginRole(role="user")], "roles do not nest"),
        ([gen("x", tools=OFFERED)], "outside of the assistant role"),
        (
            [programs.Gen(variable="x", params=SamplingParams(grammar=Regex("a")))],
            "cannot constrain an answer by regex",
        ),
    ],
)
def test_what_the_model_cannot_do_is_refused_before_it_runs(operations: Any, says: str) -> None:
    engine = SayingEngine(small_tokenizer(CHATML), [])
    with pytest.raises(InvalidRequestError, match=says) as raised:
        run(engine, of(operations))
    assert str(raised.value.field).startswith("program.branches[0].operations[")
    assert engine.prompts == []


def test_a_branch_that_fails_takes_others_along_unless_it_is_kept() -> None:
    def program(keep: bool) -> programs.WireProgram:
        return of(
            [programs.SayText(text="a"), programs.Fork(branches=["1", "2"], keep_errors=keep)],
            [programs.SayText(text="there " * 3000), gen("bad")],
            [programs.SayText(text="there"), gen("good")],
        )

    with open_random(small_tokenizer(CHATML)).face as face:
        for keep, status in ((True, "completed"), (False, "failed")):
            told = run(face, program(keep))
            assert told[-1].status == status
            failed = {one.variable: one.error for one in told if isinstance(one, programs.VariableFailed)}
            assert failed["bad"].code == "prompt_too_long"
            if not keep:
                assert told[-1].error.code == "prompt_too_long"


def test_errors_are_told_by_what_caused_them() -> None:
    cause = PromptTooLongError("too long", field="prompts")
    error = GenerationError("PromptTooLongError: too long", program="p")
    error.__cause__ = cause
    outer = BranchError("a branch failed")
    outer.__cause__ = error
    assert error_of(outer).code == "prompt_too_long"
    assert error_of(GenerationError("ours", program="p")).message == "ours"
    assert error_of(GenerationError("ours")).code == "program_failed"
