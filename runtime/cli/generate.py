"""``ramet generate``: one prompt, one answer on stdout."""

import sys
from typing import Annotated

import typer

from ramet.runtime.cli import options
from ramet.runtime.cli.report import cut_note, usage_line
from ramet.runtime.protocol import InvalidRequestError, SamplingParams


def generate(
    prompt: Annotated[str, typer.Argument(help="The user's message; '-' reads it from stdin.")],
    model: options.Model = "smollm2",
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the text as it stands, without the chat template.")
    ] = False,
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.Seed = None,
    stop: options.Stop = None,
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    quantization: options.Quantization = "auto",
    kv_cache_dtype: options.KvCacheDtype = "auto",
    kv_tokens: options.KvTokens = None,
    threads: options.Threads = None,
) -> None:
    """Generate an answer to PROMPT and stream it to stdout; what it cost goes to stderr."""
    if raw and system is not None:
        raise typer.BadParameter("--system goes with the chat template; leave out --raw")
    # Before the engine is loaded, so that a wrong value costs no time.
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        stop=tuple(stop or ()),
    )
    text = _read_stdin(raw) if prompt == "-" else options.check_utf8(prompt, "prompt")
    engine = options.open_engine(
        model=model,
        device=device,
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_tokens=kv_tokens,
        threads=threads,
    )
    messages = [{"role": "user", "content": text}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    last = None
    if not raw:
        options.check_chat(engine, "complete text with --raw")
    with (
        engine,
        engine.stream(text, params)
        if raw
        else engine.stream(messages=messages, sampling_params=params) as increments,
    ):
        for increment in increments:
            options.write(increment.text)
            last = increment
    options.write("\n")
    if last is not None and last.stats is not None:
        note = usage_line(last.stats) + cut_note(last, max_tokens)
        options.notes.print(note, style="dim", markup=False, soft_wrap=True)


def _read_stdin(raw: bool) -> str:
    """All of it; a message ends before the newline that ends its last line, a raw prompt is taken as it is."""
    if sys.stdin is None:
        raise InvalidRequestError("stdin is closed, and the prompt is - (stdin)", field="prompt")
    try:
        text = options.check_utf8(sys.stdin.read(), "stdin")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"stdin is not text in UTF-8: {error}", field="prompt") from None
    return text if raw else text.removesuffix("\n")
