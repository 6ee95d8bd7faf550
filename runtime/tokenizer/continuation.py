"""A tokenizer for text that continues other text."""

import json
from typing import Any


def without_leading_space(tokenizer_json: str) -> str:
    """The same tokenizer, in the `tokenizers` library's format, that puts no space in front of a text.

    Takes out the two ways to put it there: the Prepend normalizer and Metaspace's prepend scheme.
    """
    content = json.loads(tokenizer_json)
    content["normalizer"] = _without_prepend(content.get("normalizer"))
    for step in _steps(content.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
    return json.dumps(content, ensure_ascii=False)


def _without_prepend(normalizer: dict[str, Any] | None) -> dict[str, Any] | None:
    kept = [step for step in _steps(normalizer, "normalizers") if step["type"] != "Prepend"]
    return {"type": "Sequence", "normalizers": kept} if kept else None


def _steps(part: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    if part is None:
        return []
    steps: list[dict[str, Any]] = part[name] if part["type"] == "Sequence" else [part]
    return steps
