"""The kinds of messages on a link, by their numbers on the wire."""

from __future__ import annotations

from enum import IntEnum


class LinkKind(IntEnum):
    ANSWER = 0
    REQUEST = 1
    """An HTTP request for the owner of its topic, or for the supervisor."""
    LIST_TOPICS = 2
    CANCEL_WAIT = 3
    """To the answering end: answer the call of that number now, as far as possible (L2)."""
    RESERVE_TOPIC = 4
    """To the supervisor: request permission to create one more topic."""
    KEYS = 5
    """To a worker: use these API keys of that version from now on."""
    PART = 7
    """A part of the answer to the call of that number; more follows."""
    CREDIT = 8
    """A u32: bytes of the parts of that call that the calling end has passed on (L3)."""
    FEED = 6
    """To a worker: read after a position in one of its topics."""
    CREATE_SESSION = 9
    """To the supervisor: choose a home shard for a watch session. To a worker: create it there."""
    TOPIC_HEADS = 10
    """To a worker: return the heads of some of its topics."""
    ENTER_STREAM = 11
    """To the supervisor: request permission to open one more stream."""
    LEAVE_STREAM = 12
    """To the supervisor: report the end of a stream."""
    BODY = 13
    """The body of the request of that number, which follows next (L5)."""
    SHARED_BODY = 14
    """The same body, as the ticket of a body in shared memory."""
    PUT_ROUTE = 20
    """To the supervisor: create or change the rule of a route. To a worker: store it."""
    DELETE_ROUTE = 21
    """To a worker: delete the rule of that name."""
    LIST_ROUTES = 22
    """To a worker: list its rules."""
    TOPIC_DELETED = 23
    """To the supervisor: end the routes from and into a topic."""
    MOVE = 24
    """To a worker: append the records of a transfer to one of its topics."""
    ADOPT = 25
    """To a worker: adopt a topic of another shard, and hide it until it is placed there."""
    CANCEL_ADOPT = 26
    """To a worker: drop a hidden topic."""
    PLACE = 27
    """To the supervisor: record that topics have other shards."""
    HOLD = 28
    """To a worker: write nothing to the log until RELEASE, and answer with its place."""
    RELEASE = 29
    """To a worker: end the hold; answer when the log is synced up to that place."""
    PREPARE_ADOPT = 30
    """To a worker: fetch the sealed segments of a topic that it will adopt."""
    SURVEY = 31
    """To a worker: list its topics that the next rule of the placement gives to another shard."""
    RESHARD = 32
    """To the supervisor: change the number of shards."""
    FIND_TOPICS = 33
    """To a worker: list the topics of a selection, or wait for a new one."""
    KEY_REQUEST = 40
    """To the supervisor: a request about named keys (`key_request.py`)."""
