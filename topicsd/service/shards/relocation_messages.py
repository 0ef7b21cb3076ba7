"""The messages of a relocation between the workers of its source and its target."""

from __future__ import annotations

from typing import Final

import msgspec

from shared.contract.errors import Refusal
from topicsd.engine.bundle.bundle_format import SealedPart


class PrepareRequest(msgspec.Struct, array_like=True):
    """The request to fetch sealed segments of a topic that is about to move."""

    source: int
    source_pid: int
    part: SealedPart


class AdoptRequest(msgspec.Struct, array_like=True):
    """The request to adopt a topic. The body is its bundle, and then the files of its tail."""

    source: int
    source_pid: int
    bundle_bytes: int
    tail: dict[str, int]
    """The bytes of each file of the tail, by key, in their order in the body."""

    def files(self, body: bytes) -> dict[str, bytes]:
        """Return the files of the tail."""
        files, at = {}, self.bundle_bytes
        for key, size in self.tail.items():
            files[key] = body[at : at + size]
            at += size
        return files


class AdoptAnswer(msgspec.Struct, array_like=True):
    pid: int
    """The worker that prepared or adopted the topic."""
    refusal: Refusal | None = None


class CancelRequest(msgspec.Struct, array_like=True):
    topic: str
    epoch: int


encode_message: Final = msgspec.msgpack.Encoder().encode
decode_prepare: Final = msgspec.msgpack.Decoder(PrepareRequest).decode
decode_adopt: Final = msgspec.msgpack.Decoder(AdoptRequest).decode
decode_adopt_answer: Final = msgspec.msgpack.Decoder(AdoptAnswer).decode
decode_cancel: Final = msgspec.msgpack.Decoder(CancelRequest).decode
