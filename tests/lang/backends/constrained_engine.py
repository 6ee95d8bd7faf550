"""The engine on a model of random numbers, held by the grammars that an engine has."""

from ramet.runtime.engine.client import EngineInfo
from ramet.runtime.engine.core import EngineCore
from ramet.runtime.engine.face import EngineFace
from ramet.runtime.engine.loop import EngineLoop
from ramet.runtime.grammar import GrammarCompiler
from ramet.runtime.grammar.engines import LazyRouter
from ramet.runtime.scheduler import Scheduler, SchedulerConfig
from tests.lang.backends.random_engine import CONTEXT, RandomExecutor, RandomModel
from tests.lang.backends.small_tokenizer import CHATML, small_tokenizer


def open_face() -> EngineFace:
    """Close it. Its tokenizer is the small one, with ChatML."""
    tokenizer = small_tokenizer(CHATML)
    config = SchedulerConfig(
        num_pages=4 * CONTEXT,
        page_size=1,
        context_length=CONTEXT,
        vocab_size=tokenizer.vocab_size,
        max_running_requests=16,
        max_tokens_per_step=256,
    )
    core = EngineCore(
        Scheduler(config, stop_token_ids=tokenizer.stop_token_ids),
        RandomExecutor(RandomModel(tokenizer.vocab_size)),
        tokenizer,
        GrammarCompiler(LazyRouter(tokenizer), vocabulary=tokenizer),
        seed=1,
    )
    info = EngineInfo(
        model="random",
        vocab_size=tokenizer.vocab_size,
        context_length=CONTEXT,
        kv_tokens=4 * CONTEXT,
        grammars=("choice", "prefix", "json_schema", "regex", "structural_tag"),
    )
    return EngineFace(EngineLoop(core, info), tokenizer)
