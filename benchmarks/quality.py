"""What int8 and int4 cost in quality against fp32: perplexity, KL divergence, agreement of the top token.

    python -m benchmarks.quality --out benchmarks/results
    python -m benchmarks.quality --model gemma3-270m --tokens 500

The text is the repository's own (the licence and the docs), in windows that are computed from their start.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.record import ROOT, Record, Sample, new_record, print_table, table_console, write
from ramet.kernels import native
from ramet.runtime.engine.build import NATIVE_FOLDER
from ramet.runtime.env import environment
from ramet.runtime.models.dense_attention import DenseSequence, dense_batch
from ramet.runtime.models.loading import load_model
from ramet.runtime.models.model import Model
from ramet.runtime.tokenizer import FastTokenizer, Tokenizer

TEXTS = ("LICENSE", "docs/architecture.md", "CONTRIBUTING.md")
WINDOW = 500
FP32, INT8_TORCH, INT8, INT4 = "fp32", "int8, torch", "int8", "int4"
COLUMNS = (
    ("perplexity", "perplexity", ".2f"),
    ("kl", "KL, nats", ".4f"),
    ("top1", "same top token", ".1%"),
)


def main(arguments: Sequence[str] | None = None) -> Record:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.quality", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--model", default="smollm2", help="as Engine takes it (default: smollm2)")
    parser.add_argument("--tokens", type=int, default=3000, help="of the text (default: 3000)")
    parser.add_argument("--out", type=Path, help="folder for quality.json; absent: print only")
    options = parser.parse_args(arguments)

    exact = load_model(options.model, quantization="none", dtype="float32", device="cpu")
    windows = text_windows(FastTokenizer(exact.tokenizer_spec), options.tokens)
    reference = [log_probabilities(exact.model, window) for window in windows]
    found = {FP32: reference, INT8_TORCH: probabilities_in(options.model, "int8", windows)}
    # The first to ask for them decides for the process: what torch computes comes before.
    why = native.enable(environment().cache_dir / NATIVE_FOLDER)
    if not why:
        found |= {name: probabilities_in(options.model, name, windows) for name in (INT8, INT4)}
    samples = [
        Sample(case=options.model, system=system, metrics=compare(windows, reference, candidate))
        for system, candidate in found.items()
    ]
    record = new_record(
        "quality",
        samples=samples,
        seed=0,
        settings={
            "model": options.model,
            "tokens": sum(map(len, windows)),
            "window": WINDOW,
            "texts": list(TEXTS),
        },
        notes=[f"no compiled kernels: {why}"] if why else [f"{INT8}, {INT4}: with the compiled kernels"],
    )
    print_table(table_console(), "Quality against fp32", record.medians, COLUMNS)
    if options.out is not None:
        write(record, options.out)
    return record


def probabilities_in(model: str, quantization: str, windows: Sequence[Sequence[int]]) -> list[Tensor]:
    loaded = load_model(model, quantization=quantization, device="cpu")
    return [log_probabilities(loaded.model, window) for window in windows]


def text_windows(tokenizer: Tokenizer, num_tokens: int) -> list[list[int]]:
    """The first ``num_tokens`` tokens of the texts; each window begins with the model's BOS, if any."""
    text = "\n\n".join((ROOT / name).read_text(encoding="utf-8") for name in TEXTS)
    ids = tokenizer.encode(text, add_bos=False)[:num_tokens]
    start = tokenizer.encode("", add_bos=True)
    return [start + ids[at : at + WINDOW] for at in range(0, len(ids), WINDOW)]


@torch.inference_mode()
def log_probabilities(model: Model, token_ids: Sequence[int]) -> Tensor:
    """[len(token_ids), vocab_size]."""
    return model.forward(dense_batch([(DenseSequence(), token_ids)], torch.device("cpu"))).log_softmax(-1)


def compare(
    windows: Sequence[Sequence[int]], reference: Sequence[Tensor], found: Sequence[Tensor]
) -> dict[str, float | None]:
    """Means over all positions: KL(reference || found), agreement of the argmax; and the found perplexity."""
    nll = torch.cat(
        [-p[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0] for ids, p in zip(windows, found, strict=True)]
    )
    kl = torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in zip(reference, found, strict=True)])
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in zip(reference, found, strict=True)])
    return {
        "perplexity": float(nll.mean().exp()),
        "kl": float(kl.mean()),
        "top1": float(same.float().mean()),
    }


if __name__ == "__main__":
    main()
