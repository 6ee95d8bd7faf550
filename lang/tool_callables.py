"""What can be a tool: functions, methods, functions with some arguments given, objects that can be called, and
classes whose instances are their fields."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import msgspec

from ramet.runtime.protocol import InvalidRequestError


@dataclass(frozen=True, slots=True)
class ToolCallable:
    """What is known of it without calling it."""

    name: str
    docstring: str
    """"" where it has none."""
    hints: Mapping[str, Any]
    """Of its parameters, ``Annotated`` included."""
    parameters: tuple[inspect.Parameter, ...]
    """Those that a model gives, each by its name."""


def tool_callable(given: object) -> ToolCallable:
    """Looks at something that is to be a tool.

    Raises:
        InvalidRequestError: it cannot be called, or has no name, or a parameter has no type hint or no name.
    """
    if isinstance(given, functools.partial):
        return _partial(given)
    if isinstance(given, type):
        _check_class(given)
        return _looked_at(given, given, given.__name__, inspect.getdoc(given))
    if callable(given) and not hasattr(given, "__name__"):
        # An object: its class names it, and its __call__ is what is called.
        call = type(given).__call__
        # Not the one that every __call__ inherits.
        own = getattr(call, "__doc__", None)
        docstring = inspect.cleandoc(own) if own else inspect.getdoc(type(given))
        return _looked_at(given, call, type(given).__name__, docstring)
    name = getattr(given, "__name__", "")
    if not callable(given) or not isinstance(name, str) or not name.isidentifier():
        raise InvalidRequestError(
            f"tools has {given!r}, which has no name that a model could call; define a function with def",
            field="tools",
        )
    return _looked_at(given, given, name, inspect.getdoc(given))


def _partial(given: "functools.partial[Any]") -> ToolCallable:
    """Those arguments that were given are not the model's."""
    function = tool_callable(given.func)
    try:
        inspect.signature(given)
    except ValueError as error:
        raise _refused(f"tool {function.name} cannot be called as it is given: {error}") from None
    names = [parameter.name for parameter in function.parameters]
    done = {*names[: len(given.args)], *given.keywords}
    left = tuple(parameter for parameter in function.parameters if parameter.name not in done)
    return dataclasses.replace(function, parameters=left)


def _check_class(given: type) -> None:
    """A class is called to make an instance. That is what a model can do where this is its fields."""
    is_tuple = issubclass(given, tuple) and hasattr(given, "_fields")
    is_record = dataclasses.is_dataclass(given) or is_tuple or issubclass(given, msgspec.Struct)
    if not is_record and not hasattr(given, "model_fields"):
        name = given.__name__
        raise _refused(
            f"tools has the class {name}; give an object of it that can be called ({name}(...), whose __call__ "
            f"has type hints), one of its methods ({name}(...).method), or a function"
        )


def _looked_at(
    given: Callable[..., Any], hinted: Callable[..., Any], name: str, docstring: str | None
) -> ToolCallable:
    """``hinted``: what the type hints stand on."""
    try:
        hints = get_type_hints(hinted, include_extras=True)
        parameters = tuple(inspect.signature(given).parameters.values())
    except NameError as error:
        raise _refused(
            f"tool {name} has a type hint that is not known where it is defined: {error}; define the type "
            "at the module's top"
        ) from None
    except (TypeError, ValueError) as error:
        raise _refused(
            f"tool {name} does not say what parameters it has ({error}); define a function with def that calls "
            "it"
        ) from None
    if parameters and parameters[0].name == "self" and "self" not in hints:
        raise _refused(
            f"tool {name} is the method {getattr(given, '__qualname__', name)} without an object; give it with "
            f"one, as in tools=[the_object.{name}]"
        )
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise _refused(
                f"tool {name} has the parameter {parameter}; a model calls by name: give each its own"
            )
        if parameter.name not in hints:
            raise _refused(f"tool {name} has no type hint for {parameter.name!r}; add one")
    return ToolCallable(name, docstring or "", hints, parameters)


def _refused(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field="tools")
