"""The words of the language: what users write into a program."""

import base64
import contextvars
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Unpack

from ramet.lang.errors import UnsupportedError
from ramet.lang.ir import (
    Expression,
    Gen,
    Image,
    Node,
    RoleBegin,
    RoleEnd,
    Select,
    SeparateReasoning,
    Sequence,
    ToolUse,
    as_node,
)
from ramet.lang.options import SAMPLING_OPTIONS, SamplingOptions, sampling, unknown_option
from ramet.lang.reasoning import reasoning_format
from ramet.lang.tool import Tool, check_on_error, tools_by_name
from ramet.lang.values import Constraint, dtype_constraint, json_constraint, json_document
from ramet.runtime.protocol import Ebnf, InvalidRequestError, Regex, StructuralTag


class ConstraintOptions(SamplingOptions, total=False):
    """What an answer must look like: one of these at most."""

    dtype: type | str | None
    regex: str | None
    json_schema: Any
    ebnf: str | None
    structural_tag: str | dict[str, Any] | None
    strict: bool | None


class GenOptions(ConstraintOptions, total=False):
    """All keyword arguments of ``gen``."""

    choices: SequenceOf[str] | None
    choices_method: "ChoicesMethod | str | None"
    priority: int | None
    lora: str | None
    tools: SequenceOf[Callable[..., Any] | Tool] | None
    tool_choice: str | None
    max_tool_rounds: int | None
    on_tool_error: str | None


class PlainGenOptions(SamplingOptions, total=False):
    """Keyword arguments of ``gen_int`` and ``gen_string``."""

    priority: int | None


@dataclass(frozen=True, slots=True)
class ChoicesMethod:
    """How ``select`` compares its options."""

    normalization: str


token_length_normalized = ChoicesMethod("token_length")
"""The option with the highest mean log probability per token."""
greedy_token_selection = ChoicesMethod("greedy")
"""Token by token the options that go on with the most probable token."""
unconditional_likelihood_normalized = ChoicesMethod("unconditional")
"""The option that the prompt makes more probable: mean of log p minus log p without the prompt."""
total_likelihood = ChoicesMethod("sum")
"""The option with the highest total log probability."""

_METHODS = {
    "token_length_normalized": token_length_normalized,
    "greedy_token_selection": greedy_token_selection,
    "unconditional_likelihood_normalized": unconditional_likelihood_normalized,
    "total_likelihood": total_likelihood,
}


def gen(name: str | None = None, max_tokens: int | None = None, **options: Unpack[GenOptions]) -> Node:
    """A call that generates; its answer becomes the variable ``name`` and part of the prompt.

    Options that are not given (or None) are the run's. Of ``dtype``, ``regex``, ``json_schema``, ``ebnf``,
    ``structural_tag`` and ``choices`` at most one may be given; the answer conforms to it or the call fails.

    Args:
        dtype: int, float or bool; or str, a text in double quotes whose value is what stands inside.
        json_schema: a dict or a text, whose value is the JSON text; a pydantic model, a dataclass or another
            type, whose value is an instance.
        strict: with ``json_schema``. False: a schema is not refused of which a part cannot be enforced;
            finished answers are validated and, where they are not valid, drawn again.
        choices: as ``select``; ``temperature``, ``seed`` and ``priority`` may go with it, nothing else.
        n: how many answers. With more than one the variable is their list, and the prompt goes on without them.
        priority: higher runs earlier.
        tools: Python functions with type hints. The model may call them, with arguments that conform to the
            hints, and is told the results, until it answers. Only inside the assistant role. The variable is
            the answer; ``get_meta_info`` has the calls.
        tool_choice: "auto", "none", "required" (the first round must call), or the name of the tool that the
            first round calls.
        lora: the name of a LoRA adapter that the server has loaded. Backends without adapters refuse it.
        max_tool_rounds: rounds of calls at most (8); then the model must answer.
        on_tool_error: "report": the model is told what a tool raised; "raise": the call fails with ToolError.

    Raises:
        InvalidRequestError: an option that there is not, or that has a wrong value.
    """
    return _gen(name, max_tokens, options)


def gen_int(name: str | None = None, max_tokens: int | None = None, **options: Unpack[PlainGenOptions]) -> Node:
    """``gen(dtype=int)``"""
    return _gen(name, max_tokens, {**options, "dtype": int})


def gen_string(
    name: str | None = None, max_tokens: int | None = None, **options: Unpack[PlainGenOptions]
) -> Node:
    """``gen(dtype=str)``: a text in double quotes; the variable is what stands inside."""
    return _gen(name, max_tokens, {**options, "dtype": str})


def select(
    name: str | None = None,
    choices: SequenceOf[str] | None = None,
    temperature: float = 0.0,
    choices_method: ChoicesMethod | str = token_length_normalized,
    *,
    seed: int | None = None,
    priority: int = 0,
) -> Select:
    """A call that continues the prompt with one of ``choices``: the best by ``choices_method``.

    With a ``temperature`` above 0 the option is drawn, with probability proportional to
    exp(score / temperature). The first of options that score the same wins.
    """
    _check_name(name)
    if isinstance(choices, str) or not isinstance(choices, SequenceOf):
        raise InvalidRequestError(f"choices is {choices!r}; it must be a list of strings", field="choices")
    if not choices:
        raise InvalidRequestError("choices is empty; give at least one string", field="choices")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise InvalidRequestError(
                f"choices has {choice!r}; each must be a string of at least 1 character", field="choices"
            )
    if len(set(choices)) < len(choices):
        twice = next(choice for choice in choices if list(choices).count(choice) > 1)
        raise InvalidRequestError(f"choices has {twice!r} twice; remove one", field="choices")
    if temperature is None:
        raise InvalidRequestError(
            "temperature is None; a select takes none of the run's: leave it out for 0.0", field="temperature"
        )
    # For the range of both, which is the same as for gen.
    sampling({"temperature": temperature, "seed": seed})
    return Select(
        name,
        tuple(choices),
        _method(choices_method).normalization,
        temperature,
        seed,
        _checked_priority(priority),
    )


def system(expression: Expression | None = None) -> Node:
    """The expression as a system message; without one, an empty message."""
    return _in_role("system", expression)


def user(expression: Expression | None = None) -> Node:
    return _in_role("user", expression)


def assistant(expression: Expression | None = None) -> Node:
    return _in_role("assistant", expression)


def system_begin() -> Node:
    return RoleBegin("system")


def system_end() -> Node:
    return RoleEnd("system")


def user_begin() -> Node:
    return RoleBegin("user")


def user_end() -> Node:
    return RoleEnd("user")


def assistant_begin() -> Node:
    return RoleBegin("assistant")


def assistant_end() -> Node:
    return RoleEnd("assistant")


def image(source: str | Path | bytes) -> Image:
    """An image: a file's path, its bytes, or a data: or http(s): URL. Which models see it is the backend's say.

    Raises:
        InvalidRequestError: the file cannot be read, or is no PNG, JPEG, GIF, WebP or BMP.
    """
    if isinstance(source, str) and source.startswith(("data:", "http://", "https://")):
        return Image(source)
    if isinstance(source, bytes):
        content = source
    else:
        try:
            content = Path(source).read_bytes()
        except (OSError, ValueError) as error:
            raise InvalidRequestError(
                f"image {str(source)[:80]!r} cannot be read: {error}", field="image"
            ) from None
    encoded = base64.b64encode(content).decode()
    return Image(f"data:{_media_type(content)};base64,{encoded}")


def video(source: str | Path | bytes, num_frames: int = -1) -> NoReturn:
    """There are no videos: it is here to say so by name.

    Raises:
        UnsupportedError: always.
    """
    raise UnsupportedError(
        f"video {str(source)[:80]!r}: no backend takes videos; say "
        f"{'its' if num_frames < 0 else num_frames} frames with image(...)"
    )


def separate_reasoning(expression: Expression, model_type: str = "qwen3") -> Node:
    """The answers inside the expression without their reasoning, which becomes ``name_reasoning_content``.

    Only the variables are split: the prompt has the answer as the model gave it. ``model_type`` says how the
    model marks its reasoning; deepseek-r1, qwen3, kimi, ... An unknown one raises InvalidRequestError with all.
    """
    return SeparateReasoning(as_node(expression), reasoning_format(model_type))


_TOOL_OPTIONS = ("tools", "tool_choice", "max_tool_rounds", "on_tool_error")
_CONSTRAINTS = ("dtype", "regex", "json_schema", "ebnf", "structural_tag")
_GEN_OPTIONS = (
    SAMPLING_OPTIONS | frozenset(GenOptions.__annotations__) | frozenset(ConstraintOptions.__annotations__)
)


def _gen(name: str | None, max_tokens: int | None, options: Mapping[str, Any]) -> Node:
    given = {key: value for key, value in options.items() if value is not None}
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    _check_name(name)
    for option in given:
        if option not in _GEN_OPTIONS:
            raise InvalidRequestError(unknown_option(option, _GEN_OPTIONS), field=option)
    if "choices" in given or "choices_method" in given:
        return _gen_choices(name, given)
    priority = _checked_priority(given.pop("priority", 0))
    tools = _tool_use(given)
    lora = given.pop("lora", None)
    if lora is not None and (not isinstance(lora, str) or not lora):
        raise InvalidRequestError(f"lora is {lora!r}; it must be the name of an adapter", field="lora")
    strict = given.pop("strict", None)
    constraint = _constraint({key: given.pop(key) for key in _CONSTRAINTS if key in given}, strict)
    more: dict[str, Any] = {}
    if constraint.grammar is not None:
        more["grammar"] = constraint.grammar
    if constraint.stop_regex:
        own = given.pop("stop_regex", ())
        more["stop_regex"] = (*((own,) if isinstance(own, str) else own), *constraint.stop_regex)
    options_given = sampling(given, **more)
    return Gen(name, options_given.params, options_given.given, constraint.parse, priority, tools, lora)


def _tool_use(given: dict[str, Any]) -> ToolUse | None:
    """Takes the options that are about tools out of those given."""
    options = {name: given.pop(name) for name in _TOOL_OPTIONS if name in given}
    if not options:
        return None
    if "tools" not in options:
        name = next(iter(options))
        raise InvalidRequestError(f"gen has {name} but no tools; give tools=[...]", field=name)
    tools = tools_by_name(options["tools"])
    for option in (*_CONSTRAINTS, "n"):
        if option in given and (option, given[option]) != ("n", 1):
            raise InvalidRequestError(
                f"gen has tools and {option}; a constraint would hold for the calls too, and several answers "
                f"would each call: say a gen with {option} after this one",
                field=option,
            )
    choice = options.get("tool_choice", "auto")
    known = ("auto", "none", "required", *tools)
    if choice not in known:
        raise InvalidRequestError(
            f"tool_choice is {choice!r}; it must be one of {', '.join(known)}",
            field="tool_choice",
        )
    max_rounds = options.get("max_tool_rounds", 8)
    if not isinstance(max_rounds, int) or isinstance(max_rounds, bool) or max_rounds < 1:
        raise InvalidRequestError(
            f"max_tool_rounds is {max_rounds!r}; it must be a whole number of at least 1",
            field="max_tool_rounds",
        )
    on_error = options.get("on_tool_error", "report")
    check_on_error(on_error, "on_tool_error")
    return ToolUse(tuple(tools.values()), contextvars.copy_context(), choice, on_error, max_rounds)


def _constraint(given: dict[str, Any], strict: bool | None) -> Constraint:
    if len(given) > 1:
        names = " and ".join(given)
        raise InvalidRequestError(f"gen has {names}; one answer takes one constraint", field=next(iter(given)))
    if strict is not None and "json_schema" not in given:
        raise InvalidRequestError(
            f"gen has strict={strict!r} but no json_schema, of which it speaks; leave it out", field="strict"
        )
    for name, value in given.items():
        match name, value:
            case "dtype", _:
                return dtype_constraint(value)
            case "json_schema", _:
                return json_constraint(value, strict=True if strict is None else strict)
            case "structural_tag", dict():
                return Constraint(StructuralTag(json_document(value, name)))
            case "structural_tag", str():
                return Constraint(StructuralTag(value))
            case "regex", str():
                return Constraint(Regex(value))
            case "ebnf", str():
                return Constraint(Ebnf(value))
            case _:
                raise InvalidRequestError(f"{name} is {value!r}; it must be a string", field=name)
    return Constraint()


def _gen_choices(name: str | None, given: dict[str, Any]) -> Select:
    allowed = ("choices", "choices_method", "temperature", "seed", "priority")
    for option in given:
        if option not in allowed:
            raise InvalidRequestError(
                f"gen with choices takes no {option}: it generates nothing, but selects; leave it out",
                field=option,
            )
    return select(name, given.pop("choices", None), **given)


def _in_role(role: str, expression: Expression | None) -> Node:
    inside = () if expression is None else (as_node(expression),)
    return Sequence((RoleBegin(role), *inside, RoleEnd(role)))


def _method(method: object) -> ChoicesMethod:
    if isinstance(method, ChoicesMethod):
        return method
    if isinstance(method, str) and method in _METHODS:
        return _METHODS[method]
    raise InvalidRequestError(
        f"choices_method is {method!r}; it must be one of {', '.join(_METHODS)}", field="choices_method"
    )


def _check_name(name: object) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidRequestError(
            f"name is {name!r}; it must be a string of at least 1 character", field="name"
        )


def _checked_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InvalidRequestError(f"priority is {priority!r}; it must be a whole number", field="priority")
    return priority


def _media_type(content: bytes) -> str:
    for signature, kind in (
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"\xff\xd8\xff", "jpeg"),
        (b"GIF8", "gif"),
        (b"BM", "bmp"),
    ):
        if content.startswith(signature):
            return f"image/{kind}"
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    raise InvalidRequestError("image is no PNG, JPEG, GIF, WebP or BMP; convert it", field="image")
