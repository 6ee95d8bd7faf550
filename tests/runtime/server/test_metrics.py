"""The numbers that Prometheus is told."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ramet.runtime.engine import EngineStats
from ramet.runtime.protocol import FinishReason, RequestStats
from ramet.runtime.server.metrics import ServerMetrics
from tests.runtime.server.speaking_server import served


def values(text: str) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def test_what_was_counted_is_told() -> None:
    metrics = ServerMetrics("m")
    metrics.first_token(0.2)
    metrics.next_token(0.01)
    metrics.finished(
        FinishReason.STOP, RequestStats(num_prompt_tokens=5, num_output_tokens=3, queue_time=0.1), 0.5
    )
    metrics.answered("/v1/models", 200)
    metrics.refused()
    metrics.in_flight(2)
    read = values(metrics.exposition().decode())
    assert read['ramet_model{model="m"}'] == 1
    assert read["ramet_time_to_first_token_seconds_sum"] == 0.2
    assert read["ramet_inter_token_latency_seconds_count"] == 1
    assert read["ramet_e2e_request_latency_seconds_sum"] == 0.5
    assert read["ramet_request_queue_time_seconds_sum"] == 0.1
    assert read['ramet_request_finished_total{finish_reason="stop"}'] == 1
    assert read['ramet_http_requests_total{route="/v1/models",status="200"}'] == 1
    assert read["ramet_requests_refused_total"] == 1
    assert read["ramet_requests_in_flight"] == 2
    assert read["ramet_engine_up"] == 0


def test_the_engines_own_numbers() -> None:
    metrics = ServerMetrics("m")
    metrics.set_engine(
        EngineStats(
            running_requests=3,
            waiting_requests=2,
            prompt_tokens=10,
            cached_tokens=4,
            total_pages=9,
            free_pages=5,
            cached_pages=1,
        )
    )
    read = values(metrics.exposition().decode())
    assert (read["ramet_engine_up"], read["ramet_cache_hit_ratio"]) == (1, 0.4)
    assert (read["ramet_num_requests_running"], read["ramet_num_requests_waiting"]) == (3, 2)
    assert [read[f'ramet_kv_pages{{state="{state}"}}'] for state in ("free", "cached", "held")] == [5, 1, 3]


def test_two_servers_share_no_numbers() -> None:
    with served() as one, served() as two:
        one.complete("say:abc")
        first, second = (values(server.get("/metrics").text) for server in (one, two))
    assert first["ramet_generation_tokens_total"] == 4
    assert second["ramet_generation_tokens_total"] == 0
    assert first["ramet_time_to_first_token_seconds_count"] == 1
    assert first['ramet_http_requests_total{route="/v1/completions",status="200"}'] == 1


def test_the_docs_list_what_is_told() -> None:
    page = (Path(__file__).parents[3] / "docs" / "server.md").read_text()
    listed = set(re.findall(r"`(ramet_[a-z0-9_]+)", page.partition("\n## Metrics\n")[2].partition("\n## ")[0]))
    with served() as server:
        text = server.get("/metrics").text
    told = set()
    for family in text_string_to_metric_families(text):
        # When a counter began is Prometheus' own.
        if not family.name.endswith("_created"):
            told.add(f"{family.name}_total" if family.type == "counter" else family.name)
    assert listed == told
