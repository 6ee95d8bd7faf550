"""The embedded models' greedy text is transformers' greedy text: 20 prompts, 64 tokens, fp32.

transformers reads the same GGUF file and is asked once per prompt, over prompt and answer together: the
answer is its own greedy one exactly if each token is the most probable after the tokens before it, or as
probable as that but for the rounding of sums.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ramet import Engine
from ramet.runtime.env import environment
from ramet.runtime.models.loading.embedded import EMBEDDED, locate
from ramet.runtime.protocol import ModelLoadError

# transformers takes minutes to read a large vocabulary where others share the machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

NUM_TOKENS = 64
TIE = 1e-3
"""Between logits that are closer than this the order of fp32's sums decides, which differs between CPUs."""
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a fox who",
    "def fibonacci(n):\n    ",
    "Water boils at 100 degrees because",
    "Q: What is 17 + 25?\nA:",
    "In 1969, humans first",
    "A recipe for pancakes: take two eggs,",
    "The three laws of motion say that",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "La tour Eiffel se trouve à",
    "My favourite book is the one in which",
    '{"name": "Ada", "born": 1815, "known for":',
    "If you multiply a negative number by",
    "The difference between a virus and a bacterium is",
    "She opened the door, and",
    "1, 1, 2, 3, 5, 8, 13,",
    "Photosynthesis is",
    "It was the best of times, it was the worst of times,",
    "To be healthy you should",
]


@pytest.fixture(scope="module", params=["smollm2", "gemma3-270m"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Engine, Any]]:
    """ramet's engine and transformers' model of the same file."""
    transformers = pytest.importorskip("transformers")
    try:
        path = _gguf_path(request.param)
    except ModelLoadError as error:
        pytest.skip(str(error))
    transformers.utils.logging.disable_progress_bar()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    with Engine(request.param, dtype="float32", quantization="none", kv_tokens=4096) as engine:
        yield engine, oracle


def test_greedy_text_is_that_of_transformers(pair: tuple[Engine, Any]) -> None:
    engine, oracle = pair
    outputs = engine.generate(PROMPTS, temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, progress=False)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        assert len(output.token_ids) == NUM_TOKENS
        start = len(output.prompt_token_ids)
        ids = torch.tensor([output.prompt_token_ids + output.token_ids[:-1]])
        with torch.inference_mode():
            logits = oracle(ids).logits[0, start - 1 :]
        chosen = logits.gather(-1, torch.tensor(output.token_ids)[:, None])[:, 0]
        assert (logits.amax(-1) - chosen).max() <= TIE, prompt


def _gguf_path(name: str) -> Path:
    return locate(EMBEDDED[name], environment().cache_dir, lambda _: None)


def test_embeddings_are_transformers_hidden_states(pair: tuple[Engine, Any]) -> None:
    """At the last position, and on average over all of them, behind the last norm."""
    engine, oracle = pair
    prompts = [engine.tokenizer.encode(prompt, add_bos=True) for prompt in PROMPTS[:6]]
    with torch.inference_mode():
        states = [
            oracle(input_ids=torch.tensor([token_ids]), output_hidden_states=True).hidden_states[-1][0]
            for token_ids in prompts
        ]
    for pooling in ("last", "mean"):
        found = engine.embed(prompts, pooling=pooling, normalize=False)
        for one, own in zip(found, states, strict=True):
            expected = own[-1] if pooling == "last" else own.mean(dim=0)
            assert (torch.tensor(one.embedding) - expected).norm() < 1e-3 * expected.norm()
