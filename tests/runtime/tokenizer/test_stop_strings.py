"""The automaton of many stop strings against looking at the text's end each time."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.tokenizer.stop_strings import StopStringAutomaton

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=6)


def longest_beginning(text: str, stops: list[str]) -> int:
    """The length of the longest end of the text with which a stop begins."""
    return max(
        (n for stop in stops for n in range(1, len(stop) + 1) if text.endswith(stop[:n])),
        default=0,
    )


def longest_hit(text: str, stops: list[str]) -> int | None:
    ending = [(-len(stop), index) for index, stop in enumerate(stops) if text.endswith(stop)]
    return min(ending)[1] if ending else None


@given(text=st.text("abc", max_size=30), stops=STOPS)
def test_states_are_what_looking_at_the_text_says(text: str, stops: list[str]) -> None:
    automaton, state = StopStringAutomaton(stops), 0
    for end in range(1, len(text) + 1):
        state = automaton.step(state, text[end - 1])
        assert automaton.depths[state] == longest_beginning(text[:end], stops)
        assert automaton.hits[state] == longest_hit(text[:end], stops)


@given(stops=STOPS, data=st.data())
def test_a_step_depends_on_the_state_alone(stops: list[str], data: st.DataObject) -> None:
    """Two texts that lead to one state go on alike, and steps change nothing in the automaton."""
    automaton = StopStringAutomaton(stops)
    before = automaton.depths[:], automaton.hits[:]
    seen: dict[tuple[int, str], int] = {}
    for _ in range(3):
        state = 0
        for character in data.draw(st.text("abc", max_size=12)):
            following = automaton.step(state, character)
            assert seen.setdefault((state, character), following) == following
            state = following
    assert (automaton.depths, automaton.hits) == before


def test_no_stops() -> None:
    automaton = StopStringAutomaton([])
    assert automaton.step(0, "a") == 0
    assert (automaton.stops, automaton.depths, automaton.hits) == ((), [0], [None])


def test_of_two_that_end_together_the_longer_counts_and_of_equal_ones_the_first() -> None:
    automaton = StopStringAutomaton(["b", "ab", "ab", "b"])
    state = automaton.step(0, "b")
    assert automaton.hits[state] == 0
    state = automaton.step(automaton.step(0, "a"), "b")
    assert automaton.hits[state] == 1


def test_a_stop_inside_another_is_found_on_the_way() -> None:
    automaton, state, found = StopStringAutomaton(["she", "he", "hers", "is"]), 0, []
    for character in "ushers":
        state = automaton.step(state, character)
        if (index := automaton.hits[state]) is not None:
            found.append(automaton.stops[index])
    assert found == ["she", "hers"]


def test_stops_that_begin_alike_share_their_states() -> None:
    stops = ["".join(letters) for letters in itertools.product("ab", repeat=8)]
    assert len(StopStringAutomaton(stops).depths) == 2**9 - 1
    assert max(StopStringAutomaton(stops).depths) == 8


def test_a_stop_of_many_equal_characters() -> None:
    """The fallbacks of such a stop form one chain; a mismatch at its end goes all the way down."""
    automaton, state = StopStringAutomaton(["a" * 5000 + "b"]), 0
    for _ in range(6000):
        state = automaton.step(state, "a")
    assert automaton.depths[state] == 5000
    assert automaton.hits[automaton.step(state, "b")] == 0
    assert automaton.step(state, "c") == 0
