"""Options that several commands share, each declared once."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ramet.runtime.protocol import InvalidRequestError

if TYPE_CHECKING:
    from ramet.runtime.engine import Engine

ENGINE_PANEL = "Engine"
SAMPLING_PANEL = "Sampling"

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="smollm2, gemma3-270m, a .gguf file, a Hugging Face folder, or a hub id such as org/name.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
Device = Annotated[
    str, typer.Option(help="auto, cpu, cuda or cuda:N.", rich_help_panel=ENGINE_PANEL, show_default=True)
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.", rich_help_panel=ENGINE_PANEL)]
Quantization = Annotated[
    str,
    typer.Option(
        help="auto (int8 on CPU, none on CUDA), none, int8, int4, or fp8 on CUDA.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
KvCacheDtype = Annotated[
    str,
    typer.Option(
        help="auto (bfloat16 beside int8 weights where the CPU multiplies it, else as --dtype), float32, "
        "bfloat16, float16; on CUDA also fp8 or int8.",
        rich_help_panel=ENGINE_PANEL,
    ),
]
KvTokens = Annotated[
    int | None,
    typer.Option(
        help="Size of the KV pool in tokens; sized from free memory if absent.", rich_help_panel=ENGINE_PANEL
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(help="CPU threads; one a physical core if absent.", rich_help_panel=ENGINE_PANEL),
]

MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate.", rich_help_panel=SAMPLING_PANEL)]
Temperature = Annotated[
    float, typer.Option("--temperature", "-t", help="0 is greedy.", rich_help_panel=SAMPLING_PANEL)
]
TopP = Annotated[float, typer.Option(help="Nucleus mass, (0, 1].", rich_help_panel=SAMPLING_PANEL)]
TopK = Annotated[
    int, typer.Option(help="Keep the k most probable tokens; 0: all.", rich_help_panel=SAMPLING_PANEL)
]
Seed = Annotated[int | None, typer.Option(help="Same seed, same tokens.", rich_help_panel=SAMPLING_PANEL)]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Stop at this text; may be given several times.", rich_help_panel=SAMPLING_PANEL),
]
System = Annotated[str | None, typer.Option(help="System message.")]

notes = Console(stderr=True, highlight=False)
"""Everything that is not the answer itself goes to stderr."""


def open_engine(**settings: Any) -> "Engine":
    """The in-process engine; imports torch, so it is called by commands, not at import.

    Shows what is being loaded while it loads, if stderr is a terminal.
    """
    with notes.status(f"loading {settings.get('model', 'smollm2')}") if notes.is_terminal else _Silent():
        from ramet.runtime.engine import Engine

        return Engine(**settings)


def write(text: str) -> None:
    """To stdout, at once. Characters that its encoding lacks become question marks.

    Raises:
        InvalidRequestError: stdout is closed, or what it leads to takes no more.
        BrokenPipeError: whoever read it has gone, which ends a command quietly.
    """
    if sys.stdout is None:
        raise InvalidRequestError("stdout is closed; the answer goes there", field="stdout")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is left in its buffer would fail once more, with a traceback, when the interpreter exits.
        sys.stdout = None
        raise InvalidRequestError(f"stdout cannot be written: {error.strerror}", field="stdout") from None


def check_chat(engine: "Engine", remedy: str) -> None:
    """Raises InvalidRequestError with the ``remedy`` where the model takes no messages."""
    if not engine.tokenizer.chat_template.exists:
        raise InvalidRequestError(
            f"{engine.info.model} is a base model without a chat template; {remedy}", field="model"
        )


def check_utf8(text: str, name: str) -> str:
    """Refuses what was no UTF-8 on the command line or in stdin, which Python hands over as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        byte = ord(text[error.start]) & 0xFF
        raise InvalidRequestError(
            f"{name} is not text in UTF-8: byte 0x{byte:02x} at character {error.start}; convert it first",
            field=name,
        ) from None
    return text


class _Silent:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *_exc: object) -> None:
        return None
