from __future__ import annotations

import struct
import zlib

from loadtest import png_font
from loadtest.png_chart import BLACK, GREEN, PALETTE, RED, TITLE_WIDTH, WIDTH, Bar, Canvas, draw


def read_png(data: bytes) -> tuple[int, int, list[bytes]]:
    """Width, height and the lines of palette indices; every sum is checked."""
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


def test_a_chart_is_a_png_with_bars_of_the_right_length() -> None:
    data = draw("heading", [Bar("a", "0.5", 0.5, None, GREEN), Bar("b", "1", 1.0, None, RED)])
    width, _, lines = read_png(data)
    assert width == WIDTH
    lengths = {color: max(line.count(color) for line in lines) for color in (GREEN, RED)}
    assert lengths[GREEN] * 2 == lengths[RED] > 100
    assert next(line for line in lines if GREEN in line).index(GREEN) == TITLE_WIDTH


def test_a_bar_that_is_too_long_stays_in_its_space() -> None:
    _, _, lines = read_png(draw("", [Bar("", "", 50.0, 1.0, GREEN)]))
    assert max(line.count(GREEN) for line in lines) < WIDTH - TITLE_WIDTH


def test_text_is_drawn_and_an_unknown_character_is_a_question_mark() -> None:
    drawn = []
    for text in ("?", "é", "I"):
        canvas = Canvas(20, 20)
        canvas.write(0, 0, text)
        drawn.append(b"".join(canvas.lines))
    assert drawn[0] == drawn[1] != drawn[2]
    assert BLACK in drawn[2]


def test_every_printable_character_but_the_blank_has_dots() -> None:
    shapes = {chr(code): png_font.columns(chr(code)) for code in range(32, 127)}
    assert [character for character, shape in shapes.items() if not any(shape)] == [" "]
    assert len(set(shapes.values())) == len(shapes)
