"""How many tokens the prompts of a traced program have, and how many of them several calls share."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ramet.lang.backends.base import Backend, TokenCounter
from ramet.lang.compiler.graph import Answer, Argument, CallNode, Graph, Link
from ramet.lang.compiler.piece import offered_tools
from ramet.lang.compiler.prompt_trie import Node, PromptTrie, joined
from ramet.lang.compiler.renderings import Piece, Renderings, Seam, Tools
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
    found = _Measuring(graph, backend, counter, answers, windows=True).measured()
    if found is None:
        # The template's text for a message depends on what stands far before or behind it.
        found = _Measuring(graph, backend, counter, answers, windows=False).measured()
    assert found is not None
    return found


@dataclass(frozen=True, slots=True)
class _Chain:
    """Calls that go on from one another: the prompt of each should be a beginning of the last one's."""

    calls: tuple[int, ...]
    tools: Tools


@dataclass(frozen=True, slots=True)
class _Base:
    """Where a rendering goes on that was begun by another one."""

    seam: Link
    node: Node
    size: int
    """Tokens up to there."""


@dataclass(frozen=True, slots=True)
class _Rendering:
    base: _Base | None
    """None: it is whole."""
    pieces: list[Piece]


class _Measuring:
    """One way through all chains of a graph, in the order of their first calls."""

    def __init__(
        self, graph: Graph, backend: Backend, counter: "_Counter", answers: Sequence[int], *, windows: bool
    ) -> None:
        """``windows``: long prompts are rendered from a seam on."""
        self._graph = graph
        self._counter = counter
        self._answers = answers
        self._windows = windows
        self._renderings = Renderings(graph, backend)
        self._trie: PromptTrie = PromptTrie()
        self._bases: dict[tuple[Answer | Seam, int], tuple[Node, int]] = {}
        """Of the seams that were rendered, by what the model is told of."""
        self._tools: list[Tools] = []
        self._sizes, self._own = [0] * len(graph.calls), [0] * len(graph.calls)

    def measured(self) -> Measure | None:
        """None: a window showed something else than the whole."""
        seen_in_window: list[tuple[int, Tools, Node]] = []
        """Calls, each with the end of its prompt."""
        for chain in _chains(self._graph):
            for part, rendering in self._parts(chain):
                end = self._add(part, rendering)
                if rendering.base is not None:
                    seen_in_window.append((part.calls[-1], part.tools, end))
        for index, tools, end in [*seen_in_window[:NUM_PROVEN], *seen_in_window[NUM_PROVEN:][-1:]]:
            whole = self._whole(index, tools).pieces
            if joined([piece for piece in whole if not isinstance(piece, Seam)]) != end.pieces():
                return None
        shared = sum(self._counter.piece(piece, self._answers) for piece in self._trie.common_start())
        shared_start = min([shared, *self._sizes]) if self._sizes else 0
        return Measure(
            tuple(self._sizes),
            tuple(self._answers),
            sum(self._own),
            tuple(self._own),
            shared_start,
            self._counter.is_estimate,
        )

    def _parts(self, chain: _Chain) -> "Iterator[tuple[_Chain, _Rendering]]":
        """The chain with its rendering. Where a template shows earlier turns otherwise than while they are
        answered, each call is a chain by itself."""
        *earlier, last = chain.calls
        base = self._base(chain)
        rendering = self._rendering(last, chain.tools, base)
        ends = _ends(rendering.pieces)
        if any(index not in ends for index in earlier) or any(
            self._rendering(index, chain.tools, base).pieces != rendering.pieces[: ends[index]]
            for index in earlier[:NUM_PROVEN]
        ):
            for index in earlier:
                yield _Chain((index,), chain.tools), self._rendering(index, chain.tools, base)
            chain = _Chain((last,), chain.tools)
        yield chain, rendering

    def _base(self, chain: _Chain) -> _Base | None:
        if not self._windows:
            return None
        number = self._number(chain.tools)
        for seam, mark in self._renderings.seams(self._graph.calls[chain.calls[0]].last):
            if (mark, number) in self._bases:
                return _Base(seam, *self._bases[mark, number])
        return None

    def _rendering(self, index: int, tools: Tools, base: _Base | None) -> _Rendering:
        last = self._graph.calls[index].last
        if base is not None and last is not None:
            pieces = self._renderings.behind(base.seam, last, tools)
            if pieces is not None:
                return _Rendering(base, pieces)
        return self._whole(index, tools)

    def _whole(self, index: int, tools: Tools) -> _Rendering:
        return _Rendering(None, self._renderings.whole(self._graph.calls[index].last, tools))

    def _add(self, chain: _Chain, rendering: _Rendering) -> Node:
        """Counts the tokens of the chain's prompts; gives back where the last one ends."""
        base = rendering.base
        node, size = (self._trie.root, 0) if base is None else (base.node, base.size)
        number = self._number(chain.tools)
        earlier = set(chain.calls[:-1])
        own = 0
        for piece in rendering.pieces:
            if isinstance(piece, Answer) and piece.carried and piece.call in earlier:
                node.is_end = True
                self._sizes[piece.call], self._own[piece.call] = size, own
                own = 0
            if not isinstance(piece, Seam):
                node, new = self._trie.extend(node, piece)
                size += self._counter.piece(piece, self._answers)
                own += 0 if new is None else self._counter.piece(new, self._answers, computed=True)
            if isinstance(piece, Seam) or (isinstance(piece, Answer) and piece.carried):
                self._bases.setdefault((piece, number), (node, size))
        node.is_end = True
        self._sizes[chain.calls[-1]], self._own[chain.calls[-1]] = size, own
        return node

    def _number(self, tools: Tools) -> int:
        if tools not in self._tools:
            self._tools.append(tools)
        return self._tools.index(tools)


def _chains(graph: Graph) -> list[_Chain]:
    """Each call is in one. So that a long conversation is rendered once, and not once for each call."""
    goes_on_from = graph.goes_on_from()
    tools: dict[int, Tools] = {}
    for index in graph.in_order():
        before = goes_on_from[index]
        # What the model is told of: what the call offers, or what the last call before it that offered any did.
        tools[index] = offered_tools(graph.calls[index].operation) or (() if before is None else tools[before])
    following: dict[int, int] = {}
    for index, before in enumerate(goes_on_from):
        if before is not None and tools[before] == tools[index]:
            following.setdefault(before, index)
    follows = set(following.values())
    chains: list[_Chain] = []
    for index in range(len(graph.calls)):
        if index not in follows:
            calls = [index]
            while (after := following.get(calls[-1])) is not None:
                calls.append(after)
            chains.append(_Chain(tuple(calls), tools[index]))
    return chains


def _ends(pieces: Sequence[Piece]) -> dict[int, int]:
    """Where the prompt of each call ends whose answer was generated among the pieces."""
    return {piece.call: at for at, piece in enumerate(pieces) if isinstance(piece, Answer) and piece.carried}


class _Counter:
    """Counts a backend's tokens, each text once."""

    def __init__(self, backend: Backend) -> None:
        self._known: dict[str, int] = {}
        self._tokens = backend if isinstance(backend, TokenCounter) else None
        self.is_estimate = self._tokens is None

    def text(self, text: str) -> int:
        if text not in self._known:
            self._known[text] = (
                -(-len(text) // CHARACTERS_PER_TOKEN)
                if self._tokens is None
                else self._tokens.count_tokens(text)
            )
        return self._known[text]

    def piece(self, piece: Piece, answers: Sequence[int], *, computed: bool = False) -> int:
        """Tokens. ``computed``: without the answers that were generated where they stand."""
        match piece:
            case str():
                return self.text(piece)
            case Answer(call, carried):
                return 0 if computed and carried else answers[call]
            case Argument() | Seam():
                return 0


def _longest_answer(call: CallNode, counter: _Counter) -> int:
    match call.operation:
        case Generate(params=params):
            return UNBOUNDED_ANSWER if params.max_tokens is None else params.max_tokens
        case Choose(request=request):
            return max(counter.text(option) for option in request.options)
