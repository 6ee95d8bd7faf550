"""The Python in README.md and docs/*.md runs as it stands there."""

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ramet import SamplingParams

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> Iterator[Any]:
    for page in PAGES:
        for number, code in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), start=1):
            yield pytest.param(code, id=f"{page.name}-{number}")


@pytest.fixture
def names(engine: Any) -> dict[str, Any]:
    """What a page's overview of the calls takes as given."""
    return {
        "engine": engine,
        "prompt": "Once upon a time",
        "prompts": ["Once upon a time", "In the beginning"],
        "messages": [{"role": "user", "content": "Hello"}],
        "sampling_params": SamplingParams(max_tokens=4, temperature=0),
        "request_id": "nobody",
    }


def test_the_readme_has_python() -> None:
    assert FENCE.search((ROOT / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("code", list(blocks()))
def test_a_block_runs(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    scope = dict(names)

    async def run() -> None:
        # A block with a top-level await evaluates to a coroutine, the others have run when eval returns.
        result = eval(compiled, scope)
        if inspect.iscoroutine(result):
            await result

    asyncio.run(run())
