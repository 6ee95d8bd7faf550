"""LocalBackend: programs on an engine in this process, in a process of its own, or behind a ramet server.

Prompts are token ids. What the model generated is carried as the ids that it gave; text between is tokenised
so that a conversation has the ids that the model's own chat template gives it as a whole. The text of programs
and of their users never becomes a special token.
"""

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Hashable, Iterable, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from ramet.lang.backends.base import (
    Capabilities,
    GenerateDelta,
    Prompt,
    SelectRequest,
    SelectResult,
    ToolCall,
    ToolOffer,
)
from ramet.lang.backends.local_answer import AnswerReader, append_answer
from ramet.lang.backends.local_encoding import EMPTY, Encoded, TranscriptEncoder
from ramet.lang.backends.local_healing import NOTHING, Healing, TokenHealer
from ramet.lang.backends.local_rendering import TranscriptRenderer
from ramet.lang.backends.local_select import (
    NORMALIZATIONS,
    OptionPlan,
    beginning,
    choose,
    common_prefix,
    greedy_choice,
    normalize,
)
from ramet.lang.backends.local_transcript import NOTHING_SAID, OUTSIDE, Generated, Transcript
from ramet.lang.backends.token_engine import TokenEngine, TokenIncrement, TokenScore
from ramet.lang.backends.tool_dialect import tool_calls
from ramet.lang.errors import ProgramStructureError, UnsupportedError
from ramet.runtime.protocol import (
    FinishReason,
    InvalidRequestError,
    Prefix,
    ProgramTag,
    RequestStats,
    SamplingParams,
)

T = TypeVar("T")

ROLES = ("system", "user", "assistant", "tool", "developer")
LONG_TEXT = 20_000
"""Characters. Tokenising more than this takes tens of milliseconds, for which the event loop must not wait."""


class LocalBackend:
    """The Backend of ramet.Engine and ramet.EngineProcess.

    Args:
        engine: is used, not owned: closing the backend leaves it open, unless ``close_engine``.
        token_healing: where text is followed by a generation, the text's last tokens are spelled again together
            with what comes (see ``local_healing``), if the engine can enforce that.
        special_text: in text outside roles, the texts of special tokens stand for those tokens. For programs
            that write a chat format by hand, and take no text from strangers.
        name: as error messages call it.
    """

    def __init__(
        self,
        engine: TokenEngine,
        *,
        token_healing: bool = True,
        special_text: bool = False,
        close_engine: bool = False,
        name: str | None = None,
    ) -> None:
        self.engine = engine
        self._close_engine = close_engine
        self._prompt_type: type[LocalPrompt] = LocalPrompt
        kinds = frozenset(engine.info.grammars)
        tokenizer = engine.tokenizer
        self.renderer = TranscriptRenderer(
            tokenizer, special_text=special_text, structural_tags="structural_tag" in kinds
        )
        self.encoder = TranscriptEncoder(tokenizer, self.renderer)
        self.healer = TokenHealer(tokenizer) if token_healing and "prefix" in kinds else None
        self._capabilities = Capabilities(
            name=name or f"the local engine with model {engine.info.model!r}",
            grammars=kinds - {"prefix"},
            select=True,
            roles=tokenizer.chat_template.exists,
            repeatable=True,
            tools=tokenizer.chat_template.exists and "json_schema" in kinds,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def on(self, engine: TokenEngine, prompt_type: "type[LocalPrompt] | None" = None) -> "LocalBackend":
        """The same on another way to the same model; what is known of its tokens is shared."""
        other = copy.copy(self)
        other.engine, other._close_engine = engine, False
        other._prompt_type = prompt_type or self._prompt_type
        return other

    def prompt(self, *, cache_salt: str = "") -> "LocalPrompt":
        return self._prompt_type(self, cache_salt=cache_salt)

    async def prefill(self, prompts: Sequence[Prompt]) -> None:
        """One token is sampled behind each prompt and thrown away, so that its KV is in the cache.

        A prompt that another one begins with costs nothing of its own; empty ones, and those that do not fit
        the engine, are left out.
        """
        by_salt: dict[str, list[list[int]]] = {}
        for prompt in prompts:
            if not isinstance(prompt, LocalPrompt):
                raise TypeError(f"{type(prompt).__name__} is not a prompt of this backend")
            token_ids = await prompt.token_ids()
            if 0 < len(token_ids) < min(self.engine.info.context_length, self.engine.info.kv_tokens):
                by_salt.setdefault(prompt.cache_salt, []).append(token_ids)
        params = SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True)
        await _together(
            self.engine.agenerate(longest, params, cache_salt=salt)
            for salt, token_lists in by_salt.items()
            if (longest := _without_prefixes(token_lists))
        )

    def count_tokens(self, text: str) -> int:
        return len(self.engine.tokenizer.encode(text, allow_special=True, at_start=False))

    async def flush_cache(self) -> None:
        await asyncio.to_thread(self.engine.flush_cache)

    async def server_info(self) -> dict[str, object]:
        """What the engine tells of itself; and under ``stats`` its counters, with the hit rate."""
        stats: dict[str, Any] = msgspec.to_builtins(await asyncio.to_thread(self.engine.stats))
        info: dict[str, object] = msgspec.to_builtins(self.engine.info)
        prompt_tokens = stats.get("prompt_tokens", 0)
        hit_rate = stats["cached_tokens"] / prompt_tokens if prompt_tokens else 0.0
        return {**info, "stats": {**stats, "hit_rate": hit_rate}}

    async def aclose(self) -> None:
        if self._close_engine:
            await asyncio.to_thread(self.engine.close)


class LocalPrompt:
    """One branch's token ids, and what they were made of. ``fork`` shares both.

    Generated ids are carried. A token that stopped an answer is not part of the prompt: it is the chat template
    that ends a turn, with the model's own end-of-turn token, once.
    """

    def __init__(
        self, backend: LocalBackend, transcript: Transcript = NOTHING_SAID, *, cache_salt: str = ""
    ) -> None:
        self._backend = backend
        self._transcript = transcript
        self._known = EMPTY
        self._offer: ToolOffer | None = None
        self.cache_salt = cache_salt

    def append_text(self, text: str) -> None:
        self._transcript = self._transcript.with_text(text)

    def begin_role(self, role: str) -> None:
        """Raises ProgramStructureError for an unknown role and inside another one, UnsupportedError where the
        model has no chat template."""
        name = self._backend.capabilities.name
        if role not in ROLES:
            raise ProgramStructureError(f"there is no role {role!r}; the roles are {', '.join(ROLES)}")
        if self._transcript.is_open:
            raise ProgramStructureError(
                f"the role {role!r} begins inside the role {self._transcript.role!r}; end that one first"
            )
        if not self._backend.capabilities.roles:
            raise UnsupportedError(
                f"{name} has no chat template, so there are no roles; write the prompt as text"
            )
        self._transcript = self._transcript.with_role(role)

    def end_role(self, role: str) -> None:
        """Raises ProgramStructureError: another role is open, or none."""
        if not self._transcript.is_open or self._transcript.role != role:
            is_open = f"{self._transcript.role!r} is open" if self._transcript.is_open else "none is open"
            raise ProgramStructureError(f"the role {role!r} ends, and {is_open}; end the role that was begun")
        self._transcript = self._transcript.without_role()

    def append_image(self, data_url: str) -> None:
        raise UnsupportedError(
            f"{self._backend.capabilities.name} takes text only, no images; describe the image in words, "
            "or use a model that sees"
        )

    def offer_tools(self, offer: ToolOffer) -> None:
        """The tools become part of the prompt, where its template or else its system message tells of tools."""
        self._transcript = self._transcript.with_tools(offer.tools)
        self._offer = offer

    def append_tool_calls(self, calls: Sequence[ToolCall]) -> None:
        self.append_text(self._backend.renderer.tool_dialect.spell(calls))

    def append_tool_results(self, results: Sequence[tuple[ToolCall, str]]) -> None:
        """Where the template has no role for tools, it is the user who says what they gave."""
        self.end_role("assistant")
        if self._backend.renderer.has_tool_role:
            turns = [("tool", text) for _, text in results]
        else:
            turns = [("user", "\n".join(f"{call.name}: {text}" for call, text in results))]
        for role, text in turns:
            self.begin_role(role)
            self.append_text(text)
            self.end_role(role)
        self.begin_role("assistant")

    def fork(self) -> "LocalPrompt":
        fork = type(self)(self._backend, self._transcript, cache_salt=self.cache_salt)
        fork._known = self._known
        return fork

    def text(self) -> str:
        """Raises what the chat template says where it refuses the turns so far."""
        return self._backend.renderer.render(self._transcript).text()

    def told(self) -> object:
        return self._transcript.tools

    def text_telling(self, told: object) -> str:
        """Raises as ``text``."""
        assert isinstance(told, tuple)
        return self._backend.renderer.render(self._transcript.with_tools(told)).text()

    def messages(self) -> list[dict[str, object]]:
        """Without what stands outside roles."""
        return [
            {"role": turn.role, "content": turn.content}
            for turn in self._transcript.turns
            if turn.role != OUTSIDE
        ]

    def identity(self) -> Hashable:
        return self.cache_salt, self._transcript.identity()

    async def token_ids(self) -> list[int]:
        """All ids so far, as the engine would get them without token healing."""
        return list((await self._encoded()).token_ids)

    async def generate(
        self, params: SamplingParams, *, tag: ProgramTag, priority: int = 0
    ) -> AsyncIterator[GenerateDelta]:
        """See ``Prompt.generate``. A delta's token ids (and logprobs) begin with the first token that spells
        something of the answer's text.

        Raises:
            InvalidRequestError: the request is wrong, or the chat template refuses the turns so far.
            RequestFailedError, RequestAbortedError, EngineDeadError: it did not end by itself.
        """
        if isinstance(params.grammar, Prefix):
            raise InvalidRequestError(
                "a Prefix is how the backend heals tokens; append its text to the prompt, and give its inner "
                "grammar",
                field="grammar",
            )
        offer, self._offer = self._offer, None
        if offer is None:
            async with aclosing(self._generate(params, tag, priority)) as stream:
                async for delta in stream:
                    yield delta
        else:
            async with aclosing(self._generate_calls(params, tag, priority, offer)) as stream:
                async for delta in stream:
                    yield delta

    async def _generate_calls(
        self, params: SamplingParams, tag: ProgramTag, priority: int, offer: ToolOffer
    ) -> AsyncGenerator[GenerateDelta, None]:
        """Text as far as it cannot be a call; the calls with the end."""
        dialect = self._backend.renderer.tool_dialect
        reader = dialect.reader()
        held = msgspec.structs.replace(params, grammar=dialect.grammar(offer))
        async with aclosing(self._generate(held, tag, priority)) as stream:
            async for delta in stream:
                text = reader.push(delta.text)
                calls: list[tuple[str, str]] = []
                if delta.finish_reason is not None:
                    rest, calls = reader.finish()
                    text += rest
                yield msgspec.structs.replace(
                    delta,
                    text=text,
                    spelled=delta.text,
                    is_answer=reader.is_answer,
                    tool_calls=tool_calls(calls, len(self._transcript.turns)),
                )

    async def _generate(
        self, params: SamplingParams, tag: ProgramTag, priority: int
    ) -> AsyncGenerator[GenerateDelta, None]:
        transcript, encoded = self._transcript, await self._encoded()
        if not encoded.token_ids:
            raise InvalidRequestError(
                "the prompt is empty, and this model's tokenizer has no token that begins a text; append a "
                "text first",
                field="prompts",
            )
        healing = await self._healing(encoded, params)
        engine = self._backend.engine
        stream = engine.astream(
            encoded.token_ids[: len(encoded.token_ids) - healing.num_tokens],
            healing.apply(params),
            tag=tag,
            priority=priority,
            cache_salt=self.cache_salt,
        )
        answers = [AnswerReader(healing, params, engine.tokenizer) for _ in range(params.n)]
        async with stream:
            async for increment in stream:
                if increment.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                    continue  # the stream raises what happened next
                delta = answers[increment.index].push(_delta(increment))
                if delta.finish_reason is not None and params.n == 1:
                    # Before the last delta is out: whoever has it may not ask for more.
                    self._transcript = append_answer(transcript, answers[0], encoded.opening, engine.tokenizer)
                yield delta

    async def select(self, request: SelectRequest) -> SelectResult:
        """See ``Prompt.select``; scores are defined in ``local_select``. One request of the engine scores all
        options on their trie (and a second one, at once, what they are without the prompt, where the
        normalization wants that). Nothing is appended where it fails.

        Raises:
            InvalidRequestError: no options, an empty one, or an unknown normalization.
        """
        _check_select(request)
        prompt = await self._encoded()
        extended = [self._transcript.with_text(option) for option in request.options]
        encoded = await asyncio.to_thread(self._encode_all, extended)
        tokenizer = self._backend.engine.tokenizer
        plan = OptionPlan.of(prompt.token_ids, [one.token_ids for one in encoded], tokenizer)
        alone: list[list[int]] = []
        if request.normalization == "unconditional":
            alone = [tokenizer.encode(option, at_start=False) for option in request.options]
        calls = [self._score(plan.context, plan.continuations, request)]
        if alone:
            calls.append(self._score(beginning(tokenizer), alone, request))
        scored, *others = await _together(calls)
        logprobs = [score.token_logprobs for score in scored]
        unconditional = [score.logprob for score in others[0]] if others else None
        scores = normalize(plan, request.normalization, logprobs, unconditional)
        of_options = plan.option_logprobs(logprobs)
        if request.normalization == "greedy" and request.temperature <= 0:
            index = greedy_choice(plan.options, of_options)
        else:
            index = choose(scores, temperature=request.temperature, seed=request.seed)
        self._append_option(prompt, encoded[index], request.options[index])
        return SelectResult(
            index=index,
            option=request.options[index],
            scores=tuple(scores),
            token_logprobs=tuple(tuple(values) for values in of_options),
            stats=_select_stats(plan, scored),
        )

    async def _encoded(self) -> Encoded:
        """The ids of what stands now; kept, so that what is appended later is all that has to be tokenised."""
        transcript, known = self._transcript, self._known
        size = sum(len(turn.content) for turn in transcript.turns)
        if size < LONG_TEXT:
            self._known = self._backend.encoder.encode(transcript, known)
        else:
            self._known = await asyncio.to_thread(self._backend.encoder.encode, transcript, known)
        return self._known

    def _encode_all(self, transcripts: Sequence[Transcript]) -> list[Encoded]:
        return [self._backend.encoder.encode(transcript, self._known) for transcript in transcripts]

    async def _healing(self, encoded: Encoded, params: SamplingParams) -> Healing:
        healer = self._backend.healer
        if healer is None or not encoded.healable:
            return NOTHING
        if healer.is_ready:
            return healer.healing(encoded.token_ids, encoded.healable, params)
        return await asyncio.to_thread(healer.healing, encoded.token_ids, encoded.healable, params)

    async def _score(
        self, context: list[int], continuations: list[list[int]], request: SelectRequest
    ) -> Sequence[TokenScore]:
        return await self._backend.engine.ascore(
            context, continuations, tag=request.tag, priority=request.priority, cache_salt=self.cache_salt
        )

    def _append_option(self, prompt: Encoded, chosen: Encoded, option: str) -> None:
        """The chosen option's ids, carried like generated ones; they replace what the prompt's end was
        tokenised as before. A template may have trimmed the option's text, so the ids say what it is."""
        start = len(common_prefix(prompt.token_ids, chosen.token_ids))
        cut, token_ids = prompt.token_ids[start:], chosen.token_ids[start:]
        tokenizer = self._backend.engine.tokenizer
        if any(tokenizer.token_bytes(token_id) is None for token_id in cut):
            # The template asks for an answer with more than it writes before one: the turn begins with text.
            self._transcript = self._transcript.with_text(option)
            return
        replaced, spelled = (
            b"".join(tokenizer.token_bytes(token_id) or b"" for token_id in ids) for ids in (cut, token_ids)
        )
        text = spelled[len(replaced) :].decode(errors="replace")
        generated = Generated(tuple(token_ids), text, len(cut), replaced)
        self._transcript = self._transcript.with_generated(generated, prompt.opening)


def _delta(increment: TokenIncrement) -> GenerateDelta:
    return GenerateDelta(
        text=increment.text,
        token_ids=tuple(increment.token_ids),
        logprobs=None if increment.logprobs is None else tuple(increment.logprobs),
        prompt_logprobs=None if increment.prompt_logprobs is None else tuple(increment.prompt_logprobs),
        finish_reason=increment.finish_reason,
        stop_reason=increment.stop_reason,
        stats=increment.stats,
        index=increment.index,
    )


def _check_select(request: SelectRequest) -> None:
    if not request.options:
        raise InvalidRequestError("select has no options; give at least one text", field="choices")
    for index, option in enumerate(request.options):
        if not option:
            raise InvalidRequestError(
                f"option {index} of the select is empty, and has nothing to score; remove it", field="choices"
            )
    if request.normalization not in NORMALIZATIONS:
        raise InvalidRequestError(
            f"normalization is {request.normalization!r}; it must be one of {', '.join(NORMALIZATIONS)}",
            field="normalization",
        )


def _select_stats(plan: OptionPlan, scored: Sequence[TokenScore]) -> RequestStats:
    """Of the request that scored all options."""
    return RequestStats(num_prompt_tokens=plan.num_read_tokens, num_cached_tokens=scored[0].num_cached_tokens)


def _without_prefixes(token_lists: Sequence[Sequence[int]]) -> list[list[int]]:
    """Those that no other one begins with, each once."""
    ordered = sorted(set(map(tuple, token_lists)))
    # A list stands right before those that begin with it.
    return [
        list(one)
        for one, following in zip(ordered, [*ordered[1:], ()], strict=True)
        if following[: len(one)] != one
    ]


async def _together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results, in order; the first error cancels what still runs."""
    tasks = [asyncio.create_task(one) for one in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
