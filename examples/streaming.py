"""Streams: an answer as it comes, and an answer that is left as soon as it has said enough.

Run it with ``ramet run examples/streaming.py ["a question"]``.
"""

import time

from ramet import Engine, SamplingParams

QUESTION = "What are the seven colours of the rainbow, in order?"


def main(engine: Engine, question: str = QUESTION) -> None:
    messages = [{"role": "user", "content": question}]
    params = SamplingParams(temperature=0, max_tokens=80)

    started = time.perf_counter()
    for increment in engine.stream(messages=messages, sampling_params=params):
        print(increment.text, end="", flush=True)
        if increment.stats is not None:
            print(f"\n  [{increment.stats.num_output_tokens} tokens, {time.perf_counter() - started:.2f} s]")

    # The same question again: the prompt comes from the cache. Leaving the loop aborts the request, and what it
    # held is free again: nothing is computed that nobody reads.
    text = ""
    with engine.stream(messages=messages, sampling_params=params) as stream:
        for increment in stream:
            text += increment.text
            if len(text) > 40:
                break
    print(f"\nLeft after {len(text)} characters: {text!r}")
