"""Nodes are joined by + in any order and nesting."""

import pytest

from ramet.lang import ProgramStructureError, gen, select, separate_reasoning, user
from ramet.lang.ir import Node, RoleBegin, Text, as_node, leaves
from ramet.lang.reasoning import FORMATS


def said(node: Node) -> list[str]:
    return [leaf.text for leaf, _ in leaves(node) if isinstance(leaf, Text)]


def test_plus_joins_in_order() -> None:
    a, b = Text("a"), Text("b")
    assert said("x" + a + "y" + (b + "z")) == ["x", "a", "y", "b", "z"]
    assert said(as_node("x")) == ["x"]


def test_long_sums_do_not_recurse() -> None:
    node: Node = Text("0")
    for index in range(1, 5000):
        node = node + str(index) if index % 2 else str(index) + node
    assert len(said(node)) == 5000


def test_reasoning_applies_to_what_is_inside() -> None:
    node = gen("a") + separate_reasoning("x" + gen("b"), "kimi") + gen("c")
    assert [format for _, format in leaves(node)] == [None, FORMATS["kimi"], FORMATS["kimi"], None]


@pytest.mark.parametrize("wrong", [3, None, ["a"], b"a"])
def test_other_things_are_refused(wrong: object) -> None:
    with pytest.raises(ProgramStructureError, match="convert it with str"):
        as_node(wrong)
    with pytest.raises(ProgramStructureError):
        Text("a") + wrong  # type: ignore[operator]


def test_unknown_nodes_are_refused() -> None:
    class Other(Node):
        pass

    with pytest.raises(ProgramStructureError, match="Other is not a node"):
        list(leaves(Other() + RoleBegin("user")))


@pytest.mark.parametrize("node", [gen("a"), select("a", ["x", "y"]), "a" + gen("b"), user("x")])
def test_an_f_string_would_only_show_a_node(node: Node) -> None:
    with pytest.raises(ProgramStructureError, match=r"stands in an f-string, .* beside the text"):
        f"text {node}"
    assert "RoleBegin" in repr(user("x"))
    assert f"{gen('a')!r}" == repr(gen("a"))
