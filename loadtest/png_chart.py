"""A chart of horizontal bars as a PNG, with nothing but zlib.

A picture of a dozen bars does not need a plotting library among the dependencies. Pixels are indices into a
small palette, lines are filtered not at all, and the text is a bitmap font drawn at twice its size.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import msgspec

from loadtest import png_font

PALETTE = ((255, 255, 255), (32, 32, 32), (200, 200, 200), (58, 141, 92), (196, 72, 60), (120, 132, 148))
WHITE, BLACK, LIGHT, GREEN, RED, GREY = range(len(PALETTE))

SCALE = 2
ROW = 34
MARGIN = 16
TITLE_WIDTH = 470
BAR_WIDTH = 560
TEXT_WIDTH = 460
WIDTH = TITLE_WIDTH + BAR_WIDTH + TEXT_WIDTH
# A bar of 1 ends before the space for bars does, so that more than the ceiling can be shown.
UNITS = 1.25


class Bar(msgspec.Struct, frozen=True):
    """`length` and `mark` in units of the ceiling; no length is no bar."""

    title: str
    text: str
    length: float | None
    mark: float | None
    color: int = GREY


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


def draw(heading: str, bars: Sequence[Bar]) -> bytes:
    """The chart as the bytes of a PNG file."""
    height = ROW * (len(bars) + 1) + 2 * MARGIN
    canvas = Canvas(WIDTH, height)
    canvas.write(MARGIN, MARGIN, heading)
    bottom = height - MARGIN
    canvas.fill(_across(1.0), MARGIN + ROW - 6, 2, bottom - MARGIN - ROW + 6, LIGHT)
    for number, bar in enumerate(bars):
        top = MARGIN + ROW * (number + 1)
        canvas.write(MARGIN, top + 4, bar.title)
        if bar.length is not None:
            end = min(_across(bar.length), TITLE_WIDTH + BAR_WIDTH)
            canvas.fill(TITLE_WIDTH, top, end - TITLE_WIDTH, ROW - 10, bar.color)
        if bar.mark is not None:
            canvas.fill(_across(bar.mark) - 1, top - 3, 3, ROW - 4, BLACK)
        canvas.write(TITLE_WIDTH + BAR_WIDTH + MARGIN, top + 4, bar.text)
    return canvas.png()


def _across(length: float) -> int:
    return TITLE_WIDTH + round(length / UNITS * BAR_WIDTH)
