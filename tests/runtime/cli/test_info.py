"""``ramet info``: complete for people and for programs, and times that add up."""

import json
from typing import Any

import pytest


def test_json_has_everything(ramet: Any, fake_engine: Any) -> None:
    done = ramet("info", "--json")
    assert done.status == 0
    facts = json.loads(done.out)
    assert facts["model"]["name"] == "fake"
    assert facts["model"]["context_length"] == 60
    assert facts["kv_pool"]["tokens"] == 1000
    assert facts["timings"] is None
    assert {"python", "ramet", "torch"} <= set(facts["versions"])
    assert facts["machine"]["cores"] >= 1
    assert facts["threads"] >= 1
    assert facts["weight_cache"]["path"]


def test_timings_add_up(ramet: Any, fake_engine: Any) -> None:
    timings = json.loads(ramet("info", "--json", "--timings").out)["timings"]
    assert timings["engine: read"] == 0.25
    assert timings["engine: build"] == 0.5
    assert list(timings)[-2:] == ["first token", "total"]
    total = timings.pop("total")
    assert total == pytest.approx(sum(timings.values()))


def test_people_get_lines(ramet: Any, fake_engine: Any) -> None:
    done = ramet("info", "--timings")
    assert done.status == 0
    for word in ("versions", "machine", "model", "KV pool", "weight cache", "first token", "total"):
        assert word in done.out


def test_the_real_model_is_described(ramet: Any, real_engine: Any, monkeypatch: Any) -> None:
    from ramet.runtime.cli.info import gather, report

    facts = gather(real_engine, 2, None)
    assert facts.model.num_layers == 30
    assert 130e6 < facts.model.num_parameters < 140e6
    assert facts.model.weight_bytes > 100e6
    assert facts.kv_pool.bytes > 0
    assert facts.kv_pool.tokens >= 4096
    assert any("30 layers" in line for line in report(facts))
