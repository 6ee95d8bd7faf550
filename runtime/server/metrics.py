"""What Prometheus is told, under the names of the field."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ramet.runtime.engine import EngineStats
from ramet.runtime.protocol import FinishReason, RequestStats

_LATENCY = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120, 300)
_TOKEN_LATENCY = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144)


class ServerMetrics:
    """Counts and times of one server, in a registry of its own. All times are seconds.

    Used on the event loop; the numbers of the engine are those of the last ``set_engine``.
    """

    def __init__(self, model: str) -> None:
        self._registry = CollectorRegistry()
        self._engine = _EngineCollector()
        self._registry.register(self._engine)
        info = Gauge("ramet_model", "The model that is served.", ("model",), registry=self._registry)
        info.labels(model).set(1)
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token (TTFT).", _LATENCY)
        self._itl = self._histogram(
            "inter_token_latency_seconds",
            "Between one increment of an answer and the next (ITL).",
            _TOKEN_LATENCY,
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token (e2e).", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first step.", _LATENCY)
        self._prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._output = self._histogram("request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._finished = Counter(
            "ramet_request_finished", "Answers by how they ended.", ("finish_reason",), registry=self._registry
        )
        self._http = Counter(
            "ramet_http_requests", "Requests by route and status.", ("route", "status"), registry=self._registry
        )
        self._refused = Counter(
            "ramet_requests_refused", "Requests refused for lack of room.", registry=self._registry
        )
        self._in_flight = Gauge(
            "ramet_requests_in_flight", "Answers that the server waits for.", registry=self._registry
        )

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        return Histogram(f"ramet_{name}", text, buckets=tuple(buckets), registry=self._registry)

    def answered(self, route: str, status: int) -> None:
        """``route``: its pattern, so that what clients write never becomes a label."""
        self._http.labels(route, str(status)).inc()

    def refused(self) -> None:
        self._refused.inc()

    def in_flight(self, num_answers: int) -> None:
        self._in_flight.set(num_answers)

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def next_token(self, seconds: float) -> None:
        self._itl.observe(seconds)

    def finished(self, reason: FinishReason, stats: RequestStats, seconds: float) -> None:
        self._finished.labels(reason.value).inc()
        self._e2e.observe(seconds)
        self._queue.observe(stats.queue_time)
        self._prompt.observe(stats.num_prompt_tokens)
        self._output.observe(stats.num_output_tokens)

    def set_engine(self, stats: EngineStats | None) -> None:
        """None: the engine gives no numbers."""
        self._engine.stats = stats

    def exposition(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """The engine's own counters, which it has counted already."""

    def __init__(self) -> None:
        self.stats: EngineStats | None = None

    def collect(self) -> Iterator[Metric]:
        stats = self.stats
        yield GaugeMetricFamily("ramet_engine_up", "1: the engine answers.", float(stats is not None))
        if stats is None:
            return
        gauges = {
            "ramet_num_requests_running": ("Requests that are computed.", stats.running_requests),
            "ramet_num_requests_waiting": ("Requests that wait.", stats.waiting_requests),
            "ramet_num_requests_compiling": (
                "Requests that wait for their grammar.",
                stats.compiling_requests,
            ),
            "ramet_grammar_cache_bytes": ("Held by compiled grammars and refusals.", stats.grammar_bytes),
            "ramet_cache_hit_ratio": ("Share of prompt tokens from the radix cache.", stats.hit_rate),
            "ramet_sessions": ("Sessions that keep a prefix in the cache.", stats.sessions),
            "ramet_session_pinned_tokens": ("Tokens that sessions keep there.", stats.pinned_tokens),
            "ramet_kv_page_size_tokens": ("Tokens of a KV page.", stats.page_size),
        }
        for name, (text, value) in gauges.items():
            yield GaugeMetricFamily(name, text, float(value))
        counters = {
            "ramet_resampled_answers": (
                "Answers that were not valid and drawn again.",
                stats.resampled_answers,
            ),
            "ramet_session_pins_dropped": ("Prefixes of sessions that gave way.", stats.dropped_pins),
            "ramet_prompt_tokens": ("Prompt tokens of requests that ran.", stats.prompt_tokens),
            "ramet_cached_tokens": ("Prompt tokens from the radix cache.", stats.cached_tokens),
            "ramet_generation_tokens": ("Generated tokens.", stats.output_tokens),
            "ramet_computed_tokens": ("Tokens that went through the model.", stats.computed_tokens),
            "ramet_engine_steps": ("Forward passes.", stats.steps),
            "ramet_preemptions": ("Requests that gave up their pages for others.", stats.preemptions),
            "ramet_draft_tokens": ("Tokens computed before they were certain.", stats.draft_tokens),
            "ramet_accepted_draft_tokens": ("Those that turned out right.", stats.accepted_draft_tokens),
            "ramet_late_masks": ("Rows lost because a grammar's mask was late.", stats.late_masks),
            "ramet_grammar_hits": ("Grammars asked for that were known already.", stats.grammar_hits),
            "ramet_grammar_misses": ("Grammars that had to be compiled.", stats.grammar_misses),
            "ramet_grammars_refused": ("Those of them that were refused.", stats.refused_grammars),
            "ramet_grammar_compile_seconds": ("Spent compiling grammars.", stats.grammar_seconds),
            "ramet_requests_aborted": ("Requests that were aborted.", stats.aborted_requests),
            "ramet_requests_failed": ("Requests that failed.", stats.failed_requests),
        }
        for name, (text, value) in counters.items():
            yield CounterMetricFamily(name, text, float(value))
        pages = GaugeMetricFamily("ramet_kv_pages", "KV pages by what holds them.", labels=("state",))
        held = stats.total_pages - stats.free_pages - stats.cached_pages
        for state, value in (("free", stats.free_pages), ("cached", stats.cached_pages), ("held", held)):
            pages.add_metric((state,), float(value))
        yield pages
