"""The field `Content-Digest` (RFC 9530): digests of a body as it is sent, which are compared as it arrives.

>>> digests_of("sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:").keys()
dict_keys(['sha-256'])
>>> digests_of("md5=:1B2M2Y8AsgTpgAmY7PhCfg==:").message
'content-digest: must have a digest by sha-256 or sha-512, as in sha-256=:BASE64:'
"""

from __future__ import annotations

import hashlib
import re
from binascii import Error, a2b_base64
from collections.abc import Callable
from typing import Any, Final, Protocol

from shared.contract.errors import Refusal, invalid
from shared.runtime.body_memory import SharedBody

_MEMBER: Final = re.compile(r"([a-z*][a-z0-9_.*-]*)=:([A-Za-z0-9+/]*={0,2}):")
_ALGORITHMS: Final[dict[str, Callable[[], Any]]] = {"sha-256": hashlib.sha256, "sha-512": hashlib.sha512}


def digests_of(field: str) -> dict[str, bytes] | Refusal:
    """Return the digests that are compared, by algorithm; others are ignored, as the standard says."""
    digests = {}
    for member in field.split(","):
        match = _MEMBER.fullmatch(member.strip(" \t"))
        if match is None:
            return _malformed()
        if match[1] in _ALGORITHMS:
            try:
                digests[match[1]] = a2b_base64(match[2], strict_mode=True)
            except Error:
                return _malformed()
    return digests or _malformed()


def _malformed() -> Refusal:
    rule = "must have a digest by sha-256 or sha-512, as in sha-256=:BASE64:"
    return invalid("content-digest", rule)


class _Sink(Protocol):
    def write(self, data: bytes) -> Refusal | None: ...

    def finish(self) -> bytes | SharedBody | Refusal: ...


class DigestSink:
    """Hash a body on its way to another sink, and refuse it at its end when it has another digest."""

    def __init__(self, sink: _Sink, digests: dict[str, bytes]) -> None:
        self._sink = sink
        self._expected = digests
        self._hashes = {name: _ALGORITHMS[name]() for name in digests}

    def write(self, data: bytes) -> Refusal | None:
        for one in self._hashes.values():
            one.update(data)
        return self._sink.write(data)

    def finish(self) -> bytes | SharedBody | Refusal:
        for name, one in self._hashes.items():
            if one.digest() != self._expected[name]:
                return invalid("content-digest", f"must be the {name} digest of the body as it was received")
        return self._sink.finish()
