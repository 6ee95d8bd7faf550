"""The prompts of a traced program as the model reads them, with the template around roles.

A template wants the whole conversation, so that many branches of a long one would be quadratic. A long prompt
is therefore cut at a seam that another one has too, and only a window is rendered: the messages around the
seam and what comes behind it. Whoever does so has to prove that the template allows it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ramet.lang.backends.base import Backend, ToolSpec
from ramet.lang.compiler.graph import Answer, Argument, Graph, Link, Part
from ramet.lang.compiler.hoist import say
from ramet.lang.compiler.placeholders import Marks
from ramet.lang.operations import AppendText, BeginRole, EndRole

SPACING = 32
"""Parts of a prompt between seams, where no answer is one. A text is cut there, and may count a token more."""
MIN_DEPTH = 64
"""Parts before a seam. Shorter prompts are rendered whole."""
MAX_WINDOW = 8
"""Messages before the seam among which one is looked for with which a conversation may begin."""


@dataclass(frozen=True, slots=True)
class Seam:
    """Stands in a rendering where it may be cut, and for no text."""

    number: int


Piece = str | Answer | Argument | Seam
Tools = tuple[ToolSpec, ...]
"""That the model is told of."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Of a link in its prompt."""

    depth: int = 0
    """How many parts the prompt has up to here."""
    seam: Link | None = None
    """The last one, or this."""
    to_seam: int = 0
    """How many parts lie behind it."""
    message: Link | None = None
    """The beginning of the message that is open, or was last."""
    is_open: bool = False
    head: Link | None = None
    """The end of the system messages that the conversation begins with."""
    role: str | None = None
    """Of the first message behind them."""


class Renderings:
    """Of one graph's prompts, for one backend."""

    def __init__(self, graph: Graph, backend: Backend) -> None:
        self._graph = graph
        self._backend = backend
        self._marks = Marks()
        self._cuts: dict[Link, Seam] = {}
        self._places: dict[Link | None, _Place] = {None: _Place()}
        for step in graph.steps():
            if isinstance(step, Link):
                self._places[step] = self._place(step, self._places[step.before])

    def seams(self, link: Link | None) -> "Iterator[tuple[Link, Answer | Seam]]":
        """Those of the prompt, the last one first, with what stands there; not those near its beginning."""
        while (seam := self._places[link].seam) is not None:
            if self._places[seam].depth < MIN_DEPTH:
                return
            yield seam, self._mark_at(seam)
            link = seam.before

    def whole(self, link: Link | None, tools: Tools) -> list[Piece]:
        """The prompt that ends with ``link``."""
        return self._rendered([] if link is None else link.back_to(None), tools)

    def behind(self, seam: Link, link: Link, tools: Tools) -> list[Piece] | None:
        """What the prompt has behind its seam, as far as that can be seen from a window; None: it cannot."""
        window = self._window(seam, link)
        pieces = [] if window is None else self._rendered(window, tools)
        mark = self._mark_at(seam)
        return pieces[pieces.index(mark) + 1 :] if pieces.count(mark) == 1 else None

    def _place(self, link: Link, before: _Place) -> _Place:
        place = replace(before, depth=before.depth + 1, to_seam=before.to_seam + 1)
        match link.open:
            case BeginRole(role):
                first = role if before.role is None and role != "system" else before.role
                return replace(place, message=link, is_open=True, role=first)
            case EndRole():
                head = link if before.role is None else before.head
                return replace(place, is_open=False, head=head)
            case Answer(carried=True):
                return replace(place, seam=link, to_seam=0)
            case AppendText(text) if text and before.to_seam >= SPACING:
                # Between messages a template may have no place for it.
                if before.is_open or before.message is None:
                    self._cuts[link] = Seam(len(self._cuts))
                    return replace(place, seam=link, to_seam=1)
        return place

    def _mark_at(self, seam: Link) -> Answer | Seam:
        if seam in self._cuts:
            return self._cuts[seam]
        assert isinstance(seam.open, Answer)
        return seam.open

    def _window(self, seam: Link, link: Link) -> list[Link] | None:
        """The system messages, then from a message with which the conversation could go on behind them."""
        place = self._places[seam]
        begin = place.message
        if begin is None:
            return link.back_to(seam.before)
        for _ in range(MAX_WINDOW):
            if begin is None:
                return None
            assert isinstance(begin.open, BeginRole)
            if begin.open.role == place.role:
                return [*([] if place.head is None else place.head.back_to(None)), *link.back_to(begin.before)]
            begin = self._places[begin.before].message
        return None

    def _rendered(self, links: Iterable[Link], tools: Tools) -> list[Piece]:
        prompt = self._backend.prompt()
        say(prompt, (), tools)
        for part in self._parts(links):
            if isinstance(part, Answer | Argument | Seam):
                prompt.append_text(self._marks.of(part))
            else:
                say(prompt, [part])
        return [
            part
            for part in self._marks.split(prompt.text())
            if isinstance(part, str | Answer | Argument | Seam)
        ]

    def _parts(self, links: Iterable[Link]) -> Iterator[Part | Seam]:
        for link in links:
            if link in self._cuts:
                yield self._cuts[link]
            yield from self._graph.made.parts(link.open)
