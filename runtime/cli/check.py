"""``ramet check``: whether a JSON schema can be enforced, by which engine, and what is refused and why."""

import dataclasses
import importlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from ramet.runtime.protocol import InvalidRequestError, JsonSchema, RametError
from ramet.runtime.protocol.grammar_spec import GRAMMAR_BACKENDS

if TYPE_CHECKING:
    from ramet.runtime.grammar.schema import SchemaPlan


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One constraint that is not enforced. ``at``: a JSON pointer as a URI fragment."""

    at: str
    why: str
    remedy: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All that ``ramet check --json`` prints."""

    enforced: bool
    """All of it, by ``engine``."""
    engine: str | None
    engines: list[str]
    """Those that could, the safest first."""
    refused: list[Finding]
    notes: list[str]
    plan_ms: float
    compile_ms: float | None
    """None: it was not compiled."""
    rewritten: Any
    """The schema that the engine is given."""


def check(
    schema: Annotated[
        str, typer.Argument(help="A JSON file, - for stdin, or module:Name of a pydantic model or dataclass.")
    ],
    backend: Annotated[
        str, typer.Option(help=f"The engine that has to do it: one of {', '.join(GRAMMAR_BACKENDS)}.")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what of a JSON schema is enforced, by which engine, and what is refused. Exit status 1: refused."""
    if backend not in GRAMMAR_BACKENDS:
        raise InvalidRequestError(
            f"--backend is {backend!r}; it must be one of {', '.join(GRAMMAR_BACKENDS)}", field="backend"
        )
    text = read_schema(schema)
    report = examine(text, None if backend == "auto" else backend)
    typer.echo(msgspec.json.encode(report).decode() if as_json else "\n".join(lines(report)))
    if not report.enforced:
        raise typer.Exit(1)


def read_schema(source: str) -> str:
    """The schema's JSON text. Raises InvalidRequestError where there is none."""
    if source == "-":
        return sys.stdin.read()
    module, colon, name = source.partition(":")
    if colon and name.isidentifier() and not Path(source).exists():
        return json.dumps(_schema_of_type(module, name), ensure_ascii=False)
    try:
        return Path(source).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidRequestError(f"{source} cannot be read: {error.strerror}", field="schema") from None
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{source} is no text in UTF-8", field="schema") from None


def examine(text: str, engine: str | None) -> Report:
    """Plans the schema ``text`` and, if all of it can be enforced, compiles it for a byte-level vocabulary.

    Raises:
        InvalidRequestError: it is no JSON schema, or exceeds a limit.
    """
    from ramet.runtime.grammar.schema import ENGINES, Unsupported, plan

    began = time.perf_counter()
    planned = plan(text)
    planned_at = time.perf_counter()
    refused = list(planned.unsupported)
    chosen: str | None = engine or (planned.engines[0] if planned.engines else None)
    if chosen is None or chosen not in planned.engines:
        refused += planned.obstacles.get(chosen or ENGINES[0], ())
    compile_ms = None
    if not refused and chosen is not None:
        failure = _compile(text, chosen)
        compile_ms = (time.perf_counter() - planned_at) * 1000
        if failure is not None:
            refused.append(Unsupported("", "", failure, "simplify the schema"))
    return Report(
        enforced=not refused,
        engine=None if refused else chosen,
        engines=list(planned.engines) if planned.exact else [],
        refused=[Finding(at=item.location, why=item.why, remedy=item.remedy) for item in refused],
        notes=list(planned.notes),
        plan_ms=(planned_at - began) * 1000,
        compile_ms=compile_ms,
        rewritten=_rewritten(planned),
    )


def lines(report: Report) -> list[str]:
    """The report for people."""
    if report.enforced:
        others = [engine for engine in report.engines if engine != report.engine]
        also = f" (also: {', '.join(others)})" if others else ""
        result = [f"enforced whole by {report.engine}{also}"]
    else:
        result = [f"refused: {len(report.refused)} constraint(s) cannot be enforced"]
        for item in report.refused:
            result += [f"  {item.at}", f"      {item.why}", f"      remedy: {item.remedy}"]
    result += [f"note: {note}" for note in report.notes]
    timing = f"planned in {report.plan_ms:.1f} ms"
    if report.compile_ms is not None:
        timing += f", compiled in {report.compile_ms:.1f} ms"
    return [*result, timing]


def _compile(text: str, engine: str) -> str | None:
    """Why the engine refuses it after all; None: it does not."""
    from ramet.runtime.grammar.engines import EngineRouter
    from ramet.runtime.tokenizer.byte_tokenizer import ByteTokenizer

    try:
        EngineRouter(ByteTokenizer()).compile(JsonSchema(text, backend=engine))
    except RametError as error:
        return str(error)
    return None


def _rewritten(planned: "SchemaPlan") -> Any:
    return json.loads(planned.text)


def _schema_of_type(module: str, name: str) -> dict[str, Any]:
    """The schema of the pydantic model or dataclass ``name`` in ``module``, which may be in this folder."""
    from pydantic import BaseModel, TypeAdapter

    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise InvalidRequestError(f"the module {module} cannot be imported: {error}", field="schema") from None
    finally:
        sys.path.pop(0)
    if not isinstance(found, type) or not (issubclass(found, BaseModel) or dataclasses.is_dataclass(found)):
        raise InvalidRequestError(
            f"{module}:{name} is {found!r}; it must be a pydantic model or a dataclass", field="schema"
        )
    return TypeAdapter(found).json_schema()
