"""Which definitions have a finite value at all, and which refer to themselves without anything between."""

from collections import deque

from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.arrays import item
from ramet.runtime.grammar.schema.shapes import Array, Literal, Node, Object, Option, Ref


def reachable(root: Node, algebra: Algebra) -> list[str]:
    """The names of all definitions that ``root`` needs, in the order in which they are met; loads them."""
    names: dict[str, None] = {}
    stack = [root]
    while stack:
        node = stack.pop()
        children: list[Node] = []
        for option in node.options:
            if isinstance(option, Ref) and option.name not in names:
                names[option.name] = None
                children.append(algebra.definition(option.name))
            children += _parts(option)
        stack += reversed(children)
    return list(names)


def productive(names: list[str], algebra: Algebra) -> frozenset[str]:
    """Those of ``names`` that some finite value meets: the least fixed point."""
    dependents: dict[str, list[str]] = {}
    for name in names:
        for needed in _references(algebra.definition(name)):
            dependents.setdefault(needed, []).append(name)
    found: set[str] = set()
    # Looked at again only when something that it refers to has been found.
    pending = deque(names)
    while pending:
        name = pending.popleft()
        if name not in found and node_is_productive(algebra.definition(name), found):
            found.add(name)
            pending += dependents.get(name, ())
    return frozenset(found)


def node_is_productive(node: Node, found: frozenset[str] | set[str]) -> bool:
    return any(option_is_productive(option, found) for option in node.options)


def option_is_productive(option: Option, found: frozenset[str] | set[str]) -> bool:
    """Some finite value meets it, if exactly the definitions in ``found`` have one."""
    match option:
        case Ref(name):
            return name in found
        case Literal(values):
            return bool(values)
        case Array():
            needed = [item(option, index) for index in range(min(option.low, len(option.prefix) + 1))]
            needed += [contains.node for contains in option.contains if contains.low > 0]
            return all(node_is_productive(node, found) for node in needed)
        case Object():
            needed = [node for name, node in option.props if name in option.required]
            needed += [some.node for some in option.some]
            return all(node_is_productive(node, found) for node in needed)
        case _:
            return True


def baseless(names: list[str], algebra: Algebra) -> str | None:
    """A definition that refers back to itself before any array or object begins; None: there is none."""
    done: set[str] = set()
    for start in names:
        path: list[str] = []
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                done.add(name)
                continue
            if name in path:
                return name
            if name in done:
                continue
            path.append(name)
            stack.append((name, True))
            options = algebra.definition(name).options
            stack += [(option.name, False) for option in options if isinstance(option, Ref)]
    return None


def _references(node: Node) -> set[str]:
    """The definitions that a node names, at any depth."""
    names: set[str] = set()
    stack = [node]
    while stack:
        for option in stack.pop().options:
            if isinstance(option, Ref):
                names.add(option.name)
            stack += _parts(option)
    return names


def _parts(option: Option) -> list[Node]:
    match option:
        case Array():
            return [*option.prefix, option.rest, *(contains.node for contains in option.contains)]
        case Object():
            return [
                *(node for _, node in option.props),
                *(node for _, node in option.patterns),
                option.rest,
                *(some.node for some in option.some),
            ]
        case _:
            return []
