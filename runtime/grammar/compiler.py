"""GrammarCompiler: specs are compiled off the engine's thread, each once, within limits, and remembered.

A grammar engine can be slow, hang, take all memory or kill its process. So what a backend calls risky is tried
in a child process first (GrammarProbe); everything is compiled in threads; whoever waits, waits for a bounded
time; and a spec that was refused is remembered as well as one that was compiled.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ramet.runtime.grammar.backend import (
    CompiledGrammar,
    GrammarBackend,
    GrammarMatcher,
    KnowsTokens,
    RiskyBackend,
    SizedGrammar,
    Vocabulary,
)
from ramet.runtime.grammar.closing import ClosingTokens, closing_matcher
from ramet.runtime.grammar.service import ByteCache, GrammarProbe, Job, JobThreads, PlainVocabulary, ProbeLimits
from ramet.runtime.grammar.service.probe import START_SECONDS
from ramet.runtime.protocol import (
    GrammarSpec,
    InvalidRequestError,
    Prefix,
    RametError,
    RequestFailedError,
    UnsupportedConstraintError,
)

logger = logging.getLogger(__name__)

ESTIMATED_BYTES = 1 << 16
ESTIMATED_BYTES_PER_SPEC_BYTE = 64
"""What a compiled grammar is taken to hold that does not say: tables for states, some for each byte of text."""
REFUSAL_BYTES = 512
"""Of an exception and its entry, beside its text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileLimits:
    """Bounds of time and memory; seconds."""

    deadline: float = 15.0
    """How long one spec may compile in this process."""
    longest_wait: float = 60.0
    """How long a request waits for its grammar at most, other grammars before it included."""
    num_threads: int = 2
    cache_bytes: int = 256 << 20
    refusal_bytes: int = 4 << 20
    probe: ProbeLimits = field(default_factory=ProbeLimits)


@dataclass(frozen=True, slots=True)
class CompilerStats:
    """Counts since the start."""

    num_hits: int
    """Specs that were compiled, refused or on their way already when they were asked for."""
    num_misses: int
    num_refused: int
    """Misses that ended in an error."""
    seconds: float
    """Spent compiling, child process included."""
    cached_bytes: int
    num_stuck_threads: int


class Compilation:
    """A spec on its way to a grammar, shared by all who ask for it meanwhile."""

    def __init__(self, spec: GrammarSpec, key: bytes) -> None:
        self.spec = spec
        self.key = key
        self.submitted = time.monotonic()
        self.job: Job[CompiledGrammar | None] | None = None
        """Its result is None where the spec turned out to be risky."""
        self.threads: JobThreads | None = None
        self.deadline = 0.0
        """Seconds that its job may run."""
        self.compiled: CompiledGrammar | None = None
        self._error: RametError | None = None

    @property
    def is_done(self) -> bool:
        return self.compiled is not None or self._error is not None

    def fail(self, error: RametError) -> None:
        self._error = error

    def result(self) -> CompiledGrammar:
        """Only once done. Raises what compiling raised; each time a new exception."""
        if self._error is not None:
            raise _copy(self._error)
        assert self.compiled is not None
        return self.compiled


class GrammarCompiler:
    """A GrammarBackend in front of another, that does not keep its caller waiting.

    ``submit`` and ``poll`` belong to one thread at a time (a lock sees to it); ``compile`` waits. Compiled
    grammars and refusals are cached by a hash of the spec's canonical form, each bounded in bytes.
    """

    def __init__(
        self,
        backend: GrammarBackend,
        limits: CompileLimits | None = None,
        *,
        vocabulary: Vocabulary | None = None,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        """``vocabulary``: what the child process builds its backend from; needed for a RiskyBackend only.
        ``on_done``: called from a compiling thread whenever it has finished one.
        """
        self._backend = backend
        self._limits = limits or CompileLimits()
        self._vocabulary = vocabulary
        self._on_done = on_done
        self._lock = threading.RLock()
        self._compiled: ByteCache[bytes, CompiledGrammar] = ByteCache(self._limits.cache_bytes)
        self._refused: ByteCache[bytes, RametError] = ByteCache(self._limits.refusal_bytes)
        self._running: dict[bytes, Compilation] = {}
        self._threads = JobThreads("grammar", self._limits.num_threads)
        # A thread of its own: what takes long must not keep waiting what does not.
        self._risky_threads = JobThreads("risky-grammar", min(1, self._limits.num_threads))
        self._probe: GrammarProbe | None = None
        self._closing_tokens: ClosingTokens | None = None
        self._num_hits = self._num_misses = self._num_refused = 0
        self._seconds = 0.0

    @property
    def kinds(self) -> frozenset[str]:
        return self._backend.kinds

    def submit(self, spec: GrammarSpec) -> Compilation:
        """Begin to compile, or join whoever did; done at once where the result is known.

        Raises:
            RametError: the spec was refused before, or its kind is one that nothing here enforces.
        """
        kind = type(spec).__struct_config__.tag
        if kind not in self._backend.kinds:
            raise UnsupportedConstraintError(
                f"a grammar of kind {type(spec).__name__} cannot be enforced here; the kinds that can: "
                f"{', '.join(sorted(self._backend.kinds))}",
                field="grammar",
            )
        key = canonical_key(spec)
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                self._settle(running)
            refusal = self._refused.get(key)
            compiled = self._compiled.get(key)
            if refusal is not None:
                self._num_hits += 1
                raise _copy(refusal)
            if compiled is not None:
                self._num_hits += 1
                known = Compilation(spec, key)
                known.compiled = compiled
                return known
            if key in self._running:
                self._num_hits += 1
                return self._running[key]
            return self._start(spec, key)

    def poll(self, compilation: Compilation) -> bool:
        """Whether it is done, for better or worse: also where its time is over."""
        if not compilation.is_done:
            with self._lock:
                self._settle(compilation)
        return compilation.is_done

    def compile(self, spec: GrammarSpec) -> CompiledGrammar:
        """As ``submit``, and waits for the end.

        Raises:
            UnsupportedConstraintError: the spec cannot be enforced whole, or not within the limits.
            RametError: what else compiling raised.
        """
        compilation = self.submit(spec)
        while not self.poll(compilation):
            assert compilation.job is not None
            compilation.job.wait(0.05)
        return compilation.result()

    def closing_matcher(
        self, compiled: CompiledGrammar, spec: GrammarSpec | None, max_tokens: int
    ) -> GrammarMatcher:
        """One that closes the document before ``max_tokens`` tokens are used up.

        Raises:
            InvalidRequestError: ``spec`` is no JSON, or no ending was found or has room; see ClosingMatcher.
        """
        if self._closing_tokens is None:
            if not isinstance(self._backend, KnowsTokens):
                raise UnsupportedConstraintError(
                    "close_on_length is true, which this engine's grammars cannot do; leave it out",
                    field="close_on_length",
                )
            self._closing_tokens = ClosingTokens(self._backend.tokens)
        return closing_matcher(compiled.matcher(), spec, self._closing_tokens, max_tokens)

    def condemn(self, spec: GrammarSpec, reason: str) -> None:
        """Refuse the spec from now on: it was compiled, and does harm when it is used."""
        key = canonical_key(spec)
        with self._lock:
            self._compiled.discard(key)
            self._refuse(key, UnsupportedConstraintError(reason, field="grammar"))

    def stats(self) -> CompilerStats:
        with self._lock:
            return CompilerStats(
                num_hits=self._num_hits,
                num_misses=self._num_misses,
                num_refused=self._num_refused,
                seconds=self._seconds,
                cached_bytes=self._compiled.num_bytes + self._refused.num_bytes,
                num_stuck_threads=self._threads.num_stuck + self._risky_threads.num_stuck,
            )

    def close(self) -> None:
        """End the threads and the child process; waits for neither. What is on its way is never done then."""
        self._threads.close()
        self._risky_threads.close()
        if self._probe is not None:
            self._probe.close()

    def _start(self, spec: GrammarSpec, key: bytes) -> Compilation:
        self._num_misses += 1
        compilation = Compilation(spec, key)
        self._running[key] = compilation
        self._hand_in(compilation, self._threads, partial(_compile_safe, self._backend, spec))
        return compilation

    def _hand_in(
        self, compilation: Compilation, threads: JobThreads, work: Callable[[], CompiledGrammar | None]
    ) -> None:
        compilation.deadline = self._limits.deadline
        if threads is self._risky_threads:
            compilation.deadline += self._limits.probe.seconds + START_SECONDS
        compilation.threads = threads
        compilation.job = threads.submit(work, self._on_done)
        self._settle(compilation)

    def _grammar_probe(self, backend: GrammarBackend) -> GrammarProbe:
        if self._probe is None:
            assert isinstance(backend, RiskyBackend)
            if self._vocabulary is None:
                raise ValueError("a backend with engines that may hang needs the vocabulary to probe them")
            vocabulary = PlainVocabulary.of(self._vocabulary)
            self._probe = GrammarProbe(backend.probe_builder, vocabulary, self._limits.probe)
        return self._probe

    def _settle(self, compilation: Compilation) -> None:
        """Take in what its job has come to. Under the lock."""
        job = compilation.job
        if compilation.is_done or job is None:
            return
        if job.is_done:
            self._finish(compilation, job)
        elif job.seconds_running() > compilation.deadline:
            self._give_up(compilation, job)
            error = UnsupportedConstraintError(
                f"compiling the grammar was not done after {job.seconds_running():.3g} s; make it smaller",
                field="grammar",
            )
            self._refuse(compilation.key, error)
            compilation.fail(error)
        elif time.monotonic() - compilation.submitted > self._limits.longest_wait:
            # Not this spec's fault: those before it took too long. It may be tried again.
            self._give_up(compilation, job)
            compilation.fail(
                RequestFailedError(
                    f"the grammar was not compiled within {self._limits.longest_wait:g} s, for there are "
                    "others before it; try again later"
                )
            )

    def _give_up(self, compilation: Compilation, job: Job[CompiledGrammar | None]) -> None:
        assert compilation.threads is not None
        compilation.threads.give_up(job)
        del self._running[compilation.key]
        self._num_refused += 1

    def _finish(self, compilation: Compilation, job: Job[CompiledGrammar | None]) -> None:
        self._seconds += job.seconds_running()
        try:
            compiled = job.result()
            if compiled is None:
                probe = self._grammar_probe(self._backend)
                work = partial(_compile_risky, self._backend, compilation.spec, probe)
                self._hand_in(compilation, self._risky_threads, work)
                return
        except InvalidRequestError as error:
            self._num_refused += 1
            self._refuse(compilation.key, error)
            compilation.fail(_copy(error))
        except RametError as error:
            self._num_refused += 1
            compilation.fail(_copy(error))
        except BaseException as error:
            logger.error("a grammar backend failed", exc_info=error)
            self._num_refused += 1
            compilation.fail(
                RequestFailedError(f"the grammar could not be compiled: {type(error).__name__}: {error}")
            )
        else:
            compilation.compiled = compiled
            self._compiled.put(compilation.key, compiled, _size_of(compiled, compilation.spec))
        del self._running[compilation.key]

    def _refuse(self, key: bytes, error: RametError) -> None:
        self._refused.put(key, _copy(error), len(key) + len(str(error)) + REFUSAL_BYTES)


def canonical_key(spec: GrammarSpec) -> bytes:
    """The same for two specs exactly if they are equal, whatever their size: SHA-256 of the fields."""
    # repr and not an encoder: a lone surrogate is a spec's mistake, to be refused by whoever compiles it.
    return hashlib.sha256(repr(spec).encode("utf-8", "surrogatepass")).digest()


def _compile_safe(backend: GrammarBackend, spec: GrammarSpec) -> CompiledGrammar | None:
    """None: the spec is risky. To find that out takes a while, too."""
    if isinstance(backend, RiskyBackend) and backend.needs_probe(spec):
        return None
    return backend.compile(spec)


def _compile_risky(backend: GrammarBackend, spec: GrammarSpec, probe: GrammarProbe) -> CompiledGrammar:
    # A prefix is no engine's business.
    tried = spec.inner if isinstance(spec, Prefix) else spec
    if tried is not None:
        probe.try_out(tried)
    return backend.compile(spec)


def _size_of(compiled: CompiledGrammar, spec: GrammarSpec) -> int:
    if isinstance(compiled, SizedGrammar):
        return compiled.num_bytes
    return ESTIMATED_BYTES + ESTIMATED_BYTES_PER_SPEC_BYTE * len(repr(spec))


def _copy(error: RametError) -> RametError:
    """The same without its traceback, whose frames would keep a failed compilation's memory."""
    if isinstance(error, InvalidRequestError):
        return type(error)(str(error), field=error.field)
    return type(error)(str(error))
