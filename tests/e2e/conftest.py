from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.server.logging_state import preserve_logging


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run commands in this process without settings, in an empty folder."""
    for name in [name for name in os.environ if name.startswith(("TOPICS_", "LISTEN_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    with preserve_logging():
        yield
