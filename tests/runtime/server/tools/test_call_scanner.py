"""One call, character by character."""

from ramet.runtime.server.tools.call_scanner import CallScanner, Progress


def scan(text: str) -> tuple[CallScanner, Progress]:
    scanner = CallScanner(frozenset(("f",)))
    progress = Progress.MORE
    for character in text:
        assert progress is Progress.MORE, f"nothing is left for {character!r}"
        progress = scanner.push(character)
    return scanner, progress


def test_a_call_is_certain_when_its_arguments_begin() -> None:
    scanner, progress = scan('{"name": "f", "arguments": ')
    assert (scanner.is_certain, progress) == (False, Progress.MORE)
    scanner.push("{")
    assert scanner.is_certain
    assert scanner.take_arguments() == "{"
    assert scanner.take_arguments() == ""


def test_ends() -> None:
    assert scan('{"name": "f"}')[1] is Progress.DONE
    assert scan('{"name": "f"}')[0].take_arguments() == "{}"
    assert scan('{"arguments": {"a": "}"}, "name": "f"}')[0].take_arguments() == '{"a": "}"}'
    assert scan('{"x": [1, {"y": "]"}], "name": "f", "n": -1.5e3}')[1] is Progress.DONE


def test_what_cannot_stand_there() -> None:
    for text in (
        "x",
        "{x",
        '{"a"x',
        '{"a":,',
        '{"a":1 x',
        '{"a":1,}',
        '{"name":5,',
        '{"name":"f","name":"f"',
        "{}",
    ):
        assert scan(text)[1] is Progress.BROKEN, text
    assert scan('{"arguments": 5,')[1] is Progress.BROKEN
    assert scan('{"name": "g"}')[1] is Progress.BROKEN
