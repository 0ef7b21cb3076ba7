"""A reader of palette PNGs that checks every checksum."""

from __future__ import annotations

import struct
import zlib

from spark.chart.canvas import PALETTE


def read_png(data: bytes) -> tuple[int, int, list[bytes]]:
    """Return width, height and the lines of palette indices; check every checksum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks: dict[bytes, bytes] = {}
    at = 8
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", data, at + 8 + size) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        at += size + 12
    assert list(chunks) == [b"IHDR", b"PLTE", b"IDAT", b"IEND"]
    width, height, depth, color, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, color) == (8, 3)
    assert len(chunks[b"PLTE"]) == 3 * len(PALETTE)
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert len(pixels) == (width + 1) * height
    return width, height, [pixels[line * (width + 1) + 1 :][:width] for line in range(height)]
