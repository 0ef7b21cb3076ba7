"""Messages are read the same however they are split into frames and segments."""

from __future__ import annotations

from random import Random

import pytest

from tests.harness.clients.ws_client import PING, TEXT, masked
from topicsd.http.websocket.reader import ControlMessage, Message, Violation, WsReader

BYTES_MAX = 1 << 17
ALPHABET = 'a"€é😀\\'


def _text(rng: Random) -> bytes:
    size = rng.choice([0, 1, 3, 130, 70_000 // 4])
    return "".join(rng.choices(ALPHABET, k=size)).encode()


def _fragments(rng: Random, text: bytes) -> list[bytes]:
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randrange(4)))
    return [text[low:high] for low, high in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_messages_are_read_however_they_are_split() -> None:
    for seed in range(200):
        rng = Random(seed)
        texts = [_text(rng) for _ in range(4)]
        sent, pings = b"", 0
        for text in texts:
            fragments = _fragments(rng, text)
            for number, fragment in enumerate(fragments):
                last = 0x80 if number == len(fragments) - 1 else 0
                sent += masked(last | (0 if number else TEXT), fragment)
                if rng.random() < 0.3:
                    sent += masked(0x80 | PING, b"p")
                    pings += 1
        reader = WsReader(BYTES_MAX)
        items: list[object] = []
        at = 0
        while at < len(sent):
            size = rng.choice([1, 2, 7, 1000, 1 << 16])
            reader.feed(sent[at : at + size])
            at += size
            while (one := reader.next()) is not None:
                items.append(one)
        assert [one.text for one in items if isinstance(one, Message)] == texts, f"seed {seed}"
        pongs = [one for one in items if isinstance(one, ControlMessage) and one.payload == b"p"]
        assert len(pongs) == pings, f"seed {seed}"
        assert not any(isinstance(one, Violation) for one in items), f"seed {seed}"
        assert reader.pending_bytes == 0


@pytest.mark.parametrize("sizes", [[11], [5, 6], [0, 10, 0, 1], [10, 1]])
def test_a_message_is_bounded_whatever_its_fragments(sizes: list[int]) -> None:
    reader = WsReader(10)
    for number, size in enumerate(sizes):
        reader.feed(masked(0 if number else TEXT, b"x" * size))
    items = [reader.next() for _ in range(len(sizes) + 1)]
    (violation,) = (one for one in items if isinstance(one, Violation))
    assert violation.code == 1009


def test_the_bound_applies_to_each_message_alone() -> None:
    reader = WsReader(10)
    for _ in range(5):
        reader.feed(masked(TEXT, b"x" * 5) + masked(0x80, b"x" * 5) + masked(0x80 | TEXT, b"x" * 10))
        assert [reader.next(), reader.next()] == [Message(b"x" * 10)] * 2
    assert reader.next() is None
