"""A finding about a shard: the fault, its place and its severity."""

from __future__ import annotations

from enum import Enum

import msgspec


class Level(Enum):
    """The severity of a finding, in ascending order."""

    HARMLESS = "harmless"
    """No data is lost: a server rebuilds the file from others, or only outside readers use it."""
    LOSS = "loss"
    """Data is damaged or missing; the rest of the shard is served."""
    STOPS = "stops"
    """The shard does not start."""


MEANS = {
    Level.HARMLESS: "no data is lost; a server starts this shard",
    Level.LOSS: "data is damaged; a server starts this shard and serves the rest",
    Level.STOPS: "a server does not start this shard",
}

MEANS_STOPPED = {
    **MEANS,
    Level.HARMLESS: "no data is lost",
    Level.LOSS: "data is damaged; the rest can be served once the shard starts",
}
"""The meanings for a shard that does not start for another reason."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in a data directory, with its place as exactly as it is known."""

    what: str
    level: Level = Level.STOPS
    file: str | None = None
    offset: int | None = None
    topic: str | None = None
    seq: int | None = None
