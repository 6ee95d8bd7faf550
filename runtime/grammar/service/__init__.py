"""What compiling off the engine's thread needs: job threads, a cache in bytes, a child process that may die."""

from ramet.runtime.grammar.service.byte_cache import ByteCache
from ramet.runtime.grammar.service.job_threads import Job, JobThreads
from ramet.runtime.grammar.service.probe import GrammarProbe, ProbeLimits
from ramet.runtime.grammar.service.vocabulary import PlainVocabulary

__all__ = ["ByteCache", "GrammarProbe", "Job", "JobThreads", "PlainVocabulary", "ProbeLimits"]
