"""A conversation made short: what the model is asked for it, and the item that its summary travels in."""

import base64
import binascii

from ramet.runtime.protocol import InvalidRequestError

REQUEST = (
    "Summarise our conversation so far, so that it can go on from your summary alone. Keep names, numbers, "
    "decisions, results of tools, and what is still to do. Write the summary and nothing else."
)
PREAMBLE = "Summary of the conversation so far: "
"""In front of the summary where it stands in the place of what it sums up."""
MAX_SUMMARY_TOKENS = 1024
_MARK = "ramet-1."


def summary_tokens(context_length: int) -> int:
    """Most tokens of a summary: it must leave most of the context to what follows."""
    return max(1, min(MAX_SUMMARY_TOKENS, context_length // 4))


def packed(summary: str) -> str:
    """The ``encrypted_content`` of a compaction item. It hides nothing: whoever has it has had the
    conversation."""
    return _MARK + base64.urlsafe_b64encode(summary.encode("utf-8", "replace")).decode("ascii")


def unpacked(content: str, field: str) -> str:
    """Raises InvalidRequestError for what is no ``packed`` summary: another server's, say."""
    if content.startswith(_MARK):
        try:
            return base64.b64decode(content[len(_MARK) :], altchars=b"-_", validate=True).decode()
        except (binascii.Error, ValueError):
            pass  # Refused below, as everything else that is none.
    raise InvalidRequestError(
        f"{field} is {content[:80]!r}, which no /v1/responses/compact of this server gave; send the "
        "conversation as it was",
        field=field,
    )
