from ramet.runtime.grammar import CompiledGrammar, GrammarMatcher
from ramet.runtime.grammar.backend import Check, PartialGrammar, check_of


class Whole:
    def matcher(self) -> GrammarMatcher:
        raise LookupError("nobody asks for it")


class Part(Whole):
    def __init__(self, check: Check | None) -> None:
        self.check = check


def test_what_a_finished_answer_has_to_pass() -> None:
    check: Check = lambda text: [text]  # noqa: E731
    grammars: list[tuple[CompiledGrammar, Check | None]] = [
        (Whole(), None),
        (Part(None), None),
        (Part(check), check),
    ]
    for compiled, expected in grammars:
        assert check_of(compiled) is expected
    assert isinstance(Part(None), PartialGrammar)
    assert not isinstance(Whole(), PartialGrammar)
