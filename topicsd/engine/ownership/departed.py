"""Departed topics: those whose files are here, and that this node must not serve.

A departed topic is not found by its name, so no request reaches it; a request gets the refusal that says
where the topic is. It is still found by its id, so checkpoints keep its entry and its segments.

    state      cause                                                          what the operator can do
    moved      the catalog names another owner, or another topic of the name  use the owner
    sealed     the topic is sealed                                            adopt it, on any node
    outdated   the files end before what the owner has exported               adopt it with accept_loss
    forgotten  the catalog has no row of the topic: it was deleted elsewhere  delete it here, or keep it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from shared.contract.errors import TOPIC_MOVED, TOPIC_SEALED, Refusal
from topicsd.catalog.catalog import TopicRow
from topicsd.log.control_frame import DepartedFrame

if TYPE_CHECKING:
    from topicsd.engine.checkpoint.snapshot_format import SnapshotHead
    from topicsd.engine.topic import Topic

MOVED: Final = "moved"
SEALED: Final = "sealed"
OUTDATED: Final = "outdated"
FORGOTTEN: Final = "forgotten"

DEPARTED: Final = "departed"
TO_FORGET: Final = "to_forget"
"""The names of the sections in the head of a snapshot."""


class Departed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A departed topic, and where it is."""

    name: str
    topic_id: int
    epoch: int
    state: str
    node: str
    owner_epoch: int
    since_ms: int


class ToForget(NamedTuple):
    """A row of the catalog to remove, since its topic was deleted here."""

    name: str
    epoch: int
    owner_epoch: int


def departed_by(topic: Topic, frame: DepartedFrame, ts: int) -> Departed:
    return Departed(topic.name, topic.topic_id, topic.epoch, frame.state, frame.node, frame.owner_epoch, ts)


def departure(row: TopicRow | None) -> str:
    """Return the state of a topic whose row does not permit this node to write it."""
    return FORGOTTEN if row is None else SEALED if row.state == "sealed" else MOVED


_encode = msgspec.msgpack.Encoder().encode
_decode_departed = msgspec.msgpack.Decoder(list[Departed]).decode
_decode_to_forget = msgspec.msgpack.Decoder(list[ToForget]).decode


def refuse_departed(one: Departed) -> Refusal:
    """Refuse a request for a departed topic, and say where the topic is.

    >>> refuse_departed(Departed("t", 1, 2, "sealed", "a", 3, 0)).message
    'topic "t" is sealed by node a with owner epoch 3; adopt it on the node that continues it'
    """
    owner = f"node {one.node} with owner epoch {one.owner_epoch}"
    message = {
        MOVED: f"is owned by {owner}; send the request there",
        SEALED: f"is sealed by {owner}; adopt it on the node that continues it",
        OUTDATED: f"is an older copy than what {owner} exported; adopt it with accept_loss",
        FORGOTTEN: "is not in the catalog any more: it was deleted on another node; "
        "DELETE frees its name and its files here",
    }[one.state]
    code = TOPIC_SEALED if one.state == SEALED else TOPIC_MOVED
    detail: dict[str, object] = {"state": one.state, "node": one.node, "owner_epoch": one.owner_epoch}
    return Refusal(code, f'topic "{one.name}" {message}', detail)


def refuse_to_delete(one: Departed) -> Refusal:
    """Refuse to delete a departed topic here, and say where to delete it.

    >>> refuse_to_delete(Departed("t", 1, 2, "sealed", "a", 3, 0)).message.partition("; ")[2]
    'adopt it on the node that continues it, and delete it there'
    """
    refusal = refuse_departed(one)
    more = {SEALED: ", and delete it there", OUTDATED: ", and delete it then"}.get(one.state, "")
    return msgspec.structs.replace(refusal, message=refusal.message + more)


def departed_sections(departed: dict[str, Departed], to_forget: dict[ToForget, None]) -> dict[str, bytes]:
    """Return the sections of the head of a snapshot."""
    sections = {}
    if departed:
        sections[DEPARTED] = _encode(list(departed.values()))
    if to_forget:
        sections[TO_FORGET] = _encode(list(to_forget))
    return sections


def departed_of(head: SnapshotHead) -> list[Departed]:
    return _decode_departed(head.sections[DEPARTED]) if DEPARTED in head.sections else []


def to_forget_of(head: SnapshotHead) -> list[ToForget]:
    return _decode_to_forget(head.sections[TO_FORGET]) if TO_FORGET in head.sections else []
