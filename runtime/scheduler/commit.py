"""What a step's results mean for a request: which tokens count, and whether it has ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.runtime.grammar.backend import ClosingGrammar
from ramet.runtime.protocol import FinishReason, RametError
from ramet.runtime.scheduler.batch import BatchRow, RowResult, ScheduledBatch
from ramet.runtime.scheduler.request import Request


@dataclass(slots=True)
class Commit:
    """The tokens that joined the history, and how the request ended if it did."""

    token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    begins_closing: bool = False
    """A token was dropped behind which the answer could not be closed any more: what follows it is sampled
    under another mask."""


def commit_tokens(request: Request, token_ids: Sequence[int]) -> Commit:
    """Append sampled tokens to the history up to the first one that ends the request; later ones are dropped.

    The matcher advances by each. A token that the grammar does not allow, or a grammar that fails, ends the
    request with ERROR before that token. One that leaves no room for an ending is dropped too.
    """
    commit = Commit([])
    history, matcher, params = request.history, request.matcher, request.params
    for token_id in token_ids:
        if matcher is not None:
            if not _advance(request, token_id, commit):
                break
            if matcher.is_unconstrained():
                # Steps without a mask from now on.
                matcher = request.matcher = request.guide = None
        may_stop = len(history) - request.num_prompt_tokens >= params.min_tokens
        history.append(token_id)
        commit.token_ids.append(token_id)
        if token_id in request.stop_token_ids and may_stop:
            commit.finish_reason = FinishReason.STOP
            commit.stop_token_id = token_id
        elif matcher is not None and matcher.is_terminated():
            commit.finish_reason = FinishReason.STOP
        elif len(history) >= request.max_total_tokens:
            commit.finish_reason = FinishReason.LENGTH
        if commit.finish_reason is not None:
            return commit
    if (commit.token_ids or commit.begins_closing) and commit.error is None and request.guide is not None:
        request.guide.advance()
    return commit


def _advance(request: Request, token_id: int, commit: Commit) -> bool:
    """Lead the matcher along a token. False: it does not go along; ``commit`` says why."""
    matcher = request.matcher
    assert matcher is not None
    try:
        if matcher.accept(token_id):
            return True
        if isinstance(matcher, ClosingGrammar) and matcher.begin_closing(token_id):
            commit.begins_closing = True
            return False
        commit.error = (
            f"the grammar does not allow token {token_id} after {request.num_output_tokens} output tokens"
        )
    except RametError as error:
        commit.error = f"the grammar failed: {error}"
    commit.finish_reason = FinishReason.ERROR
    return False


def gather_prompt_logprobs(request: Request, row: BatchRow, result: RowResult) -> None:
    """Put a chunk's prompt log probabilities in their places."""
    if request.prompt_logprobs is None or result.prompt_logprobs is None:
        return
    first, last = _prompt_logprob_range(row)
    if last >= first:
        request.prompt_logprobs[first : last + 1] = result.prompt_logprobs
        request.next_prompt_logprob = max(request.next_prompt_logprob, last + 1)


def gather_target_logprobs(request: Request, row: BatchRow, result: RowResult) -> None:
    """Put a chunk's target log probabilities behind those of the chunks before; what was computed again is
    there already."""
    known = request.targets.first + len(request.target_logprobs) - row.targets.first
    if result.target_logprobs is not None:
        request.target_logprobs += result.target_logprobs[known:]


def gather_pooled(request: Request, row: BatchRow, result: RowResult) -> None:
    """Add a chunk's hidden states to those of the chunks before."""
    if request.pooled is not None and result.hidden_states is not None:
        request.pooled.add(row.pooled, result.hidden_states)


def check_results(batch: ScheduledBatch, results: Sequence[RowResult]) -> None:
    """The executor kept to its contract.

    Raises:
        ValueError: it did not; the message names the row.
    """
    if len(results) != len(batch.rows):
        raise ValueError(f"the executor returned {len(results)} results for {len(batch.rows)} rows")
    for row, result in zip(batch.rows, results, strict=True):
        if result.error is not None:
            continue
        num_tokens = len(result.token_ids)
        low, high = int(row.samples), row.sampled_positions
        if result.is_late:
            low = high = 0
        if not low <= num_tokens <= high:
            raise ValueError(
                f"the executor returned {num_tokens} tokens for request {row.request_id!r}, which has "
                f"{high} sampled positions"
            )
        if row.samples and row.params.logprobs is not None and len(result.logprobs or ()) != num_tokens:
            raise ValueError(f"the executor's logprobs of request {row.request_id!r} are not one a token")
        if row.params.prompt_logprobs is not None:
            first, last = _prompt_logprob_range(row)
            if len(result.prompt_logprobs or ()) != max(0, last - first + 1):
                raise ValueError(
                    f"the executor returned {len(result.prompt_logprobs or ())} prompt logprobs for request "
                    f"{row.request_id!r}; positions {first} to {last} were wanted"
                )
        if (0 if result.hidden_states is None else len(result.hidden_states)) != len(row.pooled):
            raise ValueError(
                f"the executor's hidden states of request {row.request_id!r} are not one a pooled position"
            )
        found = [len(logprobs) for logprobs in result.target_logprobs or ()]
        if found != [len(token_ids) for token_ids in row.targets.token_ids]:
            raise ValueError(
                f"the executor's target logprobs of request {row.request_id!r} are not one a target"
            )


def _prompt_logprob_range(row: BatchRow) -> tuple[int, int]:
    """First and last prompt position that a row predicts (first > last: none), as in ``RowResult``."""
    first = max(row.start + 1, row.params.prompt_logprobs_start, 1)
    return first, min(row.end, row.num_prompt_tokens - 1)
