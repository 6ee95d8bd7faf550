"""``ramet explain file.py``: what the programs in a file will do, without running them."""

import json
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import typer

from ramet.runtime.cli import options
from ramet.runtime.cli.run import guarded, load_file
from ramet.runtime.protocol import InvalidRequestError


@runtime_checkable
class Explainable(Protocol):
    """What a file calls a program: ``ramet.function`` makes them."""

    name: str

    def explain(self, **arguments: Any) -> object:
        """Something whose ``str`` explains a run with these arguments; those left out are open."""
        ...


def explain(
    file: Annotated[Path, typer.Argument(help="A Python file with programs.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=VALUE]...", help="Arguments, as JSON or text. Others are left open."),
    ] = None,
    program: Annotated[
        str | None, typer.Option("--program", "-p", help="Only this one of the file's programs.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Also write a page with the graph drawn; for one program.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Count tokens as this model does; else they are estimated."),
    ] = None,
) -> None:
    """Print the calls of FILE's programs, which tokens they share, and what has to wait for what.

    The functions are run up to the first decision that depends on what a model says; no call is made.
    """
    programs = _programs(file, program)
    given = dict(_argument(text) for text in arguments or [])
    if html is not None:
        if len(programs) > 1:
            raise InvalidRequestError(
                f"{file} has the programs {', '.join(one.name for one in programs)}; choose one with --program",
                field="html",
            )
        given["html"] = html
    if model is None:
        _explain(programs, given)
        return
    with options.open_engine(model=model) as engine:
        _explain(programs, {**given, "backend": engine})


def _explain(programs: list[Explainable], arguments: dict[str, Any]) -> None:
    for number, one in enumerate(programs):
        if number:
            options.write("\n")
        guarded(lambda one=one: options.write(f"{one.explain(**arguments)}\n"))  # type: ignore[misc]


def _programs(file: Path, name: str | None) -> list[Explainable]:
    module = load_file(file)
    found = [
        value
        for value in vars(module).values()
        if isinstance(value, Explainable) and not isinstance(value, type)
    ]
    names = ", ".join(one.name for one in found)
    if not found:
        raise InvalidRequestError(
            f"{file} has no programs; decorate a function with ramet.function", field="file"
        )
    if name is None:
        return found
    chosen = [one for one in found if one.name == name]
    if not chosen:
        raise InvalidRequestError(f"{file} has no program {name!r}; it has {names}", field="program")
    return chosen


def _argument(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise InvalidRequestError(f"{text!r} is no argument; write name=value", field="arguments")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
