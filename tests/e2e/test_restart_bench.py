"""The restart benchmark runs against a real server."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import restart_line
from loadtest.bench import server as server_bench
from loadtest.bench.lines import LINES
from loadtest.bench.subjects import SERVER_COMMAND


@pytest.mark.slow
def test_the_restart_benchmark_compares_rounds_with_and_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restart_line, "SECONDS_MIN", 0.5)
    result = server_bench.measure("restart", LINES["restart"], 0.5, 2, str(tmp_path), SERVER_COMMAND)
    assert result.verdict in ("holds", "missed"), result.note
    assert result.value is not None
    assert result.ceiling is not None
    assert result.value > 0
    assert result.ceiling > 0
    assert not list(tmp_path.iterdir())
