from __future__ import annotations

import msgspec
import pytest

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.requests import AppendAnswer


def test_the_records_of_a_request_get_contiguous_seqs_in_their_order() -> None:
    one = OneShard()
    assert one.append("t", "a", "b") == AppendAnswer("t", 1, 2, 2, True, False, "disk")
    assert one.append("t", "c", "d", "e") == AppendAnswer("t", 3, 5, 5, False, False, "disk")
    assert [(record.seq, record.data) for record in one.read("t").records] == [
        (1, b'"a"'),
        (2, b'"b"'),
        (3, b'"c"'),
        (4, b'"d"'),
        (5, b'"e"'),
    ]


def test_requests_of_one_turn_stand_in_the_order_in_which_they_came() -> None:
    one = OneShard()
    replies = [one.send_append("t", number, number) for number in range(20)]
    one.settle()
    assert [answer.answer.first_seq for answer in replies] == list(range(1, 41, 2))
    assert [record.data for record in one.read("t").records] == [b"%d" % (at // 2) for at in range(40)]


def test_data_and_meta_come_back_byte_for_byte() -> None:
    one = OneShard()
    odd = b'{ "z":1.0e2,"a" : [1,2 , 3],"a":2,"big":123456789012345678901234567890,"u":"\\u00e4\xc3\xa4" }'
    meta = msgspec.Raw(b'{"b":1 ,"a":0.10}')
    given = record(odd)
    given.meta = meta
    one.append("t", given)
    (stored,) = one.read("t").records
    assert (stored.data, stored.meta) == (odd, bytes(meta))
    one.kill()
    assert one.read("t").records == [stored]


@pytest.mark.parametrize("data", [None, 0, "", [], {}, False])
def test_any_json_is_data(data: object) -> None:
    one = OneShard()
    one.append("t", record(data))
    assert msgspec.json.decode(one.read("t").records[0].data) == data


def test_a_record_has_the_node_and_the_tag_it_was_given_or_the_node_of_its_request() -> None:
    one = OneShard()
    one.append("t", record(1), record(2, node="own"), record(3, tag="x"), node="request")
    one.append("t", record(4), record(5, node="own", tag="ä"))
    assert [(record.node, record.tag) for record in one.read("t").records] == [
        (b"request", b""),
        (b"own", b""),
        (b"request", b"x"),
        (b"", b""),
        (b"own", "ä".encode()),
    ]


def test_what_is_not_given_is_not_there() -> None:
    one = OneShard()
    one.append("t", record(1), record(2, meta={}))
    plain, empty = one.read("t").records
    assert (plain.meta, plain.tag, plain.node) == (None, b"", b"")
    assert empty.meta == b"{}"


def test_the_time_of_a_record_is_the_clocks_and_never_steps_back() -> None:
    one = OneShard()
    start = one.clock.now_ms()
    one.append("t", 1)
    one.clock.advance(500)
    one.append("t", 2, 3)
    one.clock.step_wall(-60_000)
    one.append("t", 4)
    one.kill()
    one.append("t", 5)
    one.clock.step_wall(120_000)
    one.append("t", 6)
    stamps = [record.ts - start for record in one.read("t").records]
    assert stamps == [0, 500, 500, 500, 500, one.clock.now_ms() - start]
    assert one.state("t").last_write_ts == one.clock.now_ms()


# -- limits -------------------------------------------------------------------------------------------------


def limits_of(**settings: int) -> OneShard:
    one = OneShard(**settings)
    one.append("t", 0)
    return one


def test_too_many_records_are_refused_with_field_and_bound() -> None:
    one = limits_of(max_batch_records=3)
    assert one.append("t", 1, 2, 3).last_seq == 4
    refusal = one.refused_append("t", 1, 2, 3, 4)
    assert (refusal.code, refusal.detail) == ("batch_too_large", {"field": "records", "max": 3})
    assert refusal.message == "records: must have at most 3 entries, got 4"


def test_a_write_without_records_is_refused() -> None:
    refusal = limits_of().refused_append("t")
    assert (refusal.code, refusal.detail) == ("invalid_request", {"field": "records"})
    assert "records" in refusal.message


def test_a_record_that_is_too_large_is_refused_with_field_and_bound() -> None:
    one = limits_of(max_record_bytes=100)
    one.append("t", record(b'"' + b"x" * 98 + b'"'))
    refusal = one.refused_append("t", record(1), record(b'"' + b"x" * 99 + b'"'))
    assert (refusal.code, refusal.detail) == ("record_too_large", {"field": "records[1]", "max": 100})
    assert "101" in refusal.message
    assert "100" in refusal.message


def test_data_and_meta_count_together_and_nothing_else_does() -> None:
    one = limits_of(max_record_bytes=100, max_meta_bytes=100)
    data, meta = b'"' + b"x" * 58 + b'"', b'"' + b"y" * 38 + b'"'
    fits = record(data, tag="a-tag", node="a-node")
    fits.meta = msgspec.Raw(meta)
    one.append("t", fits)
    fits.meta = msgspec.Raw(meta + b" ")
    assert one.refused_append("t", fits).code == "record_too_large"


@pytest.mark.parametrize(
    ("setting", "field"), [("max_tag_bytes", "tag"), ("max_node_bytes", "node"), ("max_meta_bytes", "meta")]
)
def test_a_part_that_is_too_long_is_refused_with_field_and_bound(setting: str, field: str) -> None:
    one = limits_of(**{setting: 10})

    def with_part(size: int) -> object:
        given = record(1)
        text = "ä" * (size // 2) + "x" * (size % 2)
        setattr(given, field, msgspec.Raw(b"x" * size) if field == "meta" else text)
        return given

    one.append("t", with_part(10))
    refusal = one.refused_append("t", 1, 2, with_part(11))
    assert (refusal.code, refusal.detail) == ("invalid_request", {"field": f"records[2].{field}", "max": 10})
    assert "11 bytes" in refusal.message
    assert "10" in refusal.message


def test_the_node_of_a_request_is_bounded_too() -> None:
    one = limits_of(max_node_bytes=10)
    assert one.refused_append("t", 1, node="x" * 11).code == "invalid_request"
    assert one.append("t", 1, node="x" * 10).last_seq == 2


@pytest.mark.parametrize("size", [0, 257])
def test_a_key_that_is_too_long_or_empty_is_refused(size: int) -> None:
    refusal = limits_of().refused_append("t", 1, idempotency_key="k" * size)
    assert (refusal.code, refusal.detail) == ("invalid_request", {"field": "idempotency_key", "max": 256})
    assert "256" in refusal.message


def test_a_refused_write_leaves_nothing_behind() -> None:
    one = OneShard(max_record_bytes=100, max_batch_records=5)
    before = one.disk.calls
    too_large = record(b"1" * 101)
    assert one.refused_append("new", 1, too_large).code == "record_too_large"
    assert one.refused_append("new", *range(6)).code == "batch_too_large"
    assert one.shard.topic_names() == []
    assert one.disk.calls == before
    one.append("t", 1)
    assert one.refused_append("t", 1, too_large, idempotency_key="k").code == "record_too_large"
    assert (one.append("t", 2).first_seq, one.state("t").count) == (2, 2)
    assert one.append("t", 3, idempotency_key="k").deduped is False


def test_a_write_for_which_there_is_no_room_leaves_nothing_behind() -> None:
    one = OneShard(wal_file_bytes=4096)
    one.append("t", 1)
    one.disk.space_bytes = one.disk.used_bytes
    refusal = one.refused_append("t", record(b'"' + b"x" * 5000 + b'"', tag="a"))
    assert refusal.code == "storage_full"
    assert refusal.detail is not None
    assert refusal.detail["required_bytes"] > 5000
    assert one.refused_append("new", record(b'"' + b"x" * 5000 + b'"')).code == "storage_full"
    assert one.shard.topic_names() == ["t"]
    one.disk.space_bytes = None
    one.pass_time(6000)
    assert one.append("t", 2).first_seq == 2
    assert one.delete("t", tag="a").deleted == 0
    one.kill()
    assert [record.data for record in one.read("t").records] == [b"1", b"2"]
