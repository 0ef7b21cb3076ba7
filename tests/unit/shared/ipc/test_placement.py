import re
from typing import Any

import msgspec
import pytest
import xxhash

from shared.contract.names import topic_id
from shared.ipc.placement import (
    ID_END,
    FormerRule,
    Placement,
    PlacementDamaged,
    PlacementError,
    decode_placement,
    encode_placement,
    shard_of,
)

NAME_COUNT = 100_000


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return [topic_id(f"topic-{number}") for number in range(NAME_COUNT)]


def test_one_shard_owns_everything() -> None:
    assert {shard_of(number, 1) for number in (0, 1, 2**63, 2**64 - 1)} == {0}


def test_the_shard_with_the_highest_score_wins() -> None:
    number = 0x0123456789ABCDEF
    id_bytes = bytes.fromhex("efcdab8967452301")
    scores = [xxhash.xxh3_64_intdigest(id_bytes, seed=shard) for shard in range(16)]
    for count in range(1, 17):
        assert shard_of(number, count) == scores.index(max(scores[:count]))


@pytest.mark.parametrize("wrong", [-1, 2**64])
def test_a_number_that_is_not_an_id_is_an_assertion_error(wrong: int) -> None:
    with pytest.raises(AssertionError):
        shard_of(wrong, 2)


def test_a_shard_count_of_zero_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        shard_of(1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 15])
def test_an_added_shard_takes_its_share_and_moves_nothing_else(ids: list[int], count: int) -> None:
    before = [shard_of(number, count) for number in ids]
    after = [shard_of(number, count + 1) for number in ids]
    targets = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(targets) == {count}
    assert abs(len(targets) / NAME_COUNT - 1 / (count + 1)) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 5, 16])
def test_shards_get_equal_shares(ids: list[int], count: int) -> None:
    shares = [0] * count
    for number in ids:
        shares[shard_of(number, count)] += 1
    assert all(abs(share / NAME_COUNT - 1 / count) <= 0.02 / count * 2 for share in shares)


# -- exceptions --------------------------------------------------------------------------------------------


def test_an_exception_is_stronger_than_the_rule() -> None:
    placement = Placement(5, {"orders": 4})
    assert placement.owner_of("orders") == 4
    assert placement.owner_of("orders.eu") == 3


def test_a_change_keeps_entries_that_agree_with_the_rule() -> None:
    first = Placement(2).changed({"orders": 1, "a": 0})
    assert first.exceptions == {"a": 0, "orders": 1}
    second = first.changed({"a": 1, "Z9": 1})
    assert (second.exceptions, second.version) == ({"Z9": 1, "a": 1, "orders": 1}, 2)
    assert second.settled(2).exceptions == {"orders": 1}


def test_a_change_of_the_rule_drops_the_exceptions_that_it_makes_true() -> None:
    names = [f"topic-{number}" for number in range(500)]
    moving = {name: 2 for name in names if shard_of(topic_id(name), 3) == 2}
    grown = Placement(2).changed({"topic-1": 0, "topic-2": 1}).changed(moving)
    assert all(grown.owner_of(name) == 2 for name in moving)
    whole = grown.settled(3)
    assert [whole.owner_of(name) for name in names] == [grown.owner_of(name) for name in names]
    assert set(whole.exceptions) <= {"topic-1", "topic-2"}


# -- the file ----------------------------------------------------------------------------------------------


def decoded(text: bytes, shards: int = 5) -> Placement:
    return decode_placement(text, "/data/PLACEMENT.json", shards)


def file_of(**changes: object) -> bytes:
    """Return a file with a right checksum, whatever it says."""
    content = {"format": 1, "version": 1, "shards": 2, "exceptions": {}, **changes, "checksum": ""}
    content["checksum"] = xxhash.xxh3_64_hexdigest(msgspec.json.encode(content))
    return msgspec.json.encode(content)


def test_a_file_is_read_back() -> None:
    placement = Placement(4).changed({"orders": 3, "jobs:mail": 1}).changed({"a.b-c": 2})
    back = decoded(encode_placement(placement))
    assert (back.shard_count, back.exceptions, back.version) == (4, placement.exceptions, 2)


def test_every_changed_byte_is_noticed() -> None:
    text = encode_placement(Placement(2).changed({"orders": 1}))
    for at in range(len(text)):
        damaged = text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :]
        try:
            back = decoded(damaged)
        except PlacementError:
            continue
        # White space is not covered by the checksum.
        assert (back.exceptions, back.version, back.shard_count) == ({"orders": 1}, 1, 2)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"format":1}', b"\xff"])
def test_a_file_that_is_no_placement_is_damaged(text: bytes) -> None:
    with pytest.raises(PlacementDamaged, match=r"/data/PLACEMENT\.json: damaged"):
        decoded(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 0}, "version: must be at least 1, got 0"),
        ({"shards": 0}, "shards: must be 1 to 5, as many as the layout names, got 0"),
        ({"shards": 6}, "shards: must be 1 to 5, as many as the layout names, got 6"),
        ({"exceptions": {"orders": 5}}, 'exceptions["orders"]: must be a shard from 0 to 4, got 5'),
        ({"exceptions": {"orders": -1}}, 'exceptions["orders"]: must be a shard from 0 to 4, got -1'),
        ({"exceptions": {"a/b": 1}}, "exceptions: 'a/b' is not the name of a topic"),
    ],
)
def test_content_out_of_bounds_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(PlacementDamaged) as raised:
        decoded(file_of(**changes))
    assert str(raised.value) == f"/data/PLACEMENT.json: {message}"


def test_a_newer_format_is_not_called_damaged() -> None:
    with pytest.raises(PlacementError, match="unknown format 2; this program reads format 1") as raised:
        decoded(file_of(format=2, more=1))
    assert not isinstance(raised.value, PlacementDamaged)


def test_a_reshard_moves_no_topic_at_once_and_covers_all_ids_in_the_end() -> None:
    names = [f"topic-{number}" for number in range(300)]
    before = Placement(2).changed({"chosen": 1 - Placement(2).owner_of("chosen")})
    owners = {name: before.owner_of(name) for name in [*names, "chosen"]}
    placement, first_id = before, 0
    while first_id < ID_END:
        first_id = min(ID_END, first_id + ID_END // 3)
        elsewhere = {
            name: shard
            for name, shard in owners.items()
            if topic_id(name) < first_id and shard_of(topic_id(name), 5) != shard
        }
        placement = placement.resharded(5, first_id, elsewhere, {}, (), 9)
        placement = decode_placement(encode_placement(placement), "p", 5)
        assert {name: placement.owner_of(name) for name in owners} == owners
        assert placement.unmoved == elsewhere.keys() - {"chosen"}
        moves = {name: placement.rule_shard_of(topic_id(name)) for name in placement.unmoved}
        placement = placement.changed(moves).without_entries(moves)
        owners |= moves
        assert not placement.unmoved
    assert (placement.shard_count, placement.former, placement.epoch_floor) == (5, FormerRule(), 9)
    assert placement.exceptions == {"chosen": before.exceptions["chosen"]}
    assert all(placement.owner_of(name) == shard_of(topic_id(name), 5) for name in names)


def test_the_target_of_a_reshard_is_kept_until_the_rule_has_it() -> None:
    requested = Placement(2, version=4).with_target(5)
    requested = decode_placement(encode_placement(requested), "p", 2)
    assert (requested.shard_count, requested.target, requested.version) == (2, 5, 5)
    assert requested.changed({"orders": 1}).target == 5
    grown = requested.resharded(5, ID_END, {}, {}, (), 0)
    assert (grown.shard_count, grown.target) == (5, 0)
    # The number was requested back before the rule changed.
    back = requested.with_target(2).resharded(5, ID_END, {}, {}, (), 0)
    assert (back.shard_count, back.target) == (5, 2)
    assert decode_placement(encode_placement(back), "p", 5).target == 2


def test_an_entry_that_a_relocation_left_is_not_taken_for_a_chosen_shard() -> None:
    name = next(name for name in map("t{}".format, range(99)) if shard_of(topic_id(name), 5) == 4)
    home = shard_of(topic_id(name), 2)
    for shard in (0, 1):
        placement = Placement(2, {name: shard}, 3).resharded(5, ID_END, {name: shard}, {}, (), 0)
        assert (name in placement.unmoved) == (shard == home)


def test_a_reshard_keeps_the_entries_that_copies_and_departed_topics_need() -> None:
    at_home = next(name for name in map("t{}".format, range(99)) if shard_of(topic_id(name), 3) == 2)
    away = next(name for name in map("u{}".format, range(99)) if shard_of(topic_id(name), 3) == 0)
    placement = Placement(5, {"gone": 4}, 3).resharded(3, ID_END, {}, {away: 1}, {at_home}, 0)
    assert placement.exceptions == {at_home: 2, away: 1}
    assert not placement.unmoved
    placement = placement.resharded(3, ID_END, {}, {away: 1}, (), 0)
    assert placement.exceptions == {away: 1}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"former": FormerRule(6, 5)}, "former_shards: must be 1 to 5, got 6"),
        ({"target": -1}, "target_shards: must be at least 1, got -1"),
        ({"exceptions": {"a": 5}, "unmoved": ["a"]}, 'unmoved["a"]: must be a shard from 0 to 4, got 5'),
    ],
)
def test_a_reshard_with_impossible_numbers_is_refused(changes: dict[str, Any], problem: str) -> None:
    text = encode_placement(Placement(**{"shard_count": 5, "version": 1, **changes}))
    with pytest.raises(PlacementDamaged, match=re.escape(problem)):
        decode_placement(text, "p", 5)
