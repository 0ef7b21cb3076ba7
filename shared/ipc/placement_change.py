"""The request of a worker to the supervisor to record that topics have other shards."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal


class PlacementChange(msgspec.Struct, array_like=True, frozen=True):
    shards: dict[str, int]
    """The new shards of topics."""
    pids: dict[int, int]
    """The workers that agreed on it, by shard. If one of them has ended, the change is refused."""
    is_over: bool = False
    """Whether no other shard has a copy of these topics any more, after the same change was made earlier."""


encode_placement_message: Final = msgspec.msgpack.Encoder().encode
decode_placement_change: Final = msgspec.msgpack.Decoder(PlacementChange).decode
decode_placement_answer: Final = msgspec.msgpack.Decoder(Refusal | None).decode
