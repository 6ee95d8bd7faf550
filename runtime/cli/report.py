"""What the commands say of a finished answer: tokens cached, computed and generated, and their speed."""

from ramet.runtime.engine.results import Increment
from ramet.runtime.protocol import FinishReason, RequestStats


def usage_line(stats: RequestStats) -> str:
    """One line for one request, such as
    ``31 prompt tokens (24 cached, 7 computed), 48 generated, 55.1 tokens/s, first token after 0.04 s``."""
    computed = stats.num_prompt_tokens - stats.num_cached_tokens
    parts = [
        f"{stats.num_prompt_tokens} prompt tokens ({stats.num_cached_tokens} cached, {computed} computed)",
        f"{stats.num_output_tokens} generated",
    ]
    speed = tokens_per_second(stats)
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    if stats.ttft is not None:
        parts.append(f"first token after {stats.ttft:.2f} s")
    return ", ".join(parts)


def tokens_per_second(stats: RequestStats) -> float | None:
    """Decode speed after the first token; None where fewer than two tokens came."""
    if stats.ttft is None or stats.e2e is None or stats.num_output_tokens < 2 or stats.e2e <= stats.ttft:
        return None
    return (stats.num_output_tokens - 1) / (stats.e2e - stats.ttft)


def cut_note(last: Increment, max_tokens: int) -> str:
    """Why an answer was cut, as the end of its usage line; nothing where the model ended it."""
    if last.finish_reason is not FinishReason.LENGTH or last.stats is None:
        return ""
    full = last.stats.num_output_tokens < max_tokens
    return " (cut: the context or the KV pool is full)" if full else " (cut: --max-tokens)"
