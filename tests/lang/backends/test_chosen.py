"""What may be given as a backend."""

import pytest

from ramet.lang import ProgramState, function, gen, set_default_backend
from ramet.lang.backends.chosen import as_backend
from ramet.lang.backends.local import LocalBackend
from ramet.lang.backends.scripted import ScriptedBackend
from ramet.lang.defaults import backend_or_default
from ramet.runtime.protocol import InvalidRequestError
from tests.lang.backends.random_engine import open_random
from tests.lang.backends.saying_engine import SayingEngine
from tests.lang.backends.small_tokenizer import small_tokenizer


def test_backends_are_taken_as_they_are() -> None:
    backend = ScriptedBackend()
    assert as_backend(backend) is backend


def test_an_engine_is_wrapped_and_left_open() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "The sky" + gen("x", max_tokens=3, temperature=0)

    opened = open_random(small_tokenizer())
    with opened.face as engine:
        wrapped = as_backend(engine)
        assert isinstance(wrapped, LocalBackend)
        expected = program.run(backend=wrapped)["x"]
        assert program.run(backend=engine)["x"] == expected
        try:
            set_default_backend(engine)
            assert isinstance(backend_or_default(None), LocalBackend)
            assert backend_or_default(None) is backend_or_default(None)
            assert [state["x"] for state in program.run_batch([{}, {}])] == [expected] * 2
        finally:
            set_default_backend(None)
        engine.check_integrity()


@pytest.mark.parametrize("wrong", ["smollm2", 3, ScriptedBackend, LocalBackend, object()])
def test_what_is_neither_is_named(wrong: object) -> None:
    with pytest.raises(InvalidRequestError, match=r"backend is .*; it must be a backend, or a ramet\.Engine"):
        as_backend(wrong)


def test_the_remedy_is_told() -> None:
    with pytest.raises(
        InvalidRequestError, match=r"the text 'smollm2'; .*; open it first: ramet.Engine\('smollm2'\)"
    ):
        as_backend("smollm2")
    with pytest.raises(
        InvalidRequestError, match=r"the class LocalBackend; .*; make one: LocalBackend\(\.\.\.\)"
    ):
        as_backend(LocalBackend)


def test_any_engine_of_this_shape_is_one() -> None:
    assert isinstance(as_backend(SayingEngine(small_tokenizer(), [])), LocalBackend)


def test_log_probabilities_of_the_prompt_are_told() -> None:
    @function
    def program(s: ProgramState) -> None:
        s += "The sky is\n" + gen("x", max_tokens=2, temperature=0)

    opened = open_random(small_tokenizer())
    with opened.face as engine:
        state = program.run(backend=engine, return_logprob=True, logprob_start_len=3)
        meta = state.get_meta_info("x")
        assert meta["prompt_logprobs"] is not None
        assert len(meta["logprobs"]) == len(meta["token_ids"])
        told = [entry for entry in meta["prompt_logprobs"] if entry is not None]
        prompt = opened.executor.prompts[-1]
        assert [entry.chosen.token_id for entry in told] == prompt[3:]
        assert program.run(backend=engine).get_meta_info("x")["prompt_logprobs"] is None
