"""The user's face over a loop, a core, a scheduler and a cache that are real, and an executor that speaks."""

import asyncio
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.results import Increment, Output
from ramet.runtime.protocol import (
    Choice,
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    ProgramTag,
    PromptTooLongError,
    RequestAbortedError,
    RequestFailedError,
    SamplingParams,
    UnsupportedConstraintError,
)
from tests.runtime.engine.fake_engine import answer_to
from tests.runtime.engine.speaking import open_speaking

GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
LONG = SamplingParams(temperature=0.0, max_tokens=350)


@pytest.fixture
def engine() -> Iterator[EngineFace]:
    with open_speaking() as engine:
        yield engine
        wait_until(lambda: engine.stats().running_requests + engine.stats().waiting_requests == 0)
        engine.check_integrity()
        stats = engine.stats()
        assert stats.free_pages + stats.cached_pages == stats.total_pages


def wait_until(condition: Callable[[], bool]) -> None:
    """The suite's timeout is the limit."""
    while not condition():
        time.sleep(0.001)


def whole(increments: list[Increment], index: int = 0) -> tuple[str, list[int]]:
    mine = [item for item in increments if item.index == index]
    return "".join(item.text for item in mine), [token for item in mine for token in item.token_ids]


def test_one_prompt_gives_an_output_and_a_list_gives_a_list_in_order(engine: EngineFace) -> None:
    assert engine.generate("say:hello", GREEDY).text == "hello"
    assert engine.generate(list(b"say:ids"), GREEDY).text == "ids"
    outputs = engine.generate([f"say:{i}" * (i % 3 + 1) for i in range(20)], GREEDY)
    assert [output.text[0] for output in outputs] == [str(i)[0] for i in range(20)]
    assert engine.generate(["say:alone"], GREEDY)[0].text == "alone"
    mixed = engine.generate(["say:a", list(b"say:b")], GREEDY)
    assert [output.text for output in mixed] == ["a", "b"]


def test_an_output_says_what_was_computed(engine: EngineFace) -> None:
    first = engine.generate("say:a longer one", GREEDY)
    assert first.prompt_token_ids == list(b"say:a longer one")
    assert (first.finish_reason, first.stop_reason) == (FinishReason.STOP, 257)
    second = engine.generate("say:a longer one", GREEDY)
    assert second.text == first.text
    stats = second.stats
    assert (stats.num_prompt_tokens, stats.num_cached_tokens, stats.num_output_tokens) == (16, 15, 13)
    assert stats.ttft is not None
    assert stats.e2e is not None
    assert 0 <= stats.queue_time <= stats.ttft <= stats.e2e
    assert first.request_id != second.request_id


def test_parameters_by_name_and_one_set_a_prompt(engine: EngineFace) -> None:
    assert engine.generate("say:hello", temperature=0, max_tokens=2).text == "he"
    assert engine.generate("say:hello", GREEDY, stop="ll").text == "he"
    sets = [SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)]
    outputs = engine.generate(["say:abc", "say:abc"], sets, temperature=0)
    assert [output.text for output in outputs] == ["a", "ab"]


def test_a_stream_is_the_whole_in_pieces(engine: EngineFace) -> None:
    prompt = "say:héllo €uro 😀 END of it"
    for params in ({}, {"stop": "END"}, {"stop": ["D o"], "include_stop": True}, {"max_tokens": 9}):
        overrides: dict[str, Any] = {"max_tokens": 60, **params}
        output = engine.generate(prompt, temperature=0, **overrides)
        increments = list(engine.stream(prompt, temperature=0, **overrides))
        assert whole(increments) == (output.text, output.token_ids)
        assert increments[-1].finish_reason is output.finish_reason
        assert increments[-1].stop_reason == output.stop_reason
        assert [item.stats is None for item in increments] == [True] * (len(increments) - 1) + [False]
        assert not any("\ufffd" in item.text for item in increments[:-1])


def test_n_answers_share_the_prompt_and_differ_by_seed(engine: EngineFace) -> None:
    prompt = "p" * 45
    output = engine.generate(prompt, n=4, seed=3, temperature=1, max_tokens=8)
    assert [item.index for item in output.outputs] == [0, 1, 2, 3]
    texts = [item.text for item in output.outputs]
    assert len(set(texts)) == 4
    assert engine.stats().computed_tokens == 45 + 3 + 4 * 7
    assert engine.generate(prompt, n=2, seed=3, temperature=1, max_tokens=8).outputs[1].text == texts[1]
    assert engine.generate(prompt, seed=3, temperature=1, max_tokens=8).text == texts[0]
    increments = list(engine.stream(prompt, n=4, seed=3, temperature=1, max_tokens=8))
    assert [whole(increments, index)[0] for index in range(4)] == texts


def test_chat_uses_the_template(engine: EngineFace) -> None:
    output = engine.chat([{"role": "user", "content": "say:x"}], GREEDY)
    text = engine.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)
    assert text == "user: say:x</s>\nassistant: "
    both = engine.generate(messages=[[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]])
    assert len(both) == 2
    same = engine.generate(messages=[{"role": "user", "content": "say:x"}], sampling_params=GREEDY)
    assert same.text == output.text
    (increment, *_) = engine.stream(messages=[{"role": "user", "content": "say:x"}], sampling_params=GREEDY)
    assert increment.request_id
    with pytest.raises(InvalidRequestError, match="takes one prompt or conversation"):
        engine.chat([[{"role": "user", "content": "a"}]])  # type: ignore[list-item]


def test_choices(engine: EngineFace) -> None:
    assert engine.generate("x", GREEDY, grammar=Choice(("yes", "no"))).text in ("yes", "no")


def test_scores_compute_the_shared_prompt_once(engine: EngineFace) -> None:
    prompt = "q" * 41
    scores = engine.score(prompt, ["yes", "no", [120]])
    assert [score.text for score in scores] == ["yes", "no", "x"]
    assert [score.token_ids for score in scores] == [list(b"yes"), list(b"no"), [120]]
    assert [round(score.logprob, 6) for score in scores] == [
        round(sum(-0.5 - token / 1000 for token in text), 6) for text in (b"yes", b"no", b"x")
    ]
    # "y", "ye" and "n" are what a token of an option follows, besides the prompt.
    assert engine.stats().computed_tokens == 41 + 3
    normalized = engine.score(prompt, ["yes", "no"], normalize=True)
    assert normalized[0].score == pytest.approx(normalized[0].logprob / 3)
    assert asyncio.run(engine.ascore(prompt, ["yes", "no"])) == [*engine.score(prompt, ["yes", "no"])]


def test_tags_priorities_and_salts_reach_the_scheduler(engine: EngineFace) -> None:
    prompt = "say:a prompt with a tail"
    engine.generate(prompt, GREEDY, cache_salt="a", priority=3, tag=ProgramTag(program_id="p"))
    assert engine.generate(prompt, GREEDY, cache_salt="b").stats.num_cached_tokens == 0
    assert engine.generate(prompt, GREEDY, cache_salt="a").stats.num_cached_tokens > 0


@pytest.mark.parametrize(
    ("prompts", "params", "kind", "message"),
    [
        (["a", ""], {}, InvalidRequestError, "prompt 1 of the batch: the prompt is empty"),
        (["a", "b" * 400], {}, PromptTooLongError, "prompt 1 of the batch: the prompt has 400 tokens"),
        (["a", "b" * 399], {"max_tokens": 5}, PromptTooLongError, r"prompt 1 of the batch.*max_tokens \(5\)"),
        (["a", "b"], {"stop_regex": "a(?=b)"}, InvalidRequestError, "prompt 0 of the batch.*lookaround"),
        (["a"], {"grammar": Choice(("\x00é",)), "stop_token_ids": [258]}, InvalidRequestError, "258"),
    ],
)
def test_a_batch_with_a_wrong_request_runs_nothing(
    engine: EngineFace, prompts: Any, params: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        engine.generate(prompts, **params)
    assert engine.stats().steps == 0


def test_an_unsupported_constraint_is_refused_by_every_face(engine: EngineFace) -> None:
    from ramet.runtime.protocol import Ebnf

    grammar = Ebnf("root ::= x")
    with pytest.raises(UnsupportedConstraintError):
        engine.generate("x", grammar=grammar)
    with pytest.raises(UnsupportedConstraintError):
        next(engine.stream("x", grammar=grammar))
    with pytest.raises(UnsupportedConstraintError):
        asyncio.run(engine.agenerate("x", grammar=grammar))


def test_a_failed_step_raises_or_is_kept_and_others_go_on(engine: EngineFace) -> None:
    with pytest.raises(RequestFailedError, match="the step failed: RuntimeError: the device is on fire"):
        engine.generate("boom", GREEDY)
    outputs = engine.generate(["row error", "say:fine"], GREEDY, return_errors=True)
    assert [output.error for output in outputs] == ["no token is allowed here", None]
    assert [output.finish_reason for output in outputs] == [FinishReason.ERROR, FinishReason.STOP]
    assert outputs[1].text == "fine"
    with pytest.raises(RequestFailedError, match="prompt 1 of the batch: no token is allowed here"):
        engine.generate(["x", "row error"], LONG)
    stream = engine.stream("boom", GREEDY)
    assert len([next(stream) for _ in range(4)]) == 4
    with pytest.raises(RequestFailedError):
        next(stream)
    assert engine.generate("say:later", GREEDY).text == "later"


def test_abort_by_id(engine: EngineFace) -> None:
    stream = engine.stream("slow", LONG, request_id="mine", n=3)
    next(stream)
    with pytest.raises(InvalidRequestError, match="'mine' belongs to a running request"):
        engine.stream("x", request_id="mine")
    engine.abort("mine")
    engine.abort("unknown")
    with pytest.raises(RequestAbortedError):
        list(stream)
    assert engine.generate("say:x", GREEDY).text == "x"
    assert list(engine.stream("say:x", GREEDY, request_id="mine"))


def test_leaving_a_stream_aborts_it(engine: EngineFace) -> None:
    for _ in engine.stream("slow", LONG):
        break
    with engine.stream("slow", LONG) as stream:
        next(stream)
    abandoned = engine.stream("slow", LONG)
    del abandoned
    gc.collect()
    wait_until(lambda: engine.stats().aborted_requests == 3)


def test_many_coroutines_on_many_event_loops(engine: EngineFace) -> None:
    async def main(name: int) -> list[str]:
        async def stream(i: int) -> str:
            prompt = f"say:{name}.{i}"
            return "".join([item.text async for item in engine.astream(prompt, GREEDY)])

        async def generate(i: int) -> str:
            output: Output = await engine.agenerate(f"say:{name}.{i}", GREEDY)
            return output.text

        return await asyncio.gather(*(stream(i) if i % 2 else generate(i) for i in range(30)))

    results: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda name=name: results.update({name: asyncio.run(main(name))}))
        for name in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {name: [f"{name}.{i}" for i in range(30)] for name in range(4)}


def test_cancelling_a_task_aborts_its_requests(engine: EngineFace) -> None:
    async def main() -> None:
        async def stream() -> None:
            async for _ in engine.astream("slow", LONG):
                pass

        tasks = [asyncio.create_task(stream()), asyncio.create_task(engine.agenerate(["slow", "slow"], LONG))]
        while engine.stats().running_requests < 3:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(result, asyncio.CancelledError)
            for result in await asyncio.gather(*tasks, return_exceptions=True)
        )
        async with engine.astream("slow", LONG) as left:
            await anext(left)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.agenerate("slow", LONG), 0.02)

    asyncio.run(main())
    wait_until(lambda: engine.stats().running_requests + engine.stats().waiting_requests == 0)
    assert engine.stats().aborted_requests >= 4


def test_an_event_loop_that_is_gone_leaves_no_request_running(engine: EngineFace) -> None:
    async def main() -> object:
        stream = engine.astream("slow", LONG)
        await anext(stream)
        return stream

    kept = asyncio.run(main())
    wait_until(lambda: engine.stats().running_requests == 0)
    del kept


def test_interrupting_generate_aborts_what_it_submitted(engine: EngineFace) -> None:
    def interrupt() -> None:
        wait_until(lambda: engine.stats().running_requests == 2)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        engine.generate(["slow", "slow"], LONG)
    thread.join()
    wait_until(lambda: engine.stats().aborted_requests == 2)


def test_an_abort_storm_from_many_threads_leaves_nothing_behind(engine: EngineFace) -> None:
    outcomes: list[str] = []

    def work(name: int) -> None:
        order = random.Random(name)
        for turn in range(25):
            request_id = f"{name}-{turn}"
            prompt = f"storm {name % 3} " * order.randint(1, 6)
            stream = engine.stream(prompt, GREEDY, request_id=request_id, n=order.randint(1, 3))
            for _ in range(order.randint(0, 4)):
                next(stream)
            match order.randint(0, 2):
                case 0:
                    engine.abort(request_id)
                    try:
                        outcomes.append(f"ended {len(list(stream))}")
                    except RequestAbortedError:
                        outcomes.append("aborted")
                case 1:
                    stream.close()
                    outcomes.append("closed")
                case _:
                    text, _ = whole(list(stream))
                    assert answer_to(prompt, 20).endswith(text)
                    outcomes.append("finished")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 8 * 25


def test_ten_thousand_prompts_through_a_pool_of_two_thousand_tokens() -> None:
    with open_speaking(
        EngineConfig(kv_tokens=2000, max_running_requests=64, max_tokens_per_step=512)
    ) as engine:
        prompts = [f"shared beginning, then {i % 500}, say:{i}" for i in range(10_000)]
        outputs = engine.generate(prompts, temperature=0, max_tokens=3)
        assert [output.text for output in outputs] == [str(i)[:3] for i in range(10_000)]
        stats = engine.stats()
        assert stats.finished_requests == 10_000
        assert stats.cached_tokens > 0.4 * stats.prompt_tokens
        engine.check_integrity()


def test_closing_with_requests_in_flight_tells_everyone() -> None:
    engine = open_speaking()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            engine.generate("slow", LONG)
        except EngineDeadError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    stream = engine.stream("slow", LONG)
    wait_until(lambda: engine.stats().running_requests == 5)
    engine.close()
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == ["the engine was closed; create a new one"] * 4
    with pytest.raises(EngineDeadError):
        list(stream)
    engine.close()
    engine.abort("x")
    uses: list[Callable[[], object]] = [
        lambda: engine.generate("x"),
        lambda: engine.stream("x"),
        lambda: engine.score("x", ["y"]),
        engine.stats,
        engine.flush_cache,
        lambda: asyncio.run(engine.agenerate("x")),
    ]
    for use in uses:
        with pytest.raises(EngineDeadError, match="was closed"):
            use()


def test_it_is_a_context_manager_for_coroutines_too() -> None:
    async def main() -> str:
        async with open_speaking() as engine:
            output: Output = await engine.agenerate("say:hi", GREEDY)
        with pytest.raises(EngineDeadError):
            engine.stats()
        return output.text

    assert asyncio.run(main()) == "hi"


def test_an_engine_that_is_dropped_is_closed() -> None:
    names = {thread.name for thread in threading.enumerate()}
    open_speaking().generate("say:x", GREEDY)
    gc.collect()
    wait_until(lambda: "ramet-engine" in names or "ramet-engine" not in {t.name for t in threading.enumerate()})


def test_stats_add_up(engine: EngineFace) -> None:
    outputs = engine.generate([f"say:prompt {i}" for i in range(10)], GREEDY)
    stats = engine.stats()
    assert stats.finished_requests == 10
    assert stats.prompt_tokens == sum(output.stats.num_prompt_tokens for output in outputs)
    assert stats.cached_tokens == sum(output.stats.num_cached_tokens for output in outputs)
    assert stats.output_tokens == sum(output.stats.num_output_tokens for output in outputs)
    assert stats.hit_rate == stats.cached_tokens / stats.prompt_tokens
    assert engine.flush_cache() == stats.cached_pages * stats.page_size
    assert engine.stats().free_pages == stats.total_pages


def test_a_batch_as_one_stream(engine: EngineFace) -> None:
    async def read() -> tuple[list[list[int]], list[Increment]]:
        opened = await engine.astream_batch(
            ["say:one", "say:three", list(b"say:five")], SamplingParams(temperature=0, max_tokens=20, n=2)
        )
        async with opened.stream as stream:
            return opened.prompt_token_ids, [item async for item in stream]

    prompts, increments = asyncio.run(read())
    assert prompts == [list(b"say:one"), list(b"say:three"), list(b"say:five")]
    texts = [whole(increments, index)[0] for index in range(6)]
    assert texts == ["one", "one", "three", "three", "five", "five"]


def test_a_batch_takes_options_of_the_chat_template_and_fails_as_a_whole(engine: EngineFace) -> None:
    async def run(prompts: object, **options: Any) -> str:
        opened = await engine.astream_batch(prompts, GREEDY, **options)
        return "".join([item.text async for item in opened.stream])

    messages = [{"role": "user", "content": "go on"}, {"role": "assistant", "content": "say:con"}]
    text = asyncio.run(run(None, messages=messages, chat_options={"continue_final_message": True}))
    assert text == "con"
    with pytest.raises(PromptTooLongError, match="prompt 1 of the batch"):
        asyncio.run(run(["a", "b" * 500]))
    with pytest.raises(RequestFailedError):
        asyncio.run(run(["say:fine", "row error"]))


def test_a_batch_is_aborted_by_its_id(engine: EngineFace) -> None:
    async def run() -> None:
        opened = await engine.astream_batch(["slow a", "slow b"], LONG, request_id="mine")
        await anext(opened.stream)
        engine.abort("mine")
        with pytest.raises(RequestAbortedError):
            _ = [item async for item in opened.stream]

    asyncio.run(run())


def test_a_closed_engine_is_not_alive(engine: EngineFace) -> None:
    engine.check_alive()
    other = open_speaking()
    other.close()
    with pytest.raises(EngineDeadError, match="was closed"):
        other.check_alive()
