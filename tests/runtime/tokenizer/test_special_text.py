"""SpecialTextScanner against a plain leftmost-longest search."""

from hypothesis import given
from hypothesis import strategies as st

from ramet.runtime.tokenizer.special_text import SpecialTextScanner

texts = st.text("<a|>", min_size=1, max_size=4)


@given(
    special=st.lists(texts, max_size=4, unique=True),
    rivals=st.lists(texts, max_size=2),
    text=st.text("<a|> ", max_size=20),
)
def test_leftmost_longest(special: list[str], rivals: list[str], text: str) -> None:
    ids = {item: i for i, item in enumerate(special)}
    rivals = [rival for rival in rivals if rival not in ids and any(rival[0] == item[0] for item in special)]
    wanted, at = [], 0
    while at < len(text):
        here = max((item for item in [*special, *rivals] if text.startswith(item, at)), key=len, default="")
        if here in ids:
            wanted.append((at, at + len(here), ids[here]))
        at += len(here) or 1
    assert list(SpecialTextScanner(ids, rivals).spans(text)) == wanted


@given(special=st.lists(texts, max_size=4, unique=True), text=st.text("<a|> ", max_size=8))
def test_parts(special: list[str], text: str) -> None:
    scanner = SpecialTextScanner({item: i for i, item in enumerate(special)})
    beginnings = {item[:n] for item in special for n in range(1, len(item))}
    ends = {item[n:] for item in special for n in range(1, len(item))}
    assert scanner.ending_part(text) == max(
        (n for n in range(1, len(text) + 1) if text[-n:] in beginnings), default=0
    )
    assert scanner.beginning_part(text) == max(
        (n for n in range(1, len(text) + 1) if text[:n] in ends), default=0
    )


def test_time_does_not_depend_on_the_number_of_special_tokens() -> None:
    """Thousands of special tokens and a text full of their first character: still a few steps per place."""
    scanner = SpecialTextScanner({f"<unused{i}>": i for i in range(6000)})
    spans = list(scanner.spans("<" * 50_000 + "<unused5999>"))
    assert spans == [(50_000, 50_012, 5999)]
