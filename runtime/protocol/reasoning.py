"""Separating a model's reasoning from its answer, increment by increment."""

from dataclasses import dataclass

from ramet.runtime.protocol.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a model marks its reasoning inside an answer."""

    begin: str
    end: str
    begins_inside: bool = False
    """The answer starts with reasoning although nothing marks its beginning (the template has written it)."""


FORMATS = {
    "deepseek-r1": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "deepseek-v3": ReasoningFormat("<think>", "</think>"),
    "glm45": ReasoningFormat("<think>", "</think>"),
    "kimi": ReasoningFormat("◁think▷", "◁/think▷"),
    "qwen3": ReasoningFormat("<think>", "</think>"),
    "qwen3-thinking": ReasoningFormat("<think>", "</think>", begins_inside=True),
    "step3": ReasoningFormat("<think>", "</think>", begins_inside=True),
}
"""By ``model_type``, under the names that SGLang's reasoning parsers have."""


def reasoning_format(model_type: str) -> ReasoningFormat:
    """Raises InvalidRequestError with the names that there are."""
    try:
        return FORMATS[model_type]
    except KeyError:
        raise InvalidRequestError(
            f"model_type is {model_type!r}; it must be one of {', '.join(FORMATS)}", field="model_type"
        ) from None


class ReasoningSplitter:
    """Feed it an answer's text; it gives back how the reasoning and how the answer proper go on.

    White space around the reasoning and before the answer belongs to neither. What might be the beginning of a
    marker, and white space that might be the reasoning's end, is held back until it is clear.
    """

    def __init__(self, format: ReasoningFormat) -> None:
        self._format = format
        self._pending = ""
        self._place = "start"
        self._at_beginning = True
        """Nothing of the present part was given back yet."""

    @property
    def in_reasoning(self) -> bool:
        """What was fed last is reasoning, as far as it is clear."""
        return self._place == "reasoning"

    def leave_out(self) -> None:
        """The server has told the reasoning apart: no text is part of it, whatever the format begins with."""
        if self._place == "start":
            self._place, self._at_beginning = "answer", True

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer)"""
        self._pending += text
        return self._take(final=False)

    def finish(self) -> tuple[str, str]:
        """What was held back. Reasoning that never ended leaves the answer empty."""
        return self._take(final=True)

    def _take(self, *, final: bool) -> tuple[str, str]:
        if self._place == "start" and not self._leave_start(final=final):
            return "", ""
        reasoning = self._take_reasoning(final=final) if self._place == "reasoning" else ""
        answer = self._take_answer() if self._place == "answer" else ""
        return reasoning, answer

    def _leave_start(self, *, final: bool) -> bool:
        head = self._pending.lstrip()
        begin = self._format.begin
        if head.startswith(begin):
            self._pending, self._place = head[len(begin) :], "reasoning"
        elif begin.startswith(head) and not final:
            return False
        else:
            self._place = "reasoning" if self._format.begins_inside else "answer"
            # Without reasoning the answer is the text as it stands.
            self._at_beginning = self._format.begins_inside
        return True

    def _take_reasoning(self, *, final: bool) -> str:
        before, marker, after = self._pending.partition(self._format.end)
        if marker:
            taken, self._pending, self._place = before.rstrip(), after, "answer"
        elif final:
            taken, self._pending = before.rstrip(), ""
        else:
            held = _overlap(before, self._format.end)
            shown = before[: len(before) - held].rstrip()
            taken, self._pending = shown, before[len(shown) :]
        if self._at_beginning:
            taken = taken.lstrip()
            # Leading white space alone: it was dropped, or is still held back.
            self._at_beginning = not taken
        if marker:
            self._at_beginning = True
        return taken

    def _take_answer(self) -> str:
        taken, self._pending = self._pending, ""
        if self._at_beginning:
            taken = taken.lstrip()
            self._at_beginning = not taken
        return taken


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of ``text`` that ``marker`` begins with."""
    return next((size for size in range(min(len(text), len(marker)), 0, -1) if text.endswith(marker[:size])), 0)
