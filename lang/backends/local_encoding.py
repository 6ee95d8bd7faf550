"""From a transcript to token ids: the rendered pieces are tokenised, what was generated is carried."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from ramet.lang.backends.local_rendering import Piece, Rendering, TranscriptRenderer, piece_text
from ramet.lang.backends.local_transcript import Generated, Opening, Transcript
from ramet.runtime.tokenizer import Segment, Tokenizer

EncodedChunk = tuple[Piece, tuple[int, ...]]
"""A part of a piece that is tokenised by itself: it begins at a special token, or with the piece."""
EncodedPiece = tuple[EncodedChunk, ...]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the engine takes it, and what it was made of."""

    token_ids: list[int]
    healable: str = ""
    """The program's own text at the very end; the template's is not part of it."""
    opening: Opening | None = None
    pieces: tuple[EncodedPiece, ...] = ()
    """To be reused when the transcript has grown."""


EMPTY = Encoded([])


class TranscriptEncoder:
    """Token ids of transcripts, by one model's tokenizer and chat template.

    The text between two generated parts is tokenised as one, with the template's special tokens in it as
    tokens, and without those that content spells. So the ids of a conversation in which nothing was generated
    are exactly those of ``encode_chat``.
    """

    def __init__(self, tokenizer: Tokenizer, renderer: TranscriptRenderer) -> None:
        self._tokenizer = tokenizer
        self._renderer = renderer
        self._begins_chunk: dict[int, bool] = {}

    def encode(self, transcript: Transcript, known: Encoded = EMPTY) -> Encoded:
        """``known``: of an earlier state of the same transcript; text that is as it was is not tokenised again.

        Raises what ``TranscriptRenderer.render`` raises.
        """
        rendering = self._renderer.render(transcript)
        known_pieces = iter(known.pieces)
        pieces = [
            self._encode_piece(piece, next(known_pieces, ()), is_first=index == 0)
            for index, piece in enumerate(rendering.pieces)
        ]
        token_ids: list[int] = []
        for piece, generated in zip(pieces, rendering.generated, strict=False):
            token_ids += self._join(_ids(piece), generated)
        token_ids += _ids(pieces[-1])
        return Encoded(token_ids, _healable(transcript, rendering), rendering.opening, tuple(pieces))

    def _encode_piece(self, piece: Piece, known: EncodedPiece, *, is_first: bool) -> EncodedPiece:
        """Chunk by chunk, so that of a piece that has grown only the end is tokenised."""
        chunks = self._chunks(piece)
        num_alike = len(list(takewhile(lambda pair: pair[0] == pair[1][0], zip(chunks, known, strict=False))))
        encoded = list(known[:num_alike])
        for chunk in chunks[num_alike:]:
            is_start = is_first and not encoded
            token_ids = self._tokenizer.encode_segments(chunk, add_bos=is_start, at_start=is_start)
            encoded.append((chunk, tuple(token_ids)))
        return tuple(encoded)

    def _chunks(self, piece: Piece) -> list[Piece]:
        """The piece cut in front of special tokens, across which nothing merges. At least one chunk."""
        chunks: list[list[Segment]] = [[]]
        for text, allows_special in piece:
            at = 0
            for start, _, token_id in self._tokenizer.special_text.spans(text) if allows_special else ():
                if self._is_boundary(token_id, text[start:]) and (start > at or chunks[-1]):
                    if start > at:
                        chunks[-1].append((text[at:start], True))
                    chunks.append([])
                    at = start
            if text[at:]:
                chunks[-1].append((text[at:], allows_special))
        return [tuple(chunk) for chunk in chunks]

    def _is_boundary(self, token_id: int, text: str) -> bool:
        """Whether the special token that ``text`` begins with leaves the white space in front of it alone."""
        known = self._begins_chunk.get(token_id)
        if known is None:
            _, end, _ = next(self._tokenizer.special_text.spans(text))
            space = self._tokenizer.encode(" ", at_start=False)
            both = self._tokenizer.encode(f" {text[:end]}", allow_special=True, at_start=False)
            known = self._begins_chunk[token_id] = both == [*space, token_id]
        return known

    def _join(self, token_ids: list[int], generated: Generated) -> Sequence[int]:
        """The ids of a piece, of which the generated ones take the place of the last."""
        count = generated.num_replaced
        if not count:
            return (*token_ids, *generated.token_ids)
        kept, cut = token_ids[:-count], token_ids[-count:]
        spelled = b"".join(self._tokenizer.token_bytes(token_id) or b"" for token_id in cut)
        if spelled == generated.replaced:
            return (*kept, *generated.token_ids)
        # The template has rewritten the text in front, as some do with what was reasoned in earlier turns.
        return (*token_ids, *self._tokenizer.encode(generated.text, at_start=False))


def _ids(piece: EncodedPiece) -> list[int]:
    return [token_id for _, token_ids in piece for token_id in token_ids]


def _healable(transcript: Transcript, rendering: Rendering) -> str:
    text = piece_text(rendering.pieces[-1])
    own = transcript.trailing_text()
    # Templates trim what a turn begins with.
    return next((part for part in (own, own.lstrip()) if part and text.endswith(part)), "")
