"""The refusal of a request to a shard, or to a broker, that is not serving, in words for a client.

The cause stays in the server's log, since it may name paths. A retry is suggested only where waiting can
help: a shard in state REFUSED is not started again.
"""

from __future__ import annotations

from typing import Final

from shared.contract.errors import NOT_READY, RETRY_AFTER_MS, STORAGE_FAILED, TOPIC_NOT_FOUND, Refusal
from shared.ipc.board import Board, WorkerState


def shard_refusal(shard: int, state: WorkerState) -> Refusal:
    """Return the refusal for a shard in this state.

    >>> shard_refusal(3, WorkerState.REPLAYING).message
    'shard 3 is replaying its log'
    """
    code = STORAGE_FAILED if state in (WorkerState.REFUSED, WorkerState.FAILED) else NOT_READY
    retry_after_ms = None if state is WorkerState.REFUSED else RETRY_AFTER_MS
    return Refusal(code, f"shard {shard} {state_text(state)}", {"shard": shard}, retry_after_ms)


def broker_refusal(broker: int, state: WorkerState) -> Refusal:
    """Return the refusal for a broker in this state.

    >>> broker_refusal(0, WorkerState.STARTING).message
    'broker 0 is starting: shared topics are not available'
    """
    retry_after_ms = None if state is WorkerState.REFUSED else RETRY_AFTER_MS
    message = f"broker {broker} {broker_state_text(state)}: shared topics are not available"
    return Refusal(NOT_READY, message, {"broker": broker}, retry_after_ms)


NO_LOCAL_TOPICS: Final = Refusal(
    TOPIC_NOT_FOUND, "no such topic; this node has no shards, so it has shared topics only: make one with PUT"
)
"""The refusal of a request for a topic that is not shared, on a node without shards."""


def owner_refusal(board: Board, owner: int, state: WorkerState) -> Refusal:
    """Return the refusal for the shard or the broker with this owner number."""
    if board.is_broker(owner):
        return broker_refusal(owner - board.slots_max, state)
    return shard_refusal(owner, state)


def broker_state_text(state: WorkerState) -> str:
    return "does not start, see the server's log" if state is WorkerState.REFUSED else _TEXTS[state]


def state_text(state: WorkerState) -> str:
    """Return the predicate of a shard in this state. READY means that it stopped answering."""
    return _TEXTS[state]


_TEXTS: Final = {
    WorkerState.GONE: "is restarting",
    WorkerState.STARTING: "is starting",
    WorkerState.REPLAYING: "is replaying its log",
    WorkerState.READY: "does not answer",
    WorkerState.DRAINING: "is stopping",
    WorkerState.REFUSED: "does not start because its data is damaged or cannot be used; see the server's log",
    WorkerState.FAILED: "is restarting after a disk failure; see the server's log",
}
