"""The scheduler: requests, ordering, batches. It decides what to compute and knows no tensors."""

from ramet.runtime.scheduler.batch import BatchRow, Executor, RowResult, ScheduledBatch
from ramet.runtime.scheduler.config import SchedulerConfig
from ramet.runtime.scheduler.drafting import DraftProposer
from ramet.runtime.scheduler.policy import Fcfs, LongestPrefixMatch, OrderingPolicy
from ramet.runtime.scheduler.request import Request, RequestStatus
from ramet.runtime.scheduler.scheduler import Scheduler
from ramet.runtime.scheduler.stats import SchedulerStats

__all__ = [
    "BatchRow",
    "DraftProposer",
    "Executor",
    "Fcfs",
    "LongestPrefixMatch",
    "OrderingPolicy",
    "Request",
    "RequestStatus",
    "RowResult",
    "ScheduledBatch",
    "Scheduler",
    "SchedulerConfig",
    "SchedulerStats",
]
