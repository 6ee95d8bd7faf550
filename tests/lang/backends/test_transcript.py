"""Transcripts: text and messages of what was said, and roles in their order."""

import pytest

from ramet.lang.backends.transcript import Transcript
from ramet.lang.errors import ProgramStructureError


def test_text_and_messages() -> None:
    transcript = Transcript()
    transcript.append_text("before ")
    transcript.begin_role("user")
    transcript.append_text("a")
    transcript.append_text("")
    transcript.append_text("b {}")
    transcript.end_role("user")
    transcript.begin_role("tool")
    transcript.append_image("u")
    other = transcript.fork()
    transcript.append_text("c")
    assert transcript.text() == "before <|im_start|>user\nab {}<|im_end|>\n<|im_start|>tool\n<|image|>c"
    assert transcript.messages() == [
        {"role": "user", "content": "ab {}"},
        {
            "role": "tool",
            "content": [{"type": "image_url", "image_url": {"url": "u"}}, {"type": "text", "text": "c"}],
        },
    ]
    assert other.role == "tool"
    other.end_role("tool")
    assert transcript.role == "tool"


def test_roles_out_of_order() -> None:
    transcript = Transcript()
    with pytest.raises(ProgramStructureError, match="there is no role 'narrator'"):
        transcript.begin_role("narrator")
    with pytest.raises(ProgramStructureError, match="but the open role is None"):
        transcript.end_role("user")
    transcript.begin_role("user")
    with pytest.raises(ProgramStructureError, match="the system role begins inside the user role"):
        transcript.begin_role("system")
