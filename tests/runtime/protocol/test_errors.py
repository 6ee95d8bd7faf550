"""The tree at the top of errors.py is the tree of the classes."""

import builtins
import re

from ramet.runtime.protocol import errors


def test_docstring_draws_the_tree() -> None:
    drawn = re.findall(r"([├└│ ─]*)(\w+Error)", errors.__doc__ or "")
    classes = {name for name in vars(errors) if name.endswith("Error")}
    assert {name for _, name in drawn} - {"ValueError"} == classes
    stack: list[tuple[int, str]] = []
    for indent, name in drawn:
        if hasattr(builtins, name):
            continue
        depth = len(indent)
        while stack and stack[-1][0] >= depth:
            stack.pop()
        if stack:
            assert issubclass(getattr(errors, name), getattr(errors, stack[-1][1]))
        stack.append((depth, name))


def test_invalid_request_is_a_value_error_with_a_field() -> None:
    error = errors.InvalidRequestError("bad", field="top_p")
    assert isinstance(error, ValueError)
    assert isinstance(error, errors.RametError)
    assert error.field == "top_p"
