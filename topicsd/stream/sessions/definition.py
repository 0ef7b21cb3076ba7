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
from topicsd.log.control_frame import SessionFrame


class TopicPosition(NamedTuple):
    """The position of a topic."""

    head_seq: int
    earliest_seq: int
    epoch: int
    from_seq: int | None = None
    """The seq that a seek found, or None without a seek."""


class NewSession(NamedTuple):
    session: SessionFrame
    positions: list[TopicPosition]
    """In the order of the session's topics."""


PositionRequest = tuple[str, Seek | None]
"""A topic, and the seek in it or None."""


def local_positions(
    shard: ShardState,
    requests: Sequence[PositionRequest],
    on_positions: Callable[[list[TopicPosition | None]], object],
) -> None:
    """Call `on_positions` with the position of each topic of this shard; None if it does not exist.

    Called at once, or when all seeks are done.
    """
    seqs: dict[str, int] = {}
    pending = [one for one in requests if one[1] is not None]

    def report() -> None:
        on_positions([_position(shard, name, seqs.get(name)) for name, _ in requests])

    def on_seek(name: str, result: int | Refusal) -> None:
        if not isinstance(result, Refusal):
            seqs[name] = result
        pending.pop()
        if not pending:
            report()

    if not pending:
        report()
    for name, target in list(pending):
        assert target is not None
        seek(shard, name, target, partial(on_seek, name))


def _position(shard: ShardState, name: str, from_seq: int | None) -> TopicPosition | None:
    state = topic_state(shard, name)
    if isinstance(state, Refusal):
        return None
    return TopicPosition(state.head_seq, state.earliest_seq, state.epoch, from_seq)


def define(
    session: bytes, request: WatchRequest, positions: Mapping[str, TopicPosition | None]
) -> NewSession | Refusal:
    """Define a session, or refuse one that has no topic and so would never deliver a record.

    `session` is the random part of its id.
    """
    names: list[str] = []
    from_seqs: list[int] = []
    epochs: list[int] = []
    ordered: list[TopicPosition] = []
    columns = zip(request.names, request.from_seqs, request.epochs, strict=True)
    for name, from_seq, epoch in columns:
        position = positions[name]
        if position is None:
            if not request.is_lenient:
                return topic_not_found(name)
            continue
        names.append(name)
        target_seq = position.from_seq if isinstance(from_seq, Seek) else from_seq
        seq = position.head_seq if target_seq is None else target_seq
        if epoch == position.epoch and seq > position.head_seq:
            return position_past_head(name, seq, position.head_seq, position.epoch)
        from_seqs.append(seq)
        epochs.append(followed_epoch(seq, epoch, position.head_seq, position.epoch))
        ordered.append(position)
    if not names:
        return Refusal(TOPIC_NOT_FOUND, "topics: must name at least one topic that exists")
    options = request.options
    definition = SessionFrame(
        session=session,
        key_id=request.key_id,
        names=names,
        from_seqs=from_seqs,
        epochs=epochs,
        nodes=sorted(options.nodes),
        limit=options.limit,
        bytes_max=options.bytes_max,
        heartbeat_ms=request.heartbeat_ms,
        with_tags=options.with_tags,
        with_meta=options.with_meta,
        with_data=options.with_data,
        is_strong=options.is_strong,
    )
    return NewSession(definition, ordered)
