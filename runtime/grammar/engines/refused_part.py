"""Which part of a schema an engine refuses, whose own message knows nothing of the schema's author."""

import time
from collections.abc import Callable

from ramet.runtime.grammar.schema import DEFAULT_LIMITS, OverdueError, Pace, SchemaPlan, load, plan
from ramet.runtime.protocol import InvalidRequestError

MAX_TRIED = 40
MAX_REFUSED = 6
"""Parts inside of each other that are found refused: each may take the engine as long as the whole did."""
MAX_SECONDS = 1.0
"""Behind which no other part is tried."""


def refused_part(
    source: str, is_refused: Callable[[SchemaPlan], bool], clock: Callable[[], float] = time.monotonic
) -> str:
    """The JSON pointer of the smallest part of the schema ``source`` that is refused by itself, as far as that
    is found with a bounded number of questions; empty: only the whole is."""
    document = load(source, DEFAULT_LIMITS)
    at, met, num_left = "", {""}, MAX_TRIED
    last = clock() + MAX_SECONDS
    for _ in range(MAX_REFUSED):
        for inner in dict.fromkeys(document.inner(at)):
            # What leads back is refused for what it leads back to.
            if num_left <= 0 or clock() > last or inner in met or not met.isdisjoint(document.inner(inner)):
                continue
            num_left -= 1
            met.add(inner)
            try:
                planned = plan(source, at=inner, pace=Pace(MAX_SECONDS))
            except (InvalidRequestError, OverdueError):
                # Nothing meets it, say, which an optional property may be.
                continue
            if is_refused(planned):
                at = inner
                break
        else:
            return at
    return at
