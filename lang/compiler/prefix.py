"""Computing what every run of a program begins with, ahead of the runs."""

from dataclasses import dataclass

from ramet.lang.backends.base import Backend, TokenCounter
from ramet.lang.compiler.graph import Answer, Argument
from ramet.lang.compiler.hoist import say
from ramet.lang.compiler.piece import Fixed, first_tools
from ramet.lang.compiler.trace import Trace
from ramet.lang.loop_thread import branches_loop


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """What was computed."""

    text: str
    """As the model reads it."""
    num_tokens: int | None
    """About, since the last token may go on differently; None: the backend does not count tokens."""


def compute_prefix(trace: Trace, backend: Backend, cache_salt: str) -> CachedPrefix:
    """Blocks until it is done. Nothing is asked of the backend where the program begins with nothing fixed."""
    start: list[Fixed] = []
    for part in trace.prefix:
        if isinstance(part, Answer | Argument):
            break
        start.append(part)
    prompt = backend.prompt(cache_salt=cache_salt)
    say(prompt, start, first_tools(trace.piece, trace.piece.tracks[0].branch) if start else ())
    text = prompt.text()
    if start:
        branches_loop().run(backend.prefill([prompt]))
    return CachedPrefix(text, backend.count_tokens(text) if isinstance(backend, TokenCounter) else None)
