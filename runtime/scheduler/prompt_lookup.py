"""PromptLookup: what followed the last time, proposed as what follows now.

An answer that quotes its prompt, or repeats itself, goes on as it did before (prompt lookup decoding, Saxena
2023; the n-gram drafts of vLLM and transformers). Here the longest earlier occurrence of the history's end is
taken, the latest of equals. Each request is watched: proposals grow while they are right and stop while they
are wrong, so that an answer without repetitions costs next to nothing.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ramet.runtime.scheduler.request import Request

MIN_MATCH = 2
"""Tokens at the end of the history that an earlier place must share, where the last proposal was right."""
MIN_FRESH_MATCH = 3
"""The same where nothing is known yet, or the last proposal was wrong."""
MAX_MATCH = 16
"""Tokens that are compared to find the longest match."""
MAX_PLACES = 64
"""Earlier places that are compared, the latest ones."""
FIRST_LENGTH = 3
"""Tokens of a request's first proposal."""
MAX_PAUSE = 64
"""Steps without a proposal after many wrong ones, at most; it doubles with each."""

_IDS = npt.NDArray[np.int32]


class _Watched:
    """One request's history as an array, and how its proposals fared.

    Invariant: ``ids[:size]`` is the request's history, or a beginning of it.
    """

    __slots__ = ("ids", "length", "num_wrong", "pause", "size")

    def __init__(self) -> None:
        self.ids: _IDS = np.empty(256, dtype=np.int32)
        self.size = 0
        self.length = FIRST_LENGTH
        self.num_wrong = 0
        """Proposals in a row of which no token was right."""
        self.pause = 0
        """Steps to come without a proposal."""

    def extend(self, token_ids: Sequence[int]) -> None:
        end = self.size + len(token_ids)
        if end > len(self.ids):
            grown = np.empty(max(end, 2 * len(self.ids)), dtype=np.int32)
            grown[: self.size] = self.ids[: self.size]
            self.ids = grown
        self.ids[self.size : end] = token_ids
        self.size = end


class PromptLookup:
    """A DraftProposer. State: one record a request, 4 bytes a token of its history."""

    def __init__(self, max_tokens: int = 8) -> None:
        """``max_tokens``: of one proposal."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
        self._max_tokens = max_tokens
        self._watched: dict[str, _Watched] = {}

    def propose(self, request: Request, ahead: Sequence[int]) -> Sequence[int]:
        watched = self._watched.get(request.request_id)
        if watched is None:
            watched = self._watched[request.request_id] = _Watched()
        if watched.pause:
            watched.pause -= 1
            return []
        watched.extend(request.history[watched.size :])
        ids = watched.ids[: watched.size]
        if ahead:
            ids = np.concatenate((ids, np.array(ahead, dtype=np.int32)))
        least = MIN_FRESH_MATCH if watched.num_wrong or watched.length == FIRST_LENGTH else MIN_MATCH
        place = longest_match(ids, least)
        return [] if place is None else continuation(ids, place, watched.length)

    def observe(self, request: Request, num_proposed: int, num_accepted: int) -> None:
        watched = self._watched.get(request.request_id)
        if watched is None:
            return
        if num_accepted == 0:
            watched.num_wrong += 1
            watched.length = FIRST_LENGTH
            watched.pause = min(MAX_PAUSE, 2**watched.num_wrong - 1)
            return
        watched.num_wrong = 0
        if num_accepted == num_proposed:
            watched.length = min(self._max_tokens, watched.length + num_accepted)
        else:
            watched.length = min(self._max_tokens, num_accepted + 1)

    def forget(self, request: Request) -> None:
        self._watched.pop(request.request_id, None)


def longest_match(ids: _IDS, least: int) -> int | None:
    """Where the tokens at the end of ``ids`` stood before: the index behind that place; None where no ``least``
    or more of them stood together. Of several places that with most of them, the latest of equals."""
    size = len(ids)
    if size < least + 1:
        return None
    last = ids[size - 1]
    ends = np.flatnonzero(ids[: size - 1] == last)
    if least > 1:
        ends = ends[ends >= 1]
        ends = ends[ids[ends - 1] == ids[size - 2]]
    best, best_length = None, least - 1
    for end in ends[-MAX_PLACES:][::-1].tolist():
        limit = min(MAX_MATCH, end + 1)
        equal = ids[end + 1 - limit : end + 1] == ids[size - limit :]
        length = limit if equal.all() else limit - 1 - int(np.flatnonzero(~equal)[-1])
        if length > best_length:
            best, best_length = end + 1, length
            if length == MAX_MATCH:
                break
    return best


def continuation(ids: _IDS, place: int, length: int) -> list[int]:
    """``length`` tokens from ``place`` on; where they reach the end of ``ids`` they go on with themselves, as a
    repetition would."""
    period = len(ids) - place
    found: list[int] = ids[place : place + length].tolist()
    while len(found) < length:
        found.append(found[len(found) - period])
    return found
