"""What a compiled program's body does behind the last thing that it says: it reads, and returns.

``return s["answer"]`` waits for ``answer``, and the compiler could not know that nothing follows. Where that
can be seen in the source, the body tells it before it reads: the piece is then the whole of the program, which
a server can run by itself. Nothing depends on its being true: what is said behind it is carried out too.
"""

import ast
import builtins
from collections.abc import Callable

_READING = frozenset({"text", "messages", "get_meta_info", "get_var", "error"})
"""Methods of a state that say nothing."""
_SAYING = frozenset(
    {"fork", "copy", "join", "system", "user", "assistant", "var_scope", "set_var", "cancel", "sync", "append"}
)
_BUILT_IN = frozenset(dir(builtins))


def mark_end(definition: ast.FunctionDef, make_mark: Callable[[str], ast.stmt]) -> int:
    """Puts marks before what the body reads at its end, and before ``return`` of something read anywhere.

    ``make_mark``: the statement, for the state's name. Statements inside ``try`` and ``with`` stay as they are,
    since something may be said as they end. Returns how many there are.
    """
    parameters = [*definition.args.posonlyargs, *definition.args.args]
    if not parameters:
        return 0
    state = parameters[0].arg
    marker = _Marker(state, make_mark)
    body = definition.body
    begin = len(body)
    while begin and isinstance(body[begin - 1], ast.Assign | ast.AnnAssign | ast.Return):
        if not _is_quiet(body[begin - 1], state):
            break
        begin -= 1
    tail = body[begin:]
    definition.body = [marker.visit(statement) for statement in body[:begin]]
    if any(_reads(statement, state) for statement in tail):
        definition.body.append(marker.mark())
    definition.body += tail
    return marker.num_marks


class _Marker(ast.NodeTransformer):
    """Marks the ``return`` statements of one function."""

    def __init__(self, state: str, make_mark: Callable[[str], ast.stmt]) -> None:
        self._state = state
        self._make_mark = make_mark
        self.num_marks = 0

    def mark(self) -> ast.stmt:
        self.num_marks += 1
        return self._make_mark(self._state)

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if not _is_quiet(node, self._state) or not _reads(node, self._state):
            return node
        # One statement for one: the caller's list is of statements.
        return ast.copy_location(ast.If(ast.Constant(True), [self.mark(), node], []), node)

    def _left_alone(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _left_alone
    visit_Try = visit_TryStar = visit_With = visit_AsyncWith = _left_alone


def _is_quiet(statement: ast.stmt, state: str) -> bool:
    """Nothing in it looks as if it said something."""
    for node in ast.walk(statement):
        match node:
            case ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr() | ast.Lambda():
                return False
            case ast.Assign(targets) if not all(isinstance(target, ast.Name | ast.Tuple) for target in targets):
                # ``s["name"] = value`` makes a variable.
                return False
            case ast.Call(ast.Attribute(ast.Name(name), method)) if name == state:
                if method not in _READING:
                    return False
            case ast.Call(ast.Attribute(ast.Name(), method)) if method in _SAYING:
                return False
            case ast.Call(ast.Name(name), arguments) if name not in _BUILT_IN:
                if any(isinstance(one, ast.Name) and one.id == state for one in arguments):
                    return False
    return True


def _reads(statement: ast.stmt, state: str) -> bool:
    for node in ast.walk(statement):
        match node:
            case ast.Subscript(ast.Name(), ast.Constant(str()), ast.Load()):
                return True
            case ast.Call(ast.Attribute(ast.Name(name), method)) if name == state and method in _READING:
                return True
    return False
