"""The bounds of JSON agree with a decoder, also when a text is examined in small blocks."""

from __future__ import annotations

import json
from random import Random

import pytest

import shared.contract.json_bounds
from shared.contract.json_bounds import is_too_deep, is_utf8, may_hold_nul

TEXTS = ["", "[", "]", '"', "\\", '\\"', "a\\\\", "{}[", "é", "\U0001f600", 'x"]["y']


def _value(rng: Random, depth: int) -> object:
    kind = rng.random()
    if depth <= 0 or kind < 0.25:
        return rng.choice([*TEXTS, 1, None])
    if kind < 0.6:
        return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(TEXTS): _value(rng, depth - 1) for _ in range(rng.randrange(4))}


def _depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 64, 1 << 16])
def test_the_depth_is_that_of_the_value_for_any_block_size(
    monkeypatch: pytest.MonkeyPatch, block_bytes: int
) -> None:
    monkeypatch.setattr(shared.contract.json_bounds, "BLOCK_BYTES", block_bytes)
    rng = Random(block_bytes)
    for _ in range(300):
        value = _value(rng, rng.randrange(14))
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        depth = _depth(value)
        for bound in (depth - 1, depth, depth + 1, 3):
            assert is_too_deep(text, bound) == (depth > bound), (text, bound)


@pytest.mark.parametrize("block_bytes", [1, 3, 1 << 16])
def test_utf8_is_recognized_for_any_block_size(monkeypatch: pytest.MonkeyPatch, block_bytes: int) -> None:
    monkeypatch.setattr(shared.contract.json_bounds, "BLOCK_BYTES", block_bytes)
    rng = Random(block_bytes)
    for _ in range(500):
        text = bytearray("aé\u20ac\U0001f600".encode() * 2)
        for _ in range(rng.randrange(3)):
            text[rng.randrange(len(text))] = rng.choice([0x41, 0x80, 0xC0, 0xC3, 0xED, 0xF5, 0xFF])
        sent = bytes(text[: rng.randrange(len(text) + 1)])
        assert is_utf8(sent) == _decodes(sent), sent


def _decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_an_escaped_nul_is_detected() -> None:
    assert may_hold_nul(b'"\\u0000"')
    assert not may_hold_nul(b'"\\u0001"')
