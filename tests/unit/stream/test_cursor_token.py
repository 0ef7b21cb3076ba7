"""Event ids from clients: an id that the server cannot have sent is refused."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import pytest

from shared.contract.topic_config import NUMBER_MAX
from topicsd.stream.cursor_token import cursor_token, read_token

NAMES = ["a", "b"]


def test_a_token_with_a_number_above_the_maximum_seq_is_refused() -> None:
    many = [f"t{number}" for number in range(65)]
    assert read_token(cursor_token(NAMES, [NUMBER_MAX, 1]).decode(), NAMES) is not None
    for token in (
        cursor_token(NAMES, [NUMBER_MAX + 1, 1]),
        cursor_token(NAMES, [1 << 69, 1], [0, 0]),
        cursor_token(NAMES, [1, 1], [0, NUMBER_MAX + 1]),
    ):
        assert read_token(token.decode(), NAMES) is None
    assert read_token(cursor_token(many, [1 << 69] * 65).decode(), many) is None


@pytest.mark.parametrize("data", [b"{}", b'{"c":1,"d":2}'])
def test_a_token_with_none_of_the_topics_is_refused(data: bytes) -> None:
    assert read_token(urlsafe_b64encode(data).decode(), NAMES) is None
    assert read_token(urlsafe_b64encode(b'{"c":1,"a":2}').decode(), NAMES) == {"a": (2, None)}
