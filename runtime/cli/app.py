"""The typer application and its error boundary."""

import sys
from importlib.metadata import version
from typing import Annotated

import typer
from rich.text import Text

from ramet.runtime.cli.chat import chat
from ramet.runtime.cli.check import check
from ramet.runtime.cli.explain import explain
from ramet.runtime.cli.generate import generate
from ramet.runtime.cli.info import info
from ramet.runtime.cli.options import notes
from ramet.runtime.cli.run import run
from ramet.runtime.cli.serve import serve
from ramet.runtime.protocol import RametError

app = typer.Typer(
    name="ramet",
    help="Run language-model programs on one shared prefix cache. Default model: the embedded SmolLM2.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(generate)
app.command()(chat)
app.command(context_settings={"allow_interspersed_args": False})(run)
app.command()(explain)
app.command()(serve)
app.command()(info)
app.command()(check)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ramet {version('ramet')}")
        raise typer.Exit


@app.callback()
def root(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Run language-model programs on one shared prefix cache."""


def main() -> None:
    """Entry point. Exit status 0: done; 1: it failed, which one line on stderr says; 2: wrong usage."""
    try:
        app()
    except RametError as error:
        message = " ".join(str(error).splitlines())
        notes.print(Text.assemble(("error: ", "bold red"), message), soft_wrap=True)
        sys.exit(1)
