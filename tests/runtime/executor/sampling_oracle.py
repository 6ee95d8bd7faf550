"""The whole order of one row's sampling in plain, slow NumPy: what the sampler must agree with."""

from collections import Counter

import numpy as np
import numpy.typing as npt

from ramet.runtime.executor.randomness import uniforms
from ramet.runtime.scheduler.batch import BatchRow

Floats = npt.NDArray[np.float64]


def edited(logits: Floats, row: BatchRow, offset: int = 0) -> Floats:
    """Logits of sampled position ``offset`` after penalties, bias, ban and mask."""
    params = row.params
    out = logits.astype(np.float64).copy()
    drafts = list(row.token_ids[len(row.token_ids) - row.num_drafts :])[:offset]
    prompt = list(row.history[: row.num_prompt_tokens])
    output = list(row.history[row.num_prompt_tokens :]) + drafts
    for token in set(prompt + output):
        out[token] = (
            out[token] / params.repetition_penalty if out[token] > 0 else out[token] * params.repetition_penalty
        )
    for token, count in Counter(output).items():
        out[token] -= params.frequency_penalty * count + params.presence_penalty
    for token, bias in (params.logit_bias or {}).items():
        if token < len(out):
            out[token] += bias
    # A ban that min_tokens does not explain holds for the whole step.
    if len(output) < params.min_tokens or len(output) - offset >= params.min_tokens:
        for token in row.banned_token_ids:
            if token < len(out):
                out[token] = -np.inf
    if row.mask is not None:
        for token in range(len(out)):
            if not (int(row.mask[offset][token // 32]) >> (token % 32)) & 1:
                out[token] = -np.inf
    return out


def logprobs(edited_logits: Floats) -> Floats:
    peak = edited_logits.max()
    out: Floats = edited_logits - peak - np.log(np.exp(edited_logits - peak).sum())
    return out


def distribution(edited_logits: Floats, row: BatchRow) -> Floats:
    """Probabilities of every token after temperature and the filters."""
    params = row.params
    best_first = sorted(range(len(edited_logits)), key=lambda token: (-edited_logits[token], token))
    if params.is_greedy:
        probs = np.zeros(len(edited_logits))
        probs[best_first[0]] = 1.0
        return probs
    probs = np.exp((edited_logits - edited_logits.max()) / params.temperature)
    if params.top_k > 0:
        probs[best_first[params.top_k :]] = 0.0
    probs /= probs.sum()
    if params.top_p < 1.0:
        mass, kept = 0.0, 0
        while mass < params.top_p and kept < len(best_first):
            mass += probs[best_first[kept]]
            kept += 1
        probs[best_first[kept:]] = 0.0
    probs[probs < params.min_p * probs.max()] = 0.0
    out: Floats = probs / probs.sum()
    return out


def token(logits: Floats, row: BatchRow, offset: int = 0) -> int:
    """The token of sampled position ``offset``."""
    probs = distribution(edited(logits, row, offset), row)
    if row.params.is_greedy:
        return int(probs.argmax())
    index = len(row.history) - row.num_prompt_tokens + offset
    uniform = uniforms([row.seed], [index])[0]
    cumulative = np.cumsum(probs)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def tokens(logits: Floats, row: BatchRow) -> list[int]:
    """Plain decoding along the drafts: stops behind the first token that is not the draft."""
    drafts = list(row.token_ids[len(row.token_ids) - row.num_drafts :])
    out = []
    for offset in range(1 + row.num_drafts):
        out.append(token(logits[offset], row, offset))
        if offset < row.num_drafts and out[-1] != drafts[offset]:
            break
    return out
