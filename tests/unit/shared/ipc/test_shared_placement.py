from __future__ import annotations

import logging
from pathlib import Path

import pytest

from shared.ipc.placement import Placement, PlacementError, encode_placement
from shared.ipc.shared_placement import SharedPlacement


class Server:
    """A file, the word of the board, and the placement of one process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "PLACEMENT.json"
        self.words = [0, 2, 0]
        self.failures: list[OSError] = []
        self.changes: list[int] = []

    def process(self) -> SharedPlacement:
        placement = SharedPlacement(self.words, str(self.path), self.failures.append)
        placement.call_on_change(lambda: self.changes.append(placement.current.version))
        return placement

    def replace(self, placement: Placement) -> None:
        self.path.write_bytes(encode_placement(placement))

    def publish(self, placement: Placement) -> None:
        self.replace(placement)
        self.words[0] = placement.version


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


def test_without_a_file_the_rule_decides(server: Server) -> None:
    placement = server.process()
    assert [placement.owner_of(name) for name in ("orders", "a")] == [0, 1]
    assert SharedPlacement.fixed(2).owner_of("a") == 1


def test_a_change_is_followed_by_the_next_lookup(server: Server) -> None:
    placement = server.process()
    moved = Placement(2).changed({"orders": 1})
    server.publish(moved)
    assert placement.owner_of("orders") == 1
    server.publish(moved.changed({"orders": 0, "a": 0}))
    placement.refresh()
    placement.refresh()
    assert (placement.owner_of("orders"), placement.owner_of("a")) == (0, 0)
    assert server.changes == [1, 2]


def test_a_process_that_read_the_new_file_early_reads_it_once_more(server: Server) -> None:
    """The file is replaced before the board: a start in between must not miss the next change."""
    first = Placement(2).changed({"orders": 1})
    server.replace(first)
    placement = server.process()
    assert placement.owner_of("orders") == 1
    server.publish(first.changed({"a": 0}))
    assert placement.owner_of("a") == 0


def test_a_file_that_cannot_be_read_changes_nothing_and_ends_the_process(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.publish(Placement(2).changed({"orders": 1}))
    placement = server.process()
    server.path.write_bytes(b"{}")
    server.words[0] = 2
    with caplog.at_level(logging.ERROR):
        assert placement.owner_of("orders") == 1
    (failure,) = server.failures
    assert str(server.path) in str(failure)
    assert server.changes == []
    assert "not reloaded" in caplog.text


def test_a_start_with_a_damaged_file_is_refused(server: Server) -> None:
    server.path.write_bytes(b"{")
    with pytest.raises(PlacementError, match="damaged"):
        server.process()
