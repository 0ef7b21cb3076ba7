"""Compression of responses: the same in every process and protocol."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from typing import Final

_GZIP: Final = b"content-encoding: gzip\r\n"
# Compressing a smaller response costs more than it saves.
COMPRESSED_BYTES_MIN: Final = 1024


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the client asks for gzip, with a weight other than zero.

    >>> accepts_gzip("br, GZIP;q=0.5"), accepts_gzip("gzip;q=0"), accepts_gzip("")
    (True, False, False)
    """
    for coding in accept_encoding.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compress(parts: Sequence[bytes | memoryview]) -> bytes:
    return gzip.compress(b"".join(parts), compresslevel=1, mtime=0)


def gzip_fields(fields: bytes) -> bytes:
    """Return the header fields of a compressed answer.

    >>> gzip_fields(b"vary: origin\\r\\n")
    b'vary: accept-encoding, origin\\r\\ncontent-encoding: gzip\\r\\n'
    """
    vary, names = b"vary: ", b"vary: accept-encoding"
    if vary in fields:
        return fields.replace(vary, names + b", ") + _GZIP
    return b"%b%b\r\n%b" % (fields, names, _GZIP)
