"""A canvas of rectangles and text that is encoded as PNG with zlib alone.

A chart of a few dozen bars does not justify a plotting library as a dependency. Pixels are indices into a
small palette, lines are not filtered, and text is a bitmap font drawn at twice its size.
"""

from __future__ import annotations

import struct
import zlib

from spark.chart import font as png_font

PALETTE = ((255, 255, 255), (32, 32, 32), (200, 200, 200), (58, 141, 92), (196, 72, 60), (120, 132, 148))
WHITE, BLACK, LIGHT, GREEN, RED, GREY = range(len(PALETTE))

SCALE = 2


class Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.lines = [bytearray(width) for _ in range(height)]

    def fill(self, left: int, top: int, width: int, height: int, color: int) -> None:
        right = max(left, min(left + width, self.width))
        for line in self.lines[top : top + height]:
            line[left:right] = bytes([color]) * (right - left)

    def write(self, left: int, top: int, text: str, color: int = BLACK) -> None:
        for character in text:
            for x, column in enumerate(png_font.columns(character)):
                for y in range(png_font.HEIGHT):
                    if column >> y & 1:
                        self.fill(left + x * SCALE, top + y * SCALE, SCALE, SCALE, color)
            left += (png_font.WIDTH + 1) * SCALE

    def png(self) -> bytes:
        head = struct.pack(">IIBBBBB", self.width, len(self.lines), 8, 3, 0, 0, 0)
        palette = bytes(part for color in PALETTE for part in color)
        pixels = zlib.compress(b"".join(b"\0" + line for line in self.lines), 9)
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            _chunk(kind, data)
            for kind, data in ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", pixels), (b"IEND", b""))
        )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
