"""The route benchmark runs against a real server."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from loadtest.bench import route_lines as forward_lines
from loadtest.bench import server as server_bench
from loadtest.bench.lines import LINES
from loadtest.bench.subjects import SERVER_COMMAND

pytestmark = pytest.mark.slow

NAMES = [name for name in LINES if name.startswith("route")]


@pytest.mark.parametrize("name", NAMES)
def test_the_route_benchmark_reports_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(forward_lines, "DESTINATIONS", 5)
    result = server_bench.measure(name, LINES[name], 0.2, 1, str(tmp_path), SERVER_COMMAND)
    assert result.verdict in ("as measured", "holds", "missed"), result.note
    assert result.value is not None
    assert "of 1 record" in result.note or "batches of 100" in result.note
    assert not list(tmp_path.iterdir())


def test_missing_copies_fail_the_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_lines, "TIMEOUT_SECONDS", 0.0)
    heads = count()
    monkeypatch.setattr(forward_lines, "_head", lambda server, topic: next(heads))
    result = server_bench.measure("route", LINES["route"], 0.05, 1, str(tmp_path), SERVER_COMMAND)
    assert result.verdict == "failed"
    assert " records after " in result.note
