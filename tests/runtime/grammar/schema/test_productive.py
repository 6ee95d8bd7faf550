"""Which definitions have a finite value, and which refer to themselves directly."""

from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.productive import baseless, productive, reachable
from ramet.runtime.grammar.schema.shapes import NEVER, Array, Literal, Node, Object, Ref, literal_of, value_of

DEFINITIONS = {
    "/endless": Node((Object(props=(("a", Node((Ref("/endless"),))),), required=frozenset("a")),)),
    "/list": Node((Array(prefix=(Node((Ref("/list"),)),)),)),
    "/pair": Node((Array(prefix=(Node((Ref("/endless"),)),), low=1), Ref("/leaf"))),
    "/leaf": literal_of([1]),
    "/one": Node((Ref("/two"), Literal((value_of(1),)))),
    "/two": Node((Ref("/one"),)),
    "/empty": NEVER,
}


def test_all() -> None:
    algebra = Algebra(DEFINITIONS.__getitem__, 1_000)
    root = Node(tuple(Ref(name) for name in DEFINITIONS))
    names = reachable(root, algebra)
    assert set(names) == set(DEFINITIONS)
    assert productive(names, algebra) == {"/list", "/pair", "/leaf", "/one", "/two"}
    assert baseless(names, algebra) in ("/one", "/two")
    for order in (sorted(names), sorted(names, reverse=True)):
        assert productive(order, algebra) == {"/list", "/pair", "/leaf", "/one", "/two"}
    assert baseless(["/endless", "/list", "/pair"], algebra) is None
