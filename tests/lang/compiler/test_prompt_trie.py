"""The radix tree of prompts against sets of their beginnings."""

from hypothesis import given
from hypothesis import strategies as st

from ramet.lang.compiler.graph import Answer, Argument
from ramet.lang.compiler.prompt_trie import Mark, Node, PromptTrie, joined

pieces = st.lists(
    st.one_of(st.text("ab", max_size=5), st.builds(Answer, st.integers(0, 1)), st.just(Argument("x"))),
    max_size=5,
)


def add(trie: PromptTrie, prompt: list[str | Mark], node: Node | None = None) -> tuple[Node, list[str | Mark]]:
    """The prompt's end, and what of it was new."""
    node = node or trie.root
    new: list[str | Mark] = []
    for piece in prompt:
        node, added = trie.extend(node, piece)
        new += [] if added is None else [added]
    node.is_end = True
    return node, new


def units(prompt: list[str | Mark]) -> tuple[str | Mark, ...]:
    """Characters and marks."""
    return tuple(unit for piece in prompt for unit in (piece if isinstance(piece, str) else [piece]))


@given(st.lists(pieces, max_size=8))
def test_what_is_new_is_what_no_earlier_prompt_begins_with(prompts: list[list[str | Mark]]) -> None:
    trie = PromptTrie()
    known: set[tuple[str | Mark, ...]] = {()}
    ends: list[Node] = []
    for prompt in prompts:
        end, new = add(trie, prompt)
        ends.append(end)
        whole = units(prompt)
        beginnings = [whole[:length] for length in range(len(whole) + 1)]
        shared = max(len(one) for one in beginnings if one in known)
        assert units(new) == whole[shared:]
        known.update(beginnings)
    # Ends stay ends, however their edges were cut since.
    assert [end.pieces() for end in ends] == [joined(prompt) for prompt in prompts]
    if prompts:
        wholes = [units(prompt) for prompt in prompts]
        start = units(trie.common_start())
        assert all(whole[: len(start)] == start for whole in wholes)
        assert len({whole[: len(start) + 1] for whole in wholes}) > 1 or start in wholes


def test_a_prompt_may_go_on_from_the_middle_of_another_one() -> None:
    trie = PromptTrie()
    seam, _ = trie.extend(trie.root, "once upon ")
    add(trie, ["a time"], seam)
    assert add(trie, ["once upon a hill"])[1] == ["hill"]
    assert add(trie, ["a house"], seam)[1] == ["ouse"]
    assert seam.pieces() == ["once upon "]
    assert trie.common_start() == ["once upon a "]


def test_texts_that_follow_one_another_are_one() -> None:
    assert joined(["a", "b", Argument("x"), "c", ""]) == ["ab", Argument("x"), "c"]
    assert joined([]) == []
