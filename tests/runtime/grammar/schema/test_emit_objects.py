"""Objects with counted properties, written out."""

from itertools import combinations

import pytest

from ramet.runtime.grammar.schema import objects
from ramet.runtime.grammar.schema.algebra import Algebra
from ramet.runtime.grammar.schema.emit_objects import expand_object, forbid_names, spare_names
from ramet.runtime.grammar.schema.records import Unsupported
from ramet.runtime.grammar.schema.regex_syntax import parse_pattern
from ramet.runtime.grammar.schema.shapes import ANY, NEVER, NUMBER, Node, Object, Some

OBJECTS = [dict.fromkeys(names, 1) for size in range(6) for names in combinations("abcxy", size)]
ABC = tuple((name, ANY) for name in "abc")
HAS_X = parse_pattern("x").required[0]
MANY = tuple((f"p{index}", ANY) for index in range(20))


@pytest.mark.parametrize(
    "value",
    [
        Object(props=ABC, rest=NEVER, low=2),
        Object(props=ABC, rest=NEVER, high=1),
        Object(props=ABC, rest=NEVER, low=1, high=2),
        Object(props=ABC, low=1),
        Object(props=ABC, high=2),
        Object(props=ABC, required=frozenset("a"), low=2, high=3),
        Object(props=ABC, some=(Some(frozenset("ab"), (), None, ANY),)),
        Object(high=1, some=(Some(frozenset(), (), HAS_X, ANY), Some(frozenset("a"), (), None, ANY))),
        Object(props=ABC, high=1, some=(Some(frozenset("ab"), (HAS_X,), None, ANY),)),
        Object(props=ABC, required=frozenset("a"), high=1, some=(Some(frozenset(), (), HAS_X, ANY),)),
        Object(
            patterns=((HAS_X, Node((NUMBER,))),), high=1, rest=NEVER, some=(Some(frozenset(), (), None, ANY),)
        ),
    ],
)
def test_the_union_is_the_object(value: Object) -> None:
    algebra, found = Algebra(lambda name: NEVER, 100_000), list[Unsupported]()
    plain = expand_object(value, algebra, found.append)
    assert not found
    for item in plain:
        optional = [name for name, node in item.props if name not in item.required and not node.is_never]
        assert not item.some
        assert not optional or (not item.low and item.high is None)
    for members in OBJECTS:
        inside = objects.accepts(value, members, algebra)
        assert inside == any(objects.accepts(item, members, algebra) for item in plain)


@pytest.mark.parametrize(
    ("value", "keyword"),
    [
        (Object(low=2), "minProperties"),
        (Object(props=ABC, low=5), "minProperties"),
        (Object(props=MANY, rest=NEVER, low=7, high=9), "minProperties"),
        (Object(props=MANY, high=9), "maxProperties"),
        (Object(some=(Some(frozenset(), (), None, Node((NUMBER,))),)), "not"),
    ],
)
def test_what_cannot_be_counted_is_reported(value: Object, keyword: str) -> None:
    found = list[Unsupported]()
    expand_object(value, Algebra(lambda name: NEVER, 100_000), found.append)
    assert {issue.keyword for issue in found} == {keyword}


def test_classes_without_names() -> None:
    regex = parse_pattern("^[ab]$").required[0]
    value = Object(patterns=forbid_names(((regex, ANY),), ["a", "z"]), rest=NEVER)
    assert [objects.property_node(value, name) for name in "abz"] == [NEVER, ANY, NEVER]
    freer = Object(props=(("a", ANY),), patterns=((regex, Node((NUMBER,))),))
    spared = Object(patterns=spare_names(freer, Algebra(lambda name: NEVER, 100)))
    assert objects.property_node(spared, "a") == ANY
    assert objects.property_node(spared, "b") == Node((NUMBER,))


@pytest.mark.parametrize(
    ("pattern", "rest", "expected"),
    [
        ("^[abc]$", NEVER, (False, False)),
        ("^[abcd]$", NEVER, (True, False)),
        ("^[abc]$", ANY, (False, True)),
        ("", ANY, (True, False)),
        ("^[^a-c]|^$|^[\\s\\S]{2}", ANY, (True, False)),
        ("^[^a-c]|^$|^..", ANY, (True, True)),
    ],
)
def test_names_that_are_all_listed_leave_no_class_of_others(
    pattern: str, rest: Node, expected: tuple[bool, bool]
) -> None:
    """Whether there is a class of the pattern's names, and names of neither, for each."""
    (regex,) = parse_pattern(pattern).required
    algebra, found = Algebra(lambda name: NEVER, 100_000), list[Unsupported]()
    (plain,) = expand_object(Object(props=ABC, patterns=((regex, ANY),), rest=rest), algebra, found.append)
    assert (bool(plain.patterns), not plain.rest.is_never) == expected
    counted = Object(props=ABC, patterns=((regex, ANY),), rest=rest, low=4)
    alternatives = expand_object(counted, algebra, found.append)
    assert bool(alternatives) == any(expected)
