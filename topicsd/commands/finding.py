"""One thing that is wrong with a shard, where, and how bad it is.

Must not know: how it was found, or what to do about it.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """How bad it is; the worst last."""

    MENDS = "mends"
    """Nothing is lost: it is made again from what is there, or only readers from outside use it."""
    LOSS = "loss"
    """Data is damaged or gone; the rest of the shard is served."""
    STOPS = "stops"
    """The shard does not start."""


MEANS = {
    Level.MENDS: "nothing is lost by it, and a server starts",
    Level.LOSS: "data is damaged; a server starts, and serves the rest",
    Level.STOPS: "a server does not start this shard",
}

MEANS_STOPPED = {
    **MEANS,
    Level.MENDS: "by itself nothing is lost by it",
    Level.LOSS: "data is damaged; the rest can be served once the shard starts",
}
"""Of a shard that does not start for another reason."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """The place is as exact as it can be known."""

    what: str
    level: Level = Level.STOPS
    file: str | None = None
    offset: int | None = None
    topic: str | None = None
    seq: int | None = None
