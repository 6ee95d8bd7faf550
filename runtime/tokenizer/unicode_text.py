"""Checks on text that comes from outside."""

from ramet.runtime.protocol import InvalidRequestError


def check_text(text: str, field: str) -> None:
    """Raises InvalidRequestError where ``text`` has a lone surrogate; ``field`` names it in the message."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{field} has the lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is no character and cannot be tokenised; remove or replace it",
            field=field,
        ) from None
