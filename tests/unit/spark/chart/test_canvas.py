from __future__ import annotations

from spark.chart import font as png_font
from spark.chart.canvas import BLACK, Canvas
from tests.harness.output.png_reader import read_png


def test_what_was_filled_is_in_the_picture() -> None:
    canvas = Canvas(6, 3)
    canvas.fill(4, 1, 9, 1, BLACK)
    assert read_png(canvas.png()) == (6, 3, [bytes(6), bytes([0, 0, 0, 0, BLACK, BLACK]), bytes(6)])


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
