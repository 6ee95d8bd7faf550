"""Log probabilities of chosen tokens, their ranks, and the most probable tokens beside them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ramet.runtime.executor.row_ops import FloatArray, IntArray, RowOps, padded_rows, row_chunks
from ramet.runtime.protocol import Logprob, TokenLogprobs


def token_logprobs(
    logits: Tensor, rows: Sequence[int], ids: Sequence[int], counts: Sequence[int], ops: RowOps
) -> list[TokenLogprobs]:
    """For each of ``rows`` of ``logits`` [positions, vocab_size] fp32: token ``ids[i]`` and the ``counts[i]``
    best ones.

    Natural logarithms of the row's softmax. Tokens of probability 0 (removed by a mask) are never among the
    best, so a row may have fewer. Each row's result depends on that row alone.
    """
    if not rows:
        return []
    chosen_logits, best_logits, best_logprobs = _normalised(logits, rows, ids)
    ranks = ops.ranks(logits, rows, ids)
    tops = _most_probable(logits, rows, counts, ops)
    results = []
    for at, token_id in enumerate(ids):
        # The normaliser in fp32, the difference of two logits exact: no cancellation, however large the
        # logits are.
        maximum, logprob = float(best_logits[at]), float(best_logprobs[at])
        chosen = Logprob(token_id, float(chosen_logits[at]) - maximum + logprob, int(ranks[at]))
        top_ids, top_logits = tops[at]
        top = tuple(
            Logprob(top_id, top_logit - maximum + logprob, rank)
            for rank, (top_id, top_logit) in enumerate(zip(top_ids.tolist(), top_logits.tolist(), strict=True))
        )
        results.append(TokenLogprobs(chosen, top))
    return results


def target_logprobs(logits: Tensor, ids: Sequence[Sequence[int]]) -> list[list[float]]:
    """For each row of ``logits`` [positions, vocab_size] fp32 the log probabilities of its tokens ``ids[row]``:
    the bits that ``token_logprobs`` gives for each. Each row's result depends on that row alone."""
    found: list[list[float]] = []
    for chunk in row_chunks(len(ids), logits):
        rows = range(len(ids))[chunk]
        padded = padded_rows(logits, rows, [1.0] * len(rows))
        best = torch.stack((padded.amax(dim=-1), padded.log_softmax(dim=-1).amax(dim=-1))).tolist()
        at = [(place, token_id) for place, row in enumerate(rows) for token_id in ids[row]]
        places, targets = torch.tensor(at, device=logits.device, dtype=torch.int64).view(-1, 2).unbind(1)
        values = iter(padded[places, targets].tolist())
        found += [
            [next(values) - maximum + logprob for _ in ids[row]]
            for row, maximum, logprob in zip(rows, *best, strict=True)
        ]
    return found


def _normalised(
    logits: Tensor, rows: Sequence[int], ids: Sequence[int]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The chosen token's logit, the row's highest, and the latter's log probability, for each of ``rows``."""
    parts = []
    for chunk in row_chunks(len(rows), logits):
        padded = padded_rows(logits, rows[chunk], [1.0] * len(rows[chunk]))
        targets = torch.tensor(list(ids[chunk]), device=logits.device)[:, None]
        normalised = padded.log_softmax(dim=-1).amax(dim=-1)
        parts.append(torch.stack((padded.gather(1, targets)[:, 0], padded.amax(dim=-1), normalised)))
    together = torch.cat(parts, dim=1).cpu().numpy()
    return together[0], together[1], together[2]


def _most_probable(
    logits: Tensor, rows: Sequence[int], counts: Sequence[int], ops: RowOps
) -> list[tuple[IntArray, FloatArray]]:
    """Ids and logits of each row's ``count`` highest logits, best first, ties to the lower id."""
    none = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    tops = [none] * len(rows)
    wanted = [at for at, count in enumerate(counts) if count > 0]
    if not wanted:
        return tops
    chosen_rows = [rows[at] for at in wanted]
    bounds = ops.kth_largest_bounds(logits, chosen_rows, [counts[at] for at in wanted])
    for at, (ids, values) in zip(wanted, ops.at_least(logits, chosen_rows, bounds), strict=True):
        order = np.argsort(-values, kind="stable")[: counts[at]]
        tops[at] = ids[order], values[order]
    return tops
