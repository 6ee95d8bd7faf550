"""How many tokens the prompts of a traced program have, and how many of them several calls share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ramet.lang.backends.base import Backend, TokenCounter, ToolSpec
from ramet.lang.compiler.graph import Answer, Argument, CallNode, Graph, Part
from ramet.lang.compiler.hoist import say
from ramet.lang.compiler.piece import offered_tools
from ramet.lang.compiler.placeholders import Marks
from ramet.lang.operations import Choose, Generate

CHARACTERS_PER_TOKEN = 4
"""Where the backend does not know its tokens: about what English text has with common vocabularies."""
UNBOUNDED_ANSWER = 256
"""Tokens that an answer is taken to have where nothing bounds it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Tokens of a program's prompts. Answers in them count with the most tokens that they may have."""

    prompts: tuple[int, ...]
    """Of each call's prompt."""
    answers: tuple[int, ...]
    """Of each call's answer, at most."""
    unique: int
    """What has to be computed of all prompts, if no beginning is computed twice."""
    own: tuple[int, ...]
    """Of each call's prompt what no other one has that is computed before it; the sum is ``unique``."""
    shared_start: int
    """What all prompts begin with."""
    is_estimate: bool
    """The tokens were not counted but estimated from the number of characters."""

    @property
    def total(self) -> int:
        return sum(self.prompts)


def measure(graph: Graph, backend: Backend) -> Measure:
    counter = _Counter(backend)
    prompts = [counter.prompt(call.prompt, told_tools(graph, call)) for call in graph.calls]
    answers = tuple(_longest_answer(call, counter) for call in graph.calls)
    sizes = tuple(counter.size(pieces, answers) for pieces in prompts)
    own = [0] * len(prompts)
    order = sorted(range(len(prompts)), key=lambda index: counter.key(prompts[index]))
    before: Sequence[str | Answer | Argument] = ()
    for index in order:
        own[index] = counter.size(_after(before, prompts[index]), answers, computed=True)
        before = prompts[index]
    shared_start = 0
    if prompts:
        # What the first and the last in order have in common, all between have too.
        last = prompts[order[-1]]
        shared_start = counter.size(last, answers) - counter.size(_after(prompts[order[0]], last), answers)
    return Measure(sizes, answers, sum(own), tuple(own), shared_start, counter.is_estimate)


def told_tools(graph: Graph, call: CallNode) -> tuple[ToolSpec, ...]:
    """What the model is told of: the tools that the call offers, or else those that the last call before it on
    its branch did."""
    before = [graph.calls[part.call] for part in call.prompt if isinstance(part, Answer) and part.carried]
    offered = (offered_tools(one.operation) for one in (call, *reversed(before)))
    return next((tools for tools in offered if tools), ())


_Pieces = Sequence["str | Answer | Argument"]


class _Counter:
    """Counts a backend's tokens, each text once."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._marks = Marks()
        self._known: dict[str, int] = {}
        self.is_estimate = not isinstance(backend, TokenCounter)

    def text(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = (
                self._backend.count_tokens(text)
                if isinstance(self._backend, TokenCounter)
                else -(-len(text) // CHARACTERS_PER_TOKEN)
            )
        return self._known[text]

    def prompt(self, parts: Iterable[Part], tools: tuple[ToolSpec, ...]) -> "list[str | Answer | Argument]":
        """As the model reads it, with the template around roles."""
        prompt = self._backend.prompt()
        say(prompt, (), tools)
        for part in parts:
            if isinstance(part, Answer | Argument):
                prompt.append_text(self._marks.of(part))
            else:
                say(prompt, [part])
        return [part for part in self._marks.split(prompt.text()) if isinstance(part, str | Answer | Argument)]

    def size(self, pieces: _Pieces, answers: Sequence[int], *, computed: bool = False) -> int:
        """``computed``: without the answers that were generated where they stand."""
        return sum(self._piece(piece, answers, computed=computed) for piece in pieces)

    def key(self, pieces: _Pieces) -> str:
        return "".join(piece if isinstance(piece, str) else self._marks.of(piece) for piece in pieces)

    def _piece(self, piece: str | Answer | Argument, answers: Sequence[int], *, computed: bool) -> int:
        match piece:
            case str():
                return self.text(piece)
            case Answer(call, carried):
                return 0 if computed and carried else answers[call]
            case Argument():
                return 0


def _after(before: _Pieces, pieces: _Pieces) -> "list[str | Answer | Argument]":
    """What stands behind the common beginning of both."""
    for index, (one, other) in enumerate(zip(before, pieces, strict=False)):
        if one == other:
            continue
        if isinstance(one, str) and isinstance(other, str):
            length = next(
                (at for at, (left, right) in enumerate(zip(one, other, strict=False)) if left != right),
                min(len(one), len(other)),
            )
            return [other[length:], *pieces[index + 1 :]] if length < len(other) else list(pieces[index + 1 :])
        return list(pieces[index:])
    return list(pieces[len(before) :])


def _longest_answer(call: CallNode, counter: _Counter) -> int:
    match call.operation:
        case Generate(params=params):
            return UNBOUNDED_ANSWER if params.max_tokens is None else params.max_tokens
        case Choose(request=request):
            return max(counter.text(option) for option in request.options)
