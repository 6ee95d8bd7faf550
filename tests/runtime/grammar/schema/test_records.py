"""Refusals name the first constraint and count the others."""

import pytest

from ramet.runtime.grammar.schema import SchemaPlan, Unsupported
from ramet.runtime.grammar.schema.records import refusal
from ramet.runtime.protocol import UnsupportedConstraintError

MISSING = tuple(Unsupported(f"/p{index}", "not", "it cannot", "do without") for index in range(8))


def test_refusals() -> None:
    assert MISSING[0].location == "#/p0/not"
    assert Unsupported("", "", "why", "remedy").location == "#"
    one = refusal(MISSING[:1])
    assert str(one) == "the schema cannot be enforced at #/p0/not: it cannot; do without"
    assert one.field == "grammar"
    many = str(refusal(MISSING))
    assert "and 7 more: #/p1/not" in many
    assert many.endswith("...)")


def test_plans_choose() -> None:
    weak = SchemaPlan(source="{}", text="{}", unsupported=MISSING)
    assert weak.must_validate
    assert weak.choose("xgrammar", strict=False) == "xgrammar"
    with pytest.raises(UnsupportedConstraintError, match="#/p0/not"):
        weak.choose("xgrammar")
    blocked = SchemaPlan(source="{}", text="{}", obstacles={"llguidance": MISSING[:1]})
    assert blocked.engines == ("xgrammar", "outlines")
    assert blocked.safest_engine == "xgrammar"
    with pytest.raises(UnsupportedConstraintError, match="llguidance cannot enforce"):
        blocked.choose("llguidance", strict=False)
