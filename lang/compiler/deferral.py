"""Rewriting of a compiled program's body: what it reads only to say it, it does not wait for.

``s += f"Join: {s['a']}"`` waits for ``a`` although the program does nothing with it but put it into a prompt.
In a program that is compiled such a read becomes a node that says the value once it is there, so that what
comes later and does not need it can run meanwhile. Rewritten are ``name += ...`` statements whose target is a
state, and in them reads ``state["name"]`` in f-strings, in sums, and in the arguments of ``system``, ``user``
and ``assistant``. Statements inside ``try`` and ``with`` stay as they are: there an error may be meant to be
caught. What fails is raised all the same, at the next wait or at the program's end.
"""

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any, TypeVar

from ramet.lang import api
from ramet.lang.compiler.tail import mark_end
from ramet.lang.ir import Later, Node, Sequence, as_node
from ramet.lang.state import ProgramState, nothing_follows, variable_to_say

T = TypeVar("T", bound=ast.AST)

ROLES = (api.system, api.user, api.assistant)
_IS_STATE, _LATER, _JOINED, _ENDS = "ramet_is_state", "ramet_later", "ramet_joined", "ramet_ends"


def deferred(function: Callable[..., Any], *, says_its_end: bool = True) -> Callable[..., Any]:
    """The function rewritten; itself where its source is not there or it has nothing to rewrite.
    ``says_its_end``: it also tells when it only reads from there on (``compiler.tail``)."""
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        return function
    try:
        source = textwrap.dedent(inspect.getsource(function))
        (definition,) = ast.parse(source).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return function
    if not isinstance(definition, ast.FunctionDef) or definition.name != function.__name__:
        return function
    rewriter = _Rewriter(_names_of(function))
    definition.body = [rewriter.visit(statement) for statement in definition.body]
    num_marks = mark_end(definition, _end_mark) if says_its_end else 0
    if not rewriter.num_rewritten and not num_marks:
        return function
    return _compiled(definition, function)


def is_state(value: object) -> bool:
    return isinstance(value, ProgramState)


def ends(value: object) -> None:
    """The body says nothing any more."""
    if isinstance(value, ProgramState):
        nothing_follows(value)


def later(source: Any, name: str, *, formats: bool) -> Any:
    """``source[name]``; of a state as a node, where nobody can tell. ``formats``: it stands in an f-string."""
    if not isinstance(source, ProgramState):
        return format(source[name], "") if formats else source[name]
    variable = variable_to_say(source, name, formats=formats)
    if variable is None:
        return format(source[name], "") if formats else source[name]
    return Later(variable)


def joined(*parts: str | Node) -> str | Node:
    """An f-string's parts."""
    if all(isinstance(part, str) for part in parts):
        return "".join(str(part) for part in parts)
    return Sequence(tuple(as_node(part) for part in parts))


class _Rewriter(ast.NodeTransformer):
    """Statements of one function; functions inside of it are left alone."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names
        self.num_rewritten = 0

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        if not isinstance(node.target, ast.Name) or not isinstance(node.op, ast.Add):
            return node
        before = self.num_rewritten
        value = self._said(copy.deepcopy(node.value))
        if self.num_rewritten == before:
            return node
        target = ast.Name(node.target.id, ast.Load())
        rewritten = ast.AugAssign(node.target, node.op, value)
        return _located(ast.If(_call(_IS_STATE, target), [_located(rewritten, node)], [node]), node)

    def _left_alone(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _left_alone
    visit_Try = visit_TryStar = visit_With = visit_AsyncWith = _left_alone

    def _said(self, node: ast.expr) -> ast.expr:
        """An expression of which it is certain that it is said and nothing else."""
        match node:
            case ast.BinOp(left, ast.Add(), right):
                return _located(ast.BinOp(self._said(left), ast.Add(), self._said(right)), node)
            case ast.JoinedStr(values) if any(_is_plain_read(value) for value in values):
                return _located(_call(_JOINED, *(self._part(value) for value in values)), node)
            case ast.Subscript() if _is_read(node):
                return self._later(node, formats=False)
            case ast.Call(function, [argument], []) if self._value_of(function) in ROLES:
                return _located(ast.Call(function, [self._said(argument)], []), node)
            case _:
                return node

    def _part(self, value: ast.expr) -> ast.expr:
        if isinstance(value, ast.FormattedValue) and _is_plain_read(value):
            assert isinstance(value.value, ast.Subscript)
            return self._later(value.value, formats=True)
        return _located(ast.JoinedStr([value]), value)

    def _later(self, read: ast.Subscript, *, formats: bool) -> ast.expr:
        self.num_rewritten += 1
        keyword = ast.keyword("formats", ast.Constant(formats))
        return _located(_call(_LATER, read.value, read.slice, keyword=keyword), read)

    def _value_of(self, node: ast.expr) -> object:
        match node:
            case ast.Name(name):
                return self._names.get(name)
            case ast.Attribute(ast.Name(module), name) if inspect.ismodule(self._names.get(module)):
                return getattr(self._names[module], name, None)
            case _:
                return None


def _is_read(node: ast.expr) -> bool:
    match node:
        case ast.Subscript(ast.Name(), ast.Constant(str())):
            return True
        case _:
            return False


def _is_plain_read(node: ast.expr) -> bool:
    match node:
        case ast.FormattedValue(value, -1, None):
            return _is_read(value)
        case _:
            return False


def _call(name: str, *arguments: ast.expr, keyword: ast.keyword | None = None) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [] if keyword is None else [keyword])


def _end_mark(state: str) -> ast.stmt:
    return ast.Expr(_call(_ENDS, ast.Name(state, ast.Load())))


def _located(node: T, like: ast.AST) -> T:
    return ast.fix_missing_locations(ast.copy_location(node, like))


def _names_of(function: FunctionType) -> dict[str, object]:
    """What the function's free names stand for now."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {**function.__globals__, **{name: _content(cell) for name, cell in cells}}


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _compiled(definition: ast.FunctionDef, function: FunctionType) -> FunctionType:
    """The definition with the function's globals, cells and defaults, and its place in its file."""
    helpers = {_IS_STATE: is_state, _LATER: later, _JOINED: joined, _ENDS: ends}
    definition.decorator_list = []
    names = [*function.__code__.co_freevars, *helpers]
    outer = ast.FunctionDef(
        "ramet_outer",
        ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, []),
        [definition, ast.Return(ast.Name(definition.name, ast.Load()))],
        [],
    )
    module = ast.fix_missing_locations(ast.Module([outer], []))
    ast.increment_lineno(module, function.__code__.co_firstlineno - 1)
    code = _inner(compile(module, function.__code__.co_filename, "exec"), definition.name)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(helper) for name, helper in helpers.items()}
    made = FunctionType(
        code,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        tuple(cells[name] for name in code.co_freevars),
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__annotations__ = function.__annotations__
    made.__qualname__, made.__module__, made.__doc__ = (
        function.__qualname__,
        function.__module__,
        function.__doc__,
    )
    return made


def _inner(module: CodeType, name: str) -> CodeType:
    outer = next(code for code in module.co_consts if isinstance(code, CodeType))
    return next(code for code in outer.co_consts if isinstance(code, CodeType) and code.co_name == name)
