"""A core without a scheduler: each request counts its tokens up to max_tokens. For the loop and its clients."""

import threading

from ramet.runtime.cache import CacheOutline
from ramet.runtime.engine.client import EngineInfo, EngineStats
from ramet.runtime.protocol import (
    FinishReason,
    GenerateInput,
    InvalidRequestError,
    RequestStats,
    SamplingParams,
    TextOutput,
)

INFO = EngineInfo(model="counting", vocab_size=1000, context_length=100, kv_tokens=100)


class CountingCore:
    """Each step adds one token, its number, to every request. A prompt that begins with 13 is refused."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[GenerateInput, int]] = {}
        self.aborted: list[str] = []
        self.failure: BaseException | None = None
        """Raised by the next step."""
        self.add_failure: Exception | None = None
        """Raised by the next additions."""
        self.gate = threading.Event()
        """A step waits for it."""
        self.gate.set()
        self.stepping = threading.Event()
        """A step has begun."""
        self.close_failure: Exception | None = None
        self.num_checks = 0
        self.checked = threading.Event()

    def add(self, request: GenerateInput) -> None:
        if self.add_failure is not None:
            raise self.add_failure
        if request.token_ids[0] == 13:
            raise InvalidRequestError("13 is refused", field="prompts")
        self.running[request.request_id] = (request, 0)

    def abort(self, request_id: str) -> list[TextOutput]:
        if self.running.pop(request_id, None) is None:
            return []
        self.aborted.append(request_id)
        return [TextOutput(request_id=request_id, finish_reason=FinishReason.ABORT)]

    def step(self) -> list[TextOutput]:
        self.stepping.set()
        self.gate.wait()
        if self.failure is not None:
            raise self.failure
        outputs = []
        for key, (request, count) in list(self.running.items()):
            finished = count + 1 == request.params.max_tokens
            outputs.append(
                TextOutput(
                    request_id=key,
                    text=f"{count} ",
                    token_ids=[count],
                    finish_reason=FinishReason.LENGTH if finished else None,
                    stats=RequestStats(num_output_tokens=count + 1) if finished else None,
                )
            )
            self.running[key] = (request, count + 1)
            if finished:
                del self.running[key]
        return outputs

    def has_work(self) -> bool:
        return bool(self.running)

    def stats(self) -> EngineStats:
        return EngineStats(running_requests=len(self.running))

    def cache_outline(self, salt_prefix: str) -> CacheOutline:
        return CacheOutline(num_nodes=len(salt_prefix))

    def release_session(self, session: str) -> int:
        return len(session)

    def flush_cache(self) -> int:
        return 7

    def close(self) -> None:
        if self.close_failure is not None:
            raise self.close_failure

    def check_integrity(self) -> None:
        self.num_checks += 1
        self.checked.set()


def request(request_id: str, max_tokens: int = 3, first: int = 1) -> GenerateInput:
    return GenerateInput(request_id=request_id, token_ids=[first], params=SamplingParams(max_tokens=max_tokens))
