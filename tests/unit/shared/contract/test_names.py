import pytest

from shared.contract.errors import INVALID_REQUEST
from shared.contract.names import (
    NAME_CHARACTERS_MAX,
    is_route_name,
    is_topic_name,
    refuse_route_name,
    refuse_topic_name,
    topic_id,
)

GOOD = ["a", "Z", "0", "orders", "orders.eu:2024_q-1", "a" * NAME_CHARACTERS_MAX, "a..b", "0:"]
BAD = ["", ".a", "-a", "_a", ":a", "a b", "a/b", "a\x00b", "a\ud800", "ä", "aä", "a%2Fb", "a" * 256]


@pytest.mark.parametrize("name", GOOD)
def test_a_valid_name_is_valid_for_a_topic_and_a_route(name: str) -> None:
    assert is_topic_name(name)
    assert is_route_name(name)
    assert refuse_topic_name(name) is None
    assert refuse_route_name(name) is None


@pytest.mark.parametrize("name", BAD)
def test_an_invalid_name_is_valid_for_neither(name: str) -> None:
    assert not is_topic_name(name)
    assert not is_route_name(name)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\u2028"])
def test_a_name_with_a_final_newline_is_invalid(end: str) -> None:
    assert not is_topic_name("orders" + end)
    assert not is_route_name("orders" + end)


def test_digits_of_other_scripts_are_invalid() -> None:
    assert not is_topic_name("\u0663")
    assert not is_topic_name("a\u0663")


def test_only_a_route_name_may_contain_an_arrow() -> None:
    assert is_route_name("orders>billing")
    assert not is_topic_name("orders>billing")
    assert not is_route_name(">orders")


def test_a_refusal_names_the_field_and_the_rule() -> None:
    refusal = refuse_topic_name("a b", "dead_letter")
    assert refusal is not None
    assert refusal.code == INVALID_REQUEST
    assert refusal.message == (
        "dead_letter: must be a topic name, 1 to 255 of A-Z a-z 0-9 . _ : - "
        'that begins with a letter or digit, got "a b"'
    )
    assert refusal.detail == {"field": "dead_letter"}
    refusal = refuse_route_name("a b")
    assert refusal is not None
    assert refusal.message.startswith("router: must be a route name, 1 to 255 of A-Z a-z 0-9 . _ : > - ")


def test_a_refusal_of_a_hostile_name_stays_short_and_encodable() -> None:
    refusal = refuse_topic_name("\ud800\n" * 1_000_000)
    assert refusal is not None
    assert len(refusal.message.encode()) < 500
    assert "2000000 characters" in refusal.message


def test_an_id_is_xxh3_64_of_the_name() -> None:
    assert topic_id("") == 0x2D06800538D394C2
    assert topic_id("a") == 0xE6C632B61E964E1F
    assert topic_id("orders") != topic_id("Orders")
