"""A backup point: one place in the log of each shard, so that no shard is ahead of another.

A worker answers a hold with its place, and a release with an empty text, or with the reason why there is no
backup point.
"""

from __future__ import annotations

import msgspec


class ShardPoint(msgspec.Struct, frozen=True):
    """The end of the log of one shard."""

    shard: int
    file: int = 0
    """The WAL file, by its first ordinal; 0 when the shard has no log yet."""
    offset: int = 0
    ordinal: int = 0


class BackupPoint(msgspec.Struct, frozen=True):
    """The answer of `POST /v0/backup-points`, without `performance`."""

    shards: list[ShardPoint]
    pause_ms: float
    """The longest time for which a shard may have written nothing."""


encode_hold = msgspec.msgpack.Encoder().encode
decode_hold = msgspec.msgpack.Decoder(ShardPoint | str).decode
decode_release = msgspec.msgpack.Decoder(str).decode
decode_point = msgspec.json.Decoder(BackupPoint).decode
