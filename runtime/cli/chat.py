"""``ramet chat``: a conversation in the terminal."""

import sys
from typing import TYPE_CHECKING

from ramet.runtime.cli import options
from ramet.runtime.cli.report import cut_note, usage_line
from ramet.runtime.protocol import InvalidRequestError, SamplingParams

if TYPE_CHECKING:
    from ramet.runtime.engine import Engine

HELP = "/reset starts over, /exit (or Ctrl-D) leaves; Ctrl-C stops an answer"


def chat(
    model: options.Model = "smollm2",
    system: options.System = None,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.7,
    top_p: options.TopP = 0.95,
    top_k: options.TopK = 0,
    seed: options.Seed = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    kv_tokens: options.KvTokens = None,
    threads: options.Threads = None,
) -> None:
    """Talk to the model. After each answer: how much of the conversation came from the cache, and the speed.

    Without a terminal each line of stdin is one turn.
    """
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed; the conversation comes from there", field="stdin")
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, seed=seed)
    engine = options.open_engine(
        model=model,
        device=device,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_tokens=kv_tokens,
        threads=threads,
    )
    with engine:
        options.check_chat(engine, "complete text with ramet generate --raw")
        if sys.stdin.isatty():
            options.notes.print(HELP, style="dim")
        _converse(engine, system, params)


def _converse(engine: "Engine", system: str | None, params: SamplingParams) -> None:
    opening = [] if system is None else [{"role": "system", "content": system}]
    messages = list(opening)
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit" | "/quit":
                return
            case "/reset":
                messages = list(opening)
            case text:
                asked = [*messages, {"role": "user", "content": text}]
                answer = _answer(engine, asked, params)
                if answer is not None:
                    messages = [*asked, {"role": "assistant", "content": answer}]


def _answer(engine: "Engine", messages: list[dict[str, str]], params: SamplingParams) -> str | None:
    """Streams the answer and returns it, as far as it came; None where the message was refused."""
    pieces: list[str] = []
    try:
        with engine.stream(messages=messages, sampling_params=params) as increments:
            for increment in increments:
                options.write(increment.text)
                pieces.append(increment.text)
                if increment.stats is not None:
                    options.write("\n")
                    note = usage_line(increment.stats) + cut_note(increment, params.max_tokens or 0)
                    options.notes.print(note, style="dim", markup=False, soft_wrap=True)
    except KeyboardInterrupt:
        options.write("\n")
    except InvalidRequestError as error:
        if error.field == "stdout":
            raise
        # The conversation has grown too long, or the line is no text: the user can go on.
        options.notes.print(f"{error}; /reset starts over", style="red", markup=False, soft_wrap=True)
        return None
    return "".join(pieces)


def _read_line() -> str | None:
    """The next line of the user; None at the end of input or at Ctrl-C."""
    try:
        return options.check_utf8(input("> " if sys.stdin.isatty() else ""), "stdin")
    except (EOFError, KeyboardInterrupt):
        return None
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"stdin is not text in UTF-8: {error}", field="stdin") from None
