"""From what a client asks of a watch session and where its topics stand to what the session is.

Must not know: who finds out where a topic stands, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.errors import TOPIC_NOT_FOUND, Refusal
from shared.watch_request import WatchRequest
from topicsd.engine.shard_state import ShardState
from topicsd.engine.topic_admin import topic_not_found, topic_state
from topicsd.wal.control_frame import WatchSession


class Stand(NamedTuple):
    """Where a topic stands."""

    head_seq: int
    earliest_seq: int
    epoch: int


class Defined(NamedTuple):
    session: WatchSession
    stands: list[Stand]
    """In its order."""


def stands_here(shard: ShardState, names: Sequence[str]) -> list[Stand | None]:
    """Of topics of this shard; None is one that does not exist."""
    found = (topic_state(shard, name) for name in names)
    return [
        None if isinstance(state, Refusal) else Stand(state.head_seq, state.earliest_seq, state.epoch)
        for state in found
    ]


def define(session: bytes, request: WatchRequest, stands: Mapping[str, Stand | None]) -> Defined | Refusal:
    """`session` is the random part of its id. A session that would have no topic would never say anything."""
    names: list[str] = []
    from_seqs: list[int] = []
    epochs: list[int] = []
    found: list[Stand] = []
    asked = zip(request.names, request.from_seqs, request.epochs, strict=True)
    for name, from_seq, epoch in asked:
        stand = stands[name]
        if stand is None:
            if not request.is_lenient:
                return topic_not_found(name)
            continue
        names.append(name)
        from_seqs.append(stand.head_seq if from_seq is None else from_seq)
        epochs.append(stand.epoch if epoch is None else epoch)
        found.append(stand)
    if not names:
        return Refusal(TOPIC_NOT_FOUND, "none of the topics exists")
    definition = WatchSession(
        session=session,
        key_id=request.key_id,
        names=names,
        from_seqs=from_seqs,
        epochs=epochs,
        nodes=request.nodes,
        limit=request.limit,
        bytes_max=request.bytes_max,
        heartbeat_ms=request.heartbeat_ms,
        with_tags=request.with_tags,
        with_meta=request.with_meta,
        with_data=request.with_data,
        is_strong=request.is_strong,
    )
    return Defined(definition, found)
