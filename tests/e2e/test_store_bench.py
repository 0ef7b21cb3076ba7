"""The benchmark of stores runs against real servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench import server as server_bench
from loadtest.bench.subjects import SERVER_COMMAND
from loadtest.store import backups, exports, idle, moved_topics
from loadtest.store.lines import LINES


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups, "RECORDS", 16_000)
    monkeypatch.setattr(exports, "RECORDS", 20_000)
    monkeypatch.setattr(idle, "TOPICS", 5)
    monkeypatch.setattr(idle, "SECONDS_MIN", 0.1)
    monkeypatch.setattr(moved_topics, "RECORDS", 20_000)
    monkeypatch.setattr(moved_topics, "READ_RECORDS", 20_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["local-writes", "export", "history", "move-exported", "lost-100-5", "backup", "reshard-copied", "idle"],
)
def test_a_line_is_measured(tmp_path: Path, name: str) -> None:
    result = server_bench.measure(name, LINES[name], 0.2, 1, str(tmp_path), SERVER_COMMAND)
    assert result.verdict in ("holds", "missed", "as measured"), result.note
    assert result.value is not None
    assert result.note
    assert not list(tmp_path.iterdir())
