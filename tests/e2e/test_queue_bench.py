"""The queue benchmark runs against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import queue_lines
from loadtest.bench import server as server_bench
from loadtest.bench.lines import LINES
from loadtest.bench.subjects import SERVER_COMMAND

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["jobs", "waiting", "job"])
def test_the_queue_benchmark_reports_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(queue_lines, "WAITING", 20_000)
    monkeypatch.setattr(queue_lines, "LEASED", 2000)
    result = server_bench.measure(name, LINES[name], 0.2, 1, str(tmp_path), SERVER_COMMAND)
    assert result.verdict in ("as measured", "holds", "missed"), result.note
    assert result.value is not None
    assert not list(tmp_path.iterdir())
