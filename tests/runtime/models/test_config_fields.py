import pytest

from ramet.runtime.models.config_fields import ConfigFields
from ramet.runtime.protocol import ModelLoadError, UnsupportedModelError

FIELDS = ConfigFields(
    {"size": 4, "share": 0.5, "on": True, "name": "x", "ends": [3, 3, 4], "none": None, "inner": {"deep": 2}},
    source="config.json of Test",
)


def test_values_and_defaults() -> None:
    assert FIELDS.integer("size") == 4
    assert FIELDS.integer("none", 7) == 7
    assert FIELDS.optional_integer("none") is None
    assert FIELDS.number("size") == 4.0
    assert FIELDS.optional_number("share") == 0.5
    assert FIELDS.flag("on", False)
    assert FIELDS.flag("none", True)
    assert FIELDS.text("name") == "x"
    assert FIELDS.token_ids("ends") == (3, 4)
    assert FIELDS.token_id("size") == 4
    assert FIELDS.token_id("none") is None
    assert FIELDS.mentions("none")
    assert not FIELDS.mentions("absent")
    assert FIELDS.given() == {"size", "share", "on", "name", "ends", "inner"}


def test_nested_fields_name_where_they_are() -> None:
    inner = FIELDS.part("inner")
    assert inner is not None
    assert inner.integer("deep") == 2
    with pytest.raises(ModelLoadError, match=r"config\.json of Test, inner: the field other is missing"):
        inner.integer("other")
    assert FIELDS.part("none") is None
    with pytest.raises(ModelLoadError, match="size is 4; expected a mapping"):
        FIELDS.part("size")


def test_refusals_name_field_and_feature() -> None:
    FIELDS.refuse_unless("absent", (), "a feature")
    FIELDS.refuse_unless("none", (), "a feature")
    FIELDS.refuse_unless("size", (3, 4), "a feature")
    with pytest.raises(
        UnsupportedModelError, match=r"config\.json of Test: size=4 \(a feature\) is not implemented"
    ):
        FIELDS.refuse_unless("size", (1,), "a feature")


@pytest.mark.parametrize(
    ("getter", "name", "message"),
    [
        ("integer", "share", "share is 0.5; expected a whole number above 0"),
        ("integer", "on", "on is True; expected a whole number above 0"),
        ("number", "name", "name is 'x'; expected a number above 0"),
        ("text", "size", "size is 4; expected a string"),
        ("token_ids", "share", "share is 0.5; expected token ids"),
    ],
)
def test_wrong_types_are_named(getter: str, name: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        getattr(FIELDS, getter)(name)
    with pytest.raises(ModelLoadError, match="size is 4; expected true or false"):
        FIELDS.flag("size", True)
