"""Formats: examples of each, and what ours accepts the checker of jsonschema accepts too."""

from random import Random

import pytest
from jsonschema import Draft202012Validator

from ramet.runtime.grammar.schema.automaton import matches
from ramet.runtime.grammar.schema.formats import KNOWN, NARROWED, REFUSED, format_regex
from ramet.runtime.grammar.schema.regex_parser import Alt, Chars, Regex, Repeat, Seq

EXAMPLES: dict[str, tuple[list[str], list[str]]] = {
    "date": (
        ["2024-02-29", "2000-02-29", "0001-12-31"],
        ["2023-02-29", "1900-02-29", "2023-1-1"],
    ),
    "time": (["00:00:00Z", "23:59:59.5+01:00"], ["24:00:00Z", "12:00:00", "12:00Z"]),
    "date-time": (
        ["2023-01-01T00:00:00Z", "2023-01-01t00:00:00.1-05:30"],
        ["2023-01-01", "2023-02-30T00:00:00Z"],
    ),
    "duration": (["P1Y", "PT1H30M", "P2W", "P1DT2S"], ["P", "PT", "P1D2H", "1D", "P1W1D"]),
    "email": (["a@b.c", "a.b+c@d", '"a b"@c.d', "a@[127.0.0.1]"], ["@c", "a..b@c", "a", "a@-b"]),
    "hostname": (["a", "a-b.c1", "a" * 63], ["-a", "a-", "a" * 64, "a..b", "", "xn--a"]),
    "ipv4": (["1.2.3.4", "255.255.255.255"], ["256.1.1.1", "01.2.3.4", "1.2.3"]),
    "ipv6": (["::", "::1", "1::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1::2::3", "12345::", "1:2:3"]),
    "uuid": (["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]),
    "uri": (["http://a.b/c?d#e", "urn:a:b", "http://[::1]:80/"], ["//a", "a", "http://a b", "http://a/%zz"]),
    "uri-reference": (["/a", "#a", "", "a:b", "//x/y"], ["\\a", "a b"]),
    "iri": (["http://ƒøø.ßår/?q=é"], ["a"]),
    "iri-reference": (["/é"], ["a b"]),
    "uri-template": (["http://a/{b}", "{+a:3}{?x,y*}"], ["{", "{}"]),
    "regex": (["a+", "(a|b)*", "[a-z]{2}", "^\\d+$"], ["(", "[", "a**", "\\"]),
    "json-pointer": (["", "/a/0", "/~0~1"], ["a", "/~2"]),
    "relative-json-pointer": (["0", "1/a", "2#"], ["/a", "-1", "01"]),
}


def test_every_format_has_examples() -> None:
    assert EXAMPLES.keys() == KNOWN
    assert not KNOWN & REFUSED
    assert NARROWED.keys() <= KNOWN


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_examples(name: str) -> None:
    valid, invalid = EXAMPLES[name]
    assert [text for text in valid if not matches(format_regex(name), text)] == []
    assert [text for text in invalid if matches(format_regex(name), text)] == []


@pytest.mark.parametrize(
    "name", sorted(KNOWN - {"iri", "iri-reference", "relative-json-pointer", "uri-template"})
)
def test_what_is_written_passes_the_checker(name: str) -> None:
    random = Random(1)
    checker = Draft202012Validator.FORMAT_CHECKER
    written = [_member(format_regex(name), random) for _ in range(150)]
    assert [text for text in written if len(text) < 254 and not checker.conforms(text, name)] == []


def _member(regex: Regex, random: Random) -> str:
    match regex:
        case Chars(chars):
            low, high = random.choice(chars)
            return chr(random.randint(low, min(high, low + 80)))
        case Seq(items):
            return "".join(_member(item, random) for item in items)
        case Alt(items):
            return _member(random.choice(items), random)
        case Repeat(item, low, high):
            count = random.randint(low, low + 2 if high is None else min(high, low + 2))
            return "".join(_member(item, random) for _ in range(count))
        case _:
            raise AssertionError(regex)
