"""From a transcript to token ids: the rendered pieces are tokenised, what was generated is carried."""

from collections.abc import Sequence
from dataclasses import dataclass

from ramet.lang.backends.local_rendering import Piece, Rendering, TranscriptRenderer, piece_text
from ramet.lang.backends.local_transcript import Generated, Opening, Transcript
from ramet.runtime.tokenizer import Tokenizer

EncodedPiece = tuple[Piece, tuple[int, ...]]


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

    def encode(self, transcript: Transcript, known: Encoded = EMPTY) -> Encoded:
        """``known``: of an earlier state of the same transcript; text that is as it was is not tokenised again.

        Raises what ``TranscriptRenderer.render`` raises.
        """
        rendering = self._renderer.render(transcript)
        pieces = [
            known.pieces[index]
            if index < len(known.pieces) and known.pieces[index][0] == piece
            else (piece, self._encode_piece(piece, is_first=index == 0))
            for index, piece in enumerate(rendering.pieces)
        ]
        token_ids: list[int] = []
        for encoded, generated in zip(pieces, rendering.generated, strict=False):
            token_ids += self._join(encoded, generated)
        token_ids += pieces[-1][1]
        return Encoded(
            token_ids,
            _healable(transcript, rendering),
            rendering.opening,
            tuple(pieces),
        )

    def _encode_piece(self, piece: Piece, *, is_first: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_segments(piece, add_bos=is_first, at_start=is_first))

    def _join(self, encoded: EncodedPiece, generated: Generated) -> Sequence[int]:
        """The piece's ids, of which the generated ones take the place of the last."""
        token_ids = encoded[1]
        count = generated.num_replaced
        if not count:
            return (*token_ids, *generated.token_ids)
        kept, cut = token_ids[:-count], token_ids[-count:]
        spelled = b"".join(self._tokenizer.token_bytes(token_id) or b"" for token_id in cut)
        if spelled == generated.replaced:
            return (*kept, *generated.token_ids)
        # The template has rewritten the text in front, as some do with what was reasoned in earlier turns.
        return (*token_ids, *self._tokenizer.encode(generated.text, at_start=False))


def _healable(transcript: Transcript, rendering: Rendering) -> str:
    text = piece_text(rendering.pieces[-1])
    own = transcript.trailing_text()
    # Templates trim what a turn begins with.
    return next((part for part in (own, own.lstrip()) if part and text.endswith(part)), "")
