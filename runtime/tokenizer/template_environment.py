"""The Jinja environment in which chat templates run. Importing this imports jinja2."""

import json
import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from ramet.runtime.protocol import InvalidRequestError, ModelLoadError


class TemplateRefusalError(TemplateError):
    """The template called raise_exception."""


class _GenerationTag(Extension):
    """``{% generation %}`` marks what the assistant said, for training; its body renders as it is, and names
    that are set in it are its own."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance attribute)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


_MAX_CALLS = 128
"""Calls inside of calls, of macros and loops. A template that calls itself without end must not depend on how
much of the thread's stack the server has left."""


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with a bound on calls inside of calls."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag])
        self._of_thread = threading.local()

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        depth = getattr(__self._of_thread, "depth", 0)
        if depth >= _MAX_CALLS:
            raise RecursionError(f"it calls macros or loops inside of one another, more than {_MAX_CALLS} deep")
        __self._of_thread.depth = depth + 1
        try:
            return super().call(__context, __obj, *args, **kwargs)
        finally:
            __self._of_thread.depth = depth


class _Dict:
    """``dict`` for templates. The type itself has ``dict.update`` and others, by which a template could change
    a mapping that it was given: the sandbox knows such methods only on the mapping."""

    def __call__(self, *pairs: Any, **items: Any) -> dict[Any, Any]:
        return dict(*pairs, **items)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Namespace(Namespace):
    """``namespace`` for templates, without names by which Python knows an object's own parts."""

    def __init__(self, /, *pairs: Any, **items: Any) -> None:
        attributes = dict(*pairs, **items)
        for name in attributes:
            _check_attribute(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no place for {name!r}: a name may not begin with _")


def compile_template(source: str, now: Callable[[], datetime]) -> Callable[[dict[str, Any]], str]:
    """A chat template as a function, in a sandbox: it can neither change nor reach into what it is given.

    The function raises InvalidRequestError where the template refuses the messages or fails on them, with the
    template's own words.

    Names that transformers gives to templates are there too: raise_exception, strftime_now, a ``tojson`` that
    escapes nothing for HTML, break and continue, and the generation tag.

    Raises:
        ModelLoadError: the template is not valid Jinja.
    """
    environment = _Environment()
    environment.filters["tojson"] = _tojson
    environment.globals["dict"] = _Dict()
    environment.globals["namespace"] = _Namespace
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    try:
        template = environment.from_string(source)
    except TemplateSyntaxError as error:
        raise ModelLoadError(f"the model's chat template is not valid, line {error.lineno}: {error}") from None
    return lambda variables: _render(template, variables)


def _render(template: Template, variables: dict[str, Any]) -> str:
    try:
        return template.render(variables)
    except TemplateRefusalError as error:
        raise InvalidRequestError(
            f"the model's chat template refuses messages: {error}", field="messages"
        ) from None
    except (
        TemplateError,
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        # Whatever an expression of the template raises: a template is a program that somebody else wrote.
        raise InvalidRequestError(
            f"the model's chat template fails on messages: {type(error).__name__}: {error}", field="messages"
        ) from None


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRefusalError(message)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
