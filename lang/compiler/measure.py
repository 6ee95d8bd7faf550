"""How many tokens the prompts of a traced program have, and how many of them several calls share."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from ramet.lang.backends.base import Backend, TokenCounter, ToolSpec
from ramet.lang.compiler.graph import Answer, Argument, CallNode, Graph, Part
from ramet.lang.compiler.hoist import say
from ramet.lang.compiler.piece import offered_tools
from ramet.lang.compiler.placeholders import Marks
from ramet.lang.operations import Choose, Generate

CHARACTERS_PER_TOKEN = 4
"""Where the backend does not know its tokens: about what English text has with common vocabularies."""
NUM_PROVEN = 4
"""Calls of a chain of which it is tried whether their prompts are beginnings of the last one's."""
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
    answers = tuple(_longest_answer(call, counter) for call in graph.calls)
    sizes, own = [0] * len(graph.calls), [0] * len(graph.calls)
    paths = sorted(_paths(graph, counter), key=lambda path: counter.key(path.pieces))
    before: _Pieces = ()
    for path in paths:
        whole = list(accumulate((counter.piece(one, answers) for one in path.pieces), initial=0))
        new = _after(before, path.pieces)
        # What is new begins within a text, or with a piece.
        first_new = len(path.pieces) - len(new)
        computed = [counter.piece(one, answers, computed=True) for one in new]
        done = first_new
        for index, end in path.calls:
            sizes[index] = whole[end]
            own[index] = sum(computed[done - first_new : max(done, end) - first_new])
            done = max(done, end)
        before = path.pieces
    shared_start = 0
    if paths:
        # What the first and the last in order have in common, all between have too.
        first, last = paths[0].pieces, paths[-1].pieces
        shared = counter.size(last, answers) - counter.size(_after(first, last), answers)
        shared_start = min(shared, *sizes)
    return Measure(tuple(sizes), answers, sum(own), tuple(own), shared_start, counter.is_estimate)


@dataclass(frozen=True, slots=True)
class _Path:
    """Calls that go on from one another: the prompt of each is a beginning of the last one's."""

    pieces: "_Pieces"
    """The last one's prompt."""
    calls: list[tuple[int, int]]
    """Each with the end of its prompt among the pieces, in order."""


def _paths(graph: Graph, counter: "_Counter") -> "list[_Path]":
    """Each call is in one. So that a long conversation is rendered once, and not once for each call."""
    goes_on_from = graph.goes_on_from()
    tools: dict[int, tuple[ToolSpec, ...]] = {}
    for index in graph.in_order():
        before = goes_on_from[index]
        # What the model is told of: what the call offers, or what the last call before it that offered any did.
        tools[index] = offered_tools(graph.calls[index].operation) or (() if before is None else tools[before])
    next_on_path: dict[int, int] = {}
    for index, before in enumerate(goes_on_from):
        if before is not None and tools[before] == tools[index]:
            next_on_path.setdefault(before, index)
    follows = set(next_on_path.values())
    paths: list[_Path] = []
    for index in range(len(graph.calls)):
        if index not in follows:
            chain = [index]
            while (following := next_on_path.get(chain[-1])) is not None:
                chain.append(following)
            paths += _rendered(graph, chain, tools[index], counter)
    return paths


def _rendered(
    graph: Graph, chain: list[int], tools: tuple[ToolSpec, ...], counter: "_Counter"
) -> "Iterator[_Path]":
    pieces = counter.prompt(graph.calls[chain[-1]].prompt, tools)
    ends = {piece.call: at for at, piece in enumerate(pieces) if isinstance(piece, Answer) and piece.carried}
    calls = [(index, ends[index]) for index in chain[:-1] if index in ends]
    # A template may show earlier turns otherwise than while they are answered: then each call has its own path.
    if len(calls) < len(chain) - 1 or any(
        counter.prompt(graph.calls[index].prompt, tools) != pieces[:end] for index, end in calls[:NUM_PROVEN]
    ):
        for index in chain[:-1]:
            own = counter.prompt(graph.calls[index].prompt, tools)
            yield _Path(own, [(index, len(own))])
        calls = []
    yield _Path(pieces, [*calls, (chain[-1], len(pieces))])


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

    def size(self, pieces: _Pieces, answers: Sequence[int]) -> int:
        return sum(self.piece(piece, answers) for piece in pieces)

    def key(self, pieces: _Pieces) -> str:
        return "".join(piece if isinstance(piece, str) else self._marks.of(piece) for piece in pieces)

    def piece(self, piece: str | Answer | Argument, answers: Sequence[int], *, computed: bool = False) -> int:
        """Tokens. ``computed``: without the answers that were generated where they stand."""
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
