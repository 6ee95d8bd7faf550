"""KeptPrograms: what is left of programs that ran in the background, for their clients to look at."""

import asyncio
from dataclasses import dataclass

from ramet.runtime.server.program_record import ProgramRecord

KEPT_SECONDS = 600.0
"""After a program's end."""
MAX_KEPT = 64
MAX_KEPT_CHARS = 16 << 20
"""Of the texts of one tenant's programs together; the last one that ended is kept however long it is."""


@dataclass(frozen=True, slots=True)
class _Kept:
    record: ProgramRecord
    timer: asyncio.TimerHandle


class KeptPrograms:
    """Each tenant's own, for a while after their end. Lives on one event loop.

    Invariant: of each tenant there are at most MAX_KEPT, and but for the last one they hold MAX_KEPT_CHARS at
    most.
    """

    def __init__(self, seconds: float = KEPT_SECONDS) -> None:
        self.seconds = seconds
        self._kept: dict[str, dict[str, _Kept]] = {}
        """By tenant and then by id, in the order of their ends."""

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, tenant: str, program_id: str, record: ProgramRecord) -> None:
        timer = asyncio.get_running_loop().call_later(self.seconds, self.drop, tenant, program_id)
        own = self._kept.setdefault(tenant, {})
        own[program_id] = _Kept(record, timer)
        num_chars = sum(one.record.num_chars for one in own.values())
        while len(own) > MAX_KEPT or (num_chars > MAX_KEPT_CHARS and len(own) > 1):
            oldest = next(iter(own))
            num_chars -= own[oldest].record.num_chars
            self.drop(tenant, oldest)

    def get(self, tenant: str, program_id: str) -> ProgramRecord | None:
        """None: there is none of this tenant's, or not any more."""
        found = self._kept.get(tenant, {}).get(program_id)
        return None if found is None else found.record

    def of(self, tenant: str) -> list[ProgramRecord]:
        return [one.record for one in self._kept.get(tenant, {}).values()]

    def drop(self, tenant: str, program_id: str) -> bool:
        """Whether there was one."""
        own = self._kept.get(tenant, {})
        found = own.pop(program_id, None)
        if found is None:
            return False
        found.timer.cancel()
        if not own:
            del self._kept[tenant]
        return True
