"""Cores and clients with the SpeakingExecutor, for tests in this process and in a child."""

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.config import EngineConfig
from ramet.runtime.engine.core import BuiltEngine, EngineCore
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.grammar import ChoiceBackend, GrammarCompiler, PrefixBackend
from ramet.runtime.scheduler import Scheduler, SchedulerConfig
from ramet.runtime.tokenizer import ByteTokenizer
from tests.runtime.engine.builders import byte_spec
from tests.runtime.engine.fake_engine import HIDDEN_SIZE, VOCAB_SIZE, SpeakingExecutor

CONTEXT = 400


def build_speaking(config: EngineConfig | None = None, executor: SpeakingExecutor | None = None) -> BuiltEngine:
    config = config or EngineConfig()
    tokenizer = ByteTokenizer()
    page_size = config.page_size if config.page_size != 16 else 4
    num_pages = (config.kv_tokens or 2000) // page_size
    context_length = config.context_length or CONTEXT
    scheduler = Scheduler(
        SchedulerConfig(
            num_pages=num_pages,
            page_size=page_size,
            context_length=context_length,
            vocab_size=VOCAB_SIZE,
            max_running_requests=config.max_running_requests,
            max_tokens_per_step=config.max_tokens_per_step or 64,
            enable_prefix_cache=config.enable_prefix_cache,
        ),
        stop_token_ids=tokenizer.stop_token_ids,
    )
    choices = ChoiceBackend(tokenizer)
    grammar = GrammarCompiler(PrefixBackend(choices, lambda: choices.tokens))
    core = EngineCore(
        scheduler,
        executor or SpeakingExecutor(),
        tokenizer,
        grammar,
        seed=config.seed,
    )
    info = EngineInfo(
        model="speaking",
        vocab_size=VOCAB_SIZE,
        context_length=context_length,
        kv_tokens=num_pages * page_size,
        page_size=page_size,
        embedding_size=HIDDEN_SIZE,
        grammars=tuple(sorted(grammar.kinds)),
    )
    return BuiltEngine(core, info, tokenizer, byte_spec())


def open_speaking(config: EngineConfig | None = None, executor: SpeakingExecutor | None = None) -> EngineFace:
    built = build_speaking(config, executor)
    return EngineFace(EngineLoop(built.core, built.info), built.tokenizer)
