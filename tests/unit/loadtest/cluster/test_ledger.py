from __future__ import annotations

import random

import msgspec
import pytest

from loadtest.cluster.hammer.ledger import Acked, Ledger
from loadtest.cluster.hammer.records import RecordRun, records_json, runs_of

P = ("load-0", 0)


def ledger(acked: list[Acked], read: list[RecordRun]) -> Ledger:
    made = Ledger()
    for one in acked:
        made.acknowledge(P, one)
    for run in read:
        made.read(P, run)
    return made


def test_records_come_back_as_the_runs_that_were_sent() -> None:
    first = msgspec.json.decode(records_json("t.0", 5, 3, 1_700_000_000_000_000, 64), type=list[str])
    second = msgspec.json.decode(records_json("t.1", 0, 2, 1_700_000_000_000_001, 64), type=list[str])
    assert {len(one) for one in (*first, *second)} == {64}
    assert runs_of(10, first + second, 64) == [
        RecordRun(10, "t.0", 5, 3, 1_700_000_000_000_000),
        RecordRun(13, "t.1", 0, 2, 1_700_000_000_000_001),
    ]


def test_a_number_that_does_not_follow_begins_another_run() -> None:
    sent = msgspec.json.decode(records_json("t.0", 5, 3, 1, 64), type=list[str])
    assert [run.number for run in runs_of(1, [sent[0], sent[2]], 64)] == [5, 7]


def test_a_record_of_another_size_is_damage() -> None:
    with pytest.raises(ValueError, match="offset 7: 3 bytes instead of 64"):
        runs_of(7, ["abc"], 64)


def test_a_run_in_which_all_is_well_has_no_violation() -> None:
    rng = random.Random(1)
    made, offset = Ledger(), 1
    for number in range(0, 500, 10):
        for producer in rng.sample(["a", "b", "c"], 3):
            made.acknowledge(P, Acked(offset, producer, number, 10))
            cut = rng.randrange(1, 10)
            made.read(P, RecordRun(offset, producer, number, cut, 1))
            made.read(P, RecordRun(offset + cut, producer, number + cut, 10 - cut, 1))
            offset += 10
    checked = made.check(read_to_end=True)
    assert checked == {
        "acked": 1500,
        "read": 1500,
        "acked_unread": 0,
        "read_unacked": 0,
        "violation_count": 0,
        "violations": [],
    }


def test_a_read_range_may_cover_several_acknowledged_ones() -> None:
    acked = [Acked(1, "a", 0, 5), Acked(6, "a", 5, 5)]
    assert ledger(acked, [RecordRun(1, "a", 0, 10, 1)]).check(True)["violation_count"] == 0


@pytest.mark.parametrize(
    ("acked", "read", "violation"),
    [
        ([Acked(1, "a", 0, 5)], [RecordRun(1, "a", 0, 4, 1)], "1 acknowledged records were not read"),
        ([Acked(1, "a", 0, 2)], [RecordRun(1, "b", 0, 2, 1)], "offset 1: acknowledged"),
        ([Acked(1, "a", 0, 2)], [RecordRun(1, "a", 1, 2, 1)], "offset 1: acknowledged"),
        (
            [Acked(1, "a", 0, 2), Acked(2, "a", 2, 1)],
            [RecordRun(1, "a", 0, 2, 1)],
            "offset 2 was given twice",
        ),
        (
            [Acked(1, "a", 0, 2)],
            [RecordRun(1, "a", 0, 2, 1), RecordRun(2, "a", 1, 1, 1)],
            "offset 2 was read twice",
        ),
        (
            [],
            [RecordRun(1, "a", 5, 1, 1), RecordRun(2, "a", 4, 1, 1)],
            "record 4 of a repeats or precedes 5",
        ),
        (
            [],
            [RecordRun(1, "a", 5, 1, 1), RecordRun(2, "a", 5, 1, 1)],
            "record 5 of a repeats or precedes 5",
        ),
    ],
    ids=["lost", "of-another", "replaced", "offset-twice", "read-twice", "order", "stored-twice"],
)
def test_a_violation_is_found(acked: list[Acked], read: list[RecordRun], violation: str) -> None:
    checked = ledger(acked, read).check(read_to_end=True)
    assert checked["violation_count"] >= 1
    assert any(violation in text for text in checked["violations"])


def test_records_that_consumers_had_no_time_for_are_counted_and_no_violation() -> None:
    checked = ledger([Acked(1, "a", 0, 5)], []).check(read_to_end=False)
    assert (checked["acked_unread"], checked["violation_count"]) == (5, 0)


def test_records_without_an_acknowledgement_may_be_read() -> None:
    checked = ledger([Acked(1, "a", 0, 5)], [RecordRun(1, "a", 0, 8, 1)]).check(True)
    assert (checked["read_unacked"], checked["violation_count"]) == (3, 0)


def test_all_violations_are_counted_and_some_are_kept() -> None:
    made = Ledger()
    for number in range(500):
        made.violate(f"violation {number}")
    checked = made.check(True)
    assert (checked["violation_count"], len(checked["violations"])) == (500, 100)
