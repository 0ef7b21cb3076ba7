from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from topicsd.disk.watched_fs import WatchedFs


def test_a_stalled_sync_of_the_watched_thread_beats_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    beats: list[int] = []
    has_beaten = threading.Event()

    def on_wait() -> None:
        beats.append(threading.get_ident())
        if len(beats) == 3:
            has_beaten.set()

    fs = WatchedFs(on_wait, look_seconds=0.001)
    monkeypatch.setattr(os, "fdatasync", lambda fd: has_beaten.wait(30) or pytest.fail("no beat came"))
    fs.sync_data(0)
    assert threading.get_ident() not in beats


def test_calls_do_what_those_of_the_kernel_do(tmp_path: Path) -> None:
    fs = WatchedFs(lambda: None)
    fd = fs.create(str(tmp_path / "a"))
    fs.allocate(fd, 100)
    assert fs.pwrite(fd, b"abc", 1) == 3
    fs.sync_data(fd)
    fs.sync_dir(str(tmp_path))
    assert fs.pread(fd, 3, 1) == b"abc"
    with pytest.raises(OSError, match="Bad file"):
        fs.sync_data(99_999)
    fs.close(fd)
