"""Transcripts as messages for chat APIs in OpenAI's form."""

from typing import Any

from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import UnsupportedError

Message = dict[str, Any]


def chat_messages(transcript: Transcript, name: str) -> tuple[list[Message], bool]:
    """The messages that ask for the assistant's next turn; and whether the last one is the assistant's own,
    which the answer goes on from.

    Raises:
        UnsupportedError: no assistant's turn is open, or there is text outside roles; ``name`` is the
        backend's.
    """
    if transcript.role != "assistant":
        where = "outside of any role" if transcript.role is None else f"inside the {transcript.role} role"
        raise UnsupportedError(
            f"{name} answers as the assistant only, and this call stands {where}; put it inside assistant(...)"
        )
    if _has_text_outside(transcript):
        raise UnsupportedError(
            f"{name} speaks messages only, and there is text outside of roles; put it inside one"
        )
    messages: list[Message] = [dict(message) for message in transcript.messages()]
    last = messages[-1]
    if "tool_calls" in last or last["content"]:
        return messages, True
    return messages[:-1], False


def without_bare_tool_messages(messages: list[Message]) -> list[Message]:
    """For servers to which a tool's message must name the call that it answers: one that names none, since the
    call was made in plain text, is the user's."""
    return [
        {**message, "role": "user"} if message["role"] == "tool" and "tool_call_id" not in message else message
        for message in messages
    ]


def prompt_text(transcript: Transcript, name: str) -> str:
    """The prompt of a text completion.

    Raises:
        UnsupportedError: the transcript has roles, images or tools.
    """
    for piece in transcript.pieces:
        if piece.kind != "text":
            raise UnsupportedError(
                f"{name} completes text, and knows no roles, images or tools; use a chat model, or write text"
            )
    return "".join(piece.content for piece in transcript.pieces)


def _has_text_outside(transcript: Transcript) -> bool:
    inside = False
    for piece in transcript.pieces:
        match piece.kind:
            case "begin":
                inside = True
            case "end":
                inside = False
            case _ if not inside and piece.content.strip():
                return True
    return False
