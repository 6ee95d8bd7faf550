"""What the child does with a spec, in this process."""

from pathlib import Path

import pytest

from ramet.runtime.grammar.service import PlainVocabulary
from ramet.runtime.grammar.service.frames import Passed, Refused, Setup
from ramet.runtime.grammar.service.probe_worker import address_space, answer, try_out
from ramet.runtime.protocol import Regex, UnsupportedConstraintError
from tests.runtime.grammar.service.troubled import BUILDER, VOCABULARY, TroubledBackend

SETUP = Setup(
    builder=BUILDER,
    vocabulary=PlainVocabulary.of(VOCABULARY),
    max_bytes=64 << 20,
    max_seconds=5.0,
    num_steps=10,
)


def test_a_grammar_passes() -> None:
    assert answer(TroubledBackend(), Regex("aaa"), SETUP) == Passed()
    assert answer(TroubledBackend(), Regex("a" * 50), SETUP) == Passed()


def test_what_the_backend_raises_becomes_a_record() -> None:
    assert answer(TroubledBackend(), Regex("refuse"), SETUP) == Refused(
        "UnsupportedConstraintError", "no, for a reason", "grammar"
    )
    assert answer(TroubledBackend(), Regex("fail"), SETUP) == Refused("RequestFailedError", "not now")
    bug = answer(TroubledBackend(), Regex("bug"), SETUP)
    assert isinstance(bug, Refused)
    assert (bug.kind, bug.field) == ("UnsupportedConstraintError", "grammar")
    assert "KeyError: 'a mistake'" in bug.message


def test_a_refusal_is_raised_by_try_out() -> None:
    with pytest.raises(UnsupportedConstraintError, match="for a reason"):
        try_out(TroubledBackend(), Regex("refuse"), 4, 3)


def test_the_address_space_is_known_where_the_system_says(tmp_path: Path) -> None:
    assert address_space(tmp_path / "no") == 0
    statm = tmp_path / "statm"
    statm.write_text("1000 20 3 4 5 6 7\n")
    assert address_space(statm) >= 1000 * 4096
