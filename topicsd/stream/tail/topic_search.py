"""A search for topics: the names that a client gave, and the patterns that topics created later match, too.

Every process that has topics answers searches: a shard for its own topics, a broker for the shared ones. The
first search lists what is there; each further one waits until there is a name that it does not know. An
answer has a *place*, and a search after it continues there (`topicsd/engine/wakeups/creations.py`). A broker
has no such places: it is given the known names instead.

A search crosses the link as msgpack, and so does its answer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from shared.contract.tag_filter import TopicSelection

NOT_NOW: Final = -1
"""The place in the answer of a process that cannot list its topics now."""


class TopicQuery(msgspec.Struct, frozen=True, array_like=True):
    """One search at one process."""

    selection: TopicSelection
    place: int | None
    """The place of the last answer; None to list all topics at once."""
    known: list[str]
    """Names that a broker need not report."""
    names_max: int


class TopicNames(msgspec.Struct, frozen=True, array_like=True):
    """The answer: names of topics, of which the follower may know some, and the place after them."""

    place: int
    names: list[str]


class TopicSearcher(Protocol):
    def search(self, query: TopicQuery, reply: Callable[[TopicNames], object]) -> Callable[[], None]:
        """Answer in a later turn of the loop. Return a function that cancels the search."""
        ...


encode_search: Final = msgspec.msgpack.Encoder().encode
decode_query: Final = msgspec.msgpack.Decoder(TopicQuery).decode
decode_names: Final = msgspec.msgpack.Decoder(TopicNames).decode
