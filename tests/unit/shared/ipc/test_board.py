from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.contract.api_keys import KEY_PLACES
from shared.ipc.board import REASON_BYTES_MAX, SLOT_BYTES, SLOTS_MAX, Board, Slot, WorkerState
from shared.runtime.histogram import WORDS as HISTOGRAM_WORDS

PROJECT = Path(__file__).parents[4]
WORDS = [name for name, value in vars(Slot).items() if type(value).__name__ == "_Word"]
HISTOGRAMS = [name for name, value in vars(Slot).items() if type(value).__name__ == "_Histogram"]


@pytest.fixture
def board() -> Iterator[Board]:
    board = Board.create(3)
    yield board
    board.close()
    os.close(board.fd)


def test_a_new_board_means_that_every_worker_has_ended(board: Board) -> None:
    assert len(board) == 3
    assert [slot.state for slot in board] == [WorkerState.GONE] * 3
    assert [slot.reason for slot in board] == [""] * 3


def test_the_board_is_never_visible_by_name() -> None:
    before = set(os.listdir("/dev/shm"))
    board = Board.create(2)
    assert set(os.listdir("/dev/shm")) <= before
    board.close()
    os.close(board.fd)


def test_the_descriptor_is_not_inherited_by_accident(board: Board) -> None:
    assert not os.get_inheritable(board.fd)


def test_each_number_has_its_own_word(board: Board) -> None:
    slot = board.slot(1)
    for number, name in enumerate(WORDS, 1):
        setattr(slot, name, number << 32 | number)
    slot.state = WorkerState.READY
    slot.reason = "why"
    assert [getattr(slot, name) for name in WORDS] == [n << 32 | n for n in range(1, len(WORDS) + 1)]
    assert slot.state is WorkerState.READY
    assert slot.reason == "why"


def test_each_histogram_has_its_own_words(board: Board) -> None:
    slot = board.slot(1)
    slot.reason = "why"
    for number, name in enumerate(HISTOGRAMS, 1):
        setattr(slot, name, [number << 32 | word for word in range(HISTOGRAM_WORDS)])
    for number, name in enumerate(HISTOGRAMS, 1):
        assert getattr(slot, name) == [number << 32 | word for word in range(HISTOGRAM_WORDS)]
    slot.in_flight_by_key[0] = slot.in_flight_by_key[KEY_PLACES - 1] = 7
    assert slot.reason == "why"
    assert not any(getattr(slot, name) for name in WORDS)
    assert not any(board.slot(2).words)


def test_slots_do_not_overlap(board: Board) -> None:
    slot = board.slot(1)
    for index in range(SLOT_BYTES // 8):
        slot.words[index] = (1 << 64) - 1
    for other in (board.slot(0), board.slot(2)):
        assert not any(other.words)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("", ""),
        ("disk gone", "disk gone"),
        ("x" * 300, "x" * REASON_BYTES_MAX),
        ("x" * (REASON_BYTES_MAX - 1) + "ü", "x" * (REASON_BYTES_MAX - 1)),
        ("\udcff", "?"),
    ],
)
def test_a_reason_is_truncated_to_whole_characters(board: Board, text: str, stored: str) -> None:
    board.slot(0).reason = text
    assert board.slot(0).reason == stored


def test_a_reason_that_is_being_changed_can_be_read(board: Board) -> None:
    slot = board.slot(0)
    slot.reason = "äöü"
    slot.words[384] = 3
    assert slot.reason == "ä\ufffd"
    slot.words[384] = 1 << 60
    assert slot.reason.startswith("äöü")


def test_clear_resets_every_field(board: Board) -> None:
    slot = board.slot(0)
    slot.reason, slot.state, slot.topics = "why", WorkerState.REFUSED, 7
    slot.in_flight_by_key[5] = 1
    slot.clear()
    assert not any(slot.in_flight_by_key)
    assert (slot.reason, slot.state, slot.topics) == ("", WorkerState.GONE, 0)


@pytest.mark.slow
def test_the_values_of_a_killed_child_remain_readable(board: Board) -> None:
    child = (
        "import os, signal, sys\n"
        "from shared.ipc.board import Board, WorkerState\n"
        "slot = Board.attach(int(sys.argv[1])).slot(2)\n"
        "slot.pid, slot.state, slot.reason = os.getpid(), WorkerState.READY, 'from below'\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(board.fd)],
        pass_fds=[board.fd],
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert process.wait(30) == -9
    slot = board.slot(2)
    assert (slot.pid, slot.state, slot.reason) == (process.pid, WorkerState.READY, "from below")


def test_a_board_grows_and_shrinks_in_every_process(board: Board) -> None:
    other = Board.attach(os.dup(board.fd))
    assert len(other) == 3
    board.allocate(5)
    board.slot(4).topics = 7
    assert len(other) == len(list(other)) == 3
    board.set_slot_count(5)
    assert [slot.topics for slot in other] == [0, 0, 0, 0, 7]
    board.set_slot_count(2)
    assert len(other) == len(list(other)) == 2
    # A process may still hold the number of a slot that is not in use any more.
    assert other.slot(4).topics == 7
    other.close()
    os.close(other.fd)


def test_brokers_have_slots_above_those_of_all_shards() -> None:
    board = Board.create(2, broker_count=2)
    other = Board.attach(board.fd)
    assert other.slots_max == board.slots_max == SLOTS_MAX
    assert other.broker_number(1) == SLOTS_MAX + 1
    assert [board.is_broker(number) for number in (0, SLOTS_MAX - 1, SLOTS_MAX)] == [False, False, True]
    board.slot(board.broker_number(1)).topics = 7
    assert [slot.topics for slot in other.brokers] == [0, 7]
    assert [number for number, _ in other.owners()] == [0, 1, SLOTS_MAX, SLOTS_MAX + 1]
    # Growing to the last shard changes no number of a broker.
    board.allocate(SLOTS_MAX)
    board.set_slot_count(SLOTS_MAX)
    assert len(other) == SLOTS_MAX
    assert [slot.topics for slot in other.brokers] == [0, 7]
    for one in (other, board):
        one.close()
    os.close(board.fd)


def test_only_the_slots_in_use_take_memory() -> None:
    board = Board.create(1, broker_count=1)
    assert os.stat(board.fd).st_blocks * 512 < 20 * SLOT_BYTES
    board.close()
    os.close(board.fd)


def test_a_board_may_have_brokers_alone() -> None:
    board = Board.create(0, broker_count=1)
    assert (len(board), list(board), len(board.brokers)) == (0, [], 1)
    board.slot(board.broker_number(0)).state = WorkerState.READY
    board.close()
    os.close(board.fd)
