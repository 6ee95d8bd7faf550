"""What a child process builds in tests, named on its command line; no torch, no weights."""

import os
import time
from dataclasses import dataclass

from tokenizers import Tokenizer, models, pre_tokenizers

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.loop import Core
from ramet.runtime.protocol import ModelLoadError, TextOutput, UnsupportedModelError
from ramet.runtime.tokenizer import Spelling, TokenizerSpec
from ramet.runtime.tokenizer.spelling import byte_alphabet
from tests.runtime.engine.fake_core import CountingCore


def byte_spec() -> TokenizerSpec:
    """ByteTokenizer's ids as the `tokenizers` library writes them."""
    library = Tokenizer(models.BPE(vocab=byte_alphabet(), merges=[]))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.add_special_tokens(["<s>", "</s>"])
    return TokenizerSpec(
        tokenizer_json=library.to_str(),
        num_tokens=258,
        vocab_size=258,
        spelling=Spelling("byte_level"),
        bos_id=256,
        eos_id=257,
        eos_token_ids=(257,),
        special_token_ids=(256, 257),
        chat_template="{% for m in messages %}{{ m.content }}{% endfor %}",
    )


@dataclass(frozen=True)
class FakeBuild:
    core: Core
    info: EngineInfo
    tokenizer_spec: TokenizerSpec


def counting(config: EngineConfig) -> FakeBuild:
    info = EngineInfo(
        model=config.model, vocab_size=258, context_length=10**6, kv_tokens=config.kv_tokens or 1000
    )
    return FakeBuild(CountingCore(), info, byte_spec())


class FailingCore(CountingCore):
    """Raises at the third token of a request whose prompt begins with 66 ("B")."""

    def step(self) -> list[TextOutput]:
        if any(request.token_ids[0] == 66 and count == 3 for request, count in self.running.values()):
            raise ZeroDivisionError("cause")
        return super().step()


def failing_core(config: EngineConfig) -> FakeBuild:
    built = counting(config)
    return FakeBuild(FailingCore(), built.info, built.tokenizer_spec)


class SlowCore(CountingCore):
    def step(self) -> list[TextOutput]:
        time.sleep(0.002)
        return super().step()


def slow(config: EngineConfig) -> FakeBuild:
    built = counting(config)
    return FakeBuild(SlowCore(), built.info, built.tokenizer_spec)


class PoisonedCore(SlowCore):
    """The process ends at the third token of a request whose prompt begins with 66 ("B")."""

    def step(self) -> list[TextOutput]:
        if any(request.token_ids[0] == 66 and count == 3 for request, count in self.running.values()):
            os._exit(9)
        return super().step()


def poisoned(config: EngineConfig) -> FakeBuild:
    built = counting(config)
    return FakeBuild(PoisonedCore(), built.info, built.tokenizer_spec)


class StuckCore(CountingCore):
    def step(self) -> list[TextOutput]:
        time.sleep(3600)
        return []


def stuck_step(config: EngineConfig) -> FakeBuild:
    built = counting(config)
    return FakeBuild(StuckCore(), built.info, built.tokenizer_spec)


def no_such_model(config: EngineConfig) -> FakeBuild:
    raise ModelLoadError(f"{config.model} is not there; install it")


def unsupported(config: EngineConfig) -> FakeBuild:
    raise UnsupportedModelError("NewForCausalLM is not implemented")


def missing_file(config: EngineConfig) -> FakeBuild:
    raise FileNotFoundError("weights.gguf")


class StrangeError(Exception):
    pass


def strange(config: EngineConfig) -> FakeBuild:
    raise StrangeError("what")


def exits(config: EngineConfig) -> FakeBuild:
    os._exit(7)


def never_ready(config: EngineConfig) -> FakeBuild:
    time.sleep(3600)
    raise AssertionError
