"""Small Hugging Face folders, written without transformers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from torch import Tensor

from tests.runtime.models.loading.tiny_gguf import vocabulary


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor], *, num_shards: int = 1
) -> None:
    """config.json, tokenizer and safetensors, in shards with an index where there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder, config["vocab_size"])
    if num_shards == 1:
        save_file(dict(tensors), folder / "model.safetensors")
        return
    weight_map: dict[str, str] = {}
    for number in range(num_shards):
        name = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        shard = dict(list(tensors.items())[number::num_shards])
        save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_tokenizer(folder: Path, size: int) -> None:
    tokens, _ = vocabulary(size)
    tokenizer = Tokenizer(
        BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[("t", "h"), ("th", "e")])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2TokenizerFast", **names}))
