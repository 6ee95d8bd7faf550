"""What the server writes of itself when it is asked."""

import asyncio
import json
import signal
from pathlib import Path

from benchmarks.watched_server import write_report


def test_a_report_counts_tasks(tmp_path: Path) -> None:
    path = tmp_path / "report.json"

    async def with_tasks() -> None:
        others = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        write_report(str(path), signal.SIGUSR1, None)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run(with_tasks())
    found = json.loads(path.read_text())
    assert found["tasks"] == 4
    assert found["threads"] >= 1
    assert found["objects"] > 1000
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"], "it is there whole, or not at all"


def test_a_report_before_the_loop_runs(tmp_path: Path) -> None:
    write_report(str(tmp_path / "report.json"), signal.SIGUSR1, None)
    assert json.loads((tmp_path / "report.json").read_text())["tasks"] == 0
