"""The definition of a session, from the client's request and the positions of its topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from shared.contract.errors import TOPIC_NOT_FOUND, Refusal
from shared.contract.seek import Seek
from shared.contract.watch_request import WatchRequest
from topicsd.engine.read.position import followed_epoch, position_past_head
from topicsd.engine.read.seek import seek
from topicsd.engine.state import ShardState
from topicsd.engine.topic_admin import topic_not_found, topic_state
from topicsd.log.control_frame import WatchSession


class Stand(NamedTuple):
    """The position of a topic."""

    head_seq: int
    earliest_seq: int
    epoch: int
    from_seq: int | None = None
    """The seq that a seek found, or None without a seek."""


class Defined(NamedTuple):
    session: WatchSession
    stands: list[Stand]
    """In the order of the session's topics."""


Asked = tuple[str, Seek | None]
"""A topic, and the seek in it or None."""


def stands_here(
    shard: ShardState, asked: Sequence[Asked], told: Callable[[list[Stand | None]], object]
) -> None:
    """Call `told` with the position of each topic of this shard; None if it does not exist.

    Called at once, or when all seeks are done.
    """
    places: dict[str, int] = {}
    missing = [one for one in asked if one[1] is not None]

    def go_on() -> None:
        told([_stand(shard, name, places.get(name)) for name, _ in asked])

    def found(name: str, place: int | Refusal) -> None:
        if not isinstance(place, Refusal):
            places[name] = place
        missing.pop()
        if not missing:
            go_on()

    if not missing:
        go_on()
    for name, sought in list(missing):
        assert sought is not None
        seek(shard, name, sought, partial(found, name))


def _stand(shard: ShardState, name: str, place: int | None) -> Stand | None:
    state = topic_state(shard, name)
    if isinstance(state, Refusal):
        return None
    return Stand(state.head_seq, state.earliest_seq, state.epoch, place)


def define(session: bytes, request: WatchRequest, stands: Mapping[str, Stand | None]) -> Defined | Refusal:
    """Define a session, or refuse one that has no topic and so would never deliver a record.

    `session` is the random part of its id.
    """
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
        sought = stand.from_seq if isinstance(from_seq, Seek) else from_seq
        seq = stand.head_seq if sought is None else sought
        if epoch == stand.epoch and seq > stand.head_seq:
            return position_past_head(name, seq, stand.head_seq, stand.epoch)
        from_seqs.append(seq)
        epochs.append(followed_epoch(seq, epoch, stand.head_seq, stand.epoch))
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
