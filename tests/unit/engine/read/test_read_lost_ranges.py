"""A lost range in the middle of a log: the records before it are live, and its bounds are exact."""

from __future__ import annotations

from tests.harness.shard.one_shard import OneShard, record
from topicsd.engine.requests import ReadAnswer, Tombstone


def crashed(count: int = 5, **config: object) -> OneShard:
    """A topic that lost its machine: what was synced is there, and behind it a lost range."""
    one = OneShard()
    one.put("t", **config)
    for number in range(1, count + 1):
        one.append("t", number)
    one.pass_time(60)
    one.reboot()
    return one


def lost_range(one: OneShard) -> tuple[int, int]:
    (lost,) = one.topic("t").lost.ranges
    return lost.first, lost.last


def read_through(one: OneShard, from_seq: int = 0, limit: int = 1000) -> list[ReadAnswer]:
    """Answers until the reader is caught up."""
    answers = [one.read("t", from_seq, limit=limit)]
    while not answers[-1].caught_up:
        assert len(answers) < 100
        answers.append(one.read("t", answers[-1].next_from_seq, limit=limit))
    return answers


def test_a_read_stops_before_the_range_and_the_next_one_reports_exactly_that_range() -> None:
    one = crashed()
    first, last = lost_range(one)
    assert first == 6
    one.append("t", "after", "the loss")
    before = one.read("t")
    assert ([record.seq for record in before.records], before.next_from_seq) == ([1, 2, 3, 4, 5], 5)
    assert (before.tombstone, before.caught_up, before.head_seq) == (None, False, last + 2)
    behind = one.read("t", 5)
    assert behind.tombstone == Tombstone(6, last, "crash", last - 5, 1, last + 2)
    assert [record.seq for record in behind.records] == [last + 1, last + 2]
    assert behind.caught_up


def test_a_cursor_inside_the_range_gets_the_rest_of_it_as_lost() -> None:
    one = crashed()
    _, last = lost_range(one)
    answer = one.read("t", 10)
    assert answer.tombstone == Tombstone(11, last, "crash", last - 10, 1, last)
    assert (answer.records, answer.next_from_seq, answer.caught_up) == ([], last, True)
    assert one.read("t", last).tombstone is None


def test_a_range_at_the_head_is_reported_before_later_writes() -> None:
    one = crashed()
    _, last = lost_range(one)
    answers = read_through(one)
    assert [answer.tombstone is not None for answer in answers] == [False, True]
    assert answers[-1].next_from_seq == last


def test_one_answer_carries_one_tombstone() -> None:
    one = crashed(count=5, cap_records=300)
    _, last = lost_range(one)
    one.append("t", *range(298))
    answers = read_through(one)
    assert [(answer.tombstone.reason if answer.tombstone else None) for answer in answers] == [
        "cap",
        "crash",
    ]
    floor, lost = answers[0].tombstone, answers[1].tombstone
    assert floor is not None
    assert lost is not None
    assert (floor.gap_from, floor.gap_to) == (1, 3)
    assert [record.seq for record in answers[0].records] == [4, 5]
    assert (lost.gap_from, lost.gap_to) == (6, last)
    assert len(answers[1].records) == 298


def test_a_floor_at_the_edge_of_the_range_is_reported_before_the_range() -> None:
    one = crashed(count=5)
    _, last = lost_range(one)
    one.put("t", cap_records=10)
    one.append("t", *range(10))
    answers = read_through(one)
    assert [answer.tombstone for answer in answers] == [
        Tombstone(1, 5, "cap", 5, last + 1, last + 10),
        Tombstone(6, last, "crash", last - 5, last + 1, last + 10),
    ]
    assert answers[0].records == []
    assert [record.seq for record in answers[1].records] == list(range(last + 1, last + 11))


def test_a_range_below_the_floor_is_forgotten_with_it() -> None:
    one = crashed(count=5)
    _, last = lost_range(one)
    one.append("t", *range(10))
    one.put("t", cap_records=2)
    assert one.topic("t").lost.ranges == []
    assert one.read("t").tombstone == Tombstone(1, last + 8, "cap", last + 8, last + 9, last + 10)


def test_two_crashes_leave_two_ranges() -> None:
    one = crashed(count=3)
    _, first_last = lost_range(one)
    one.append("t", "between")
    one.pass_time(60)
    one.reboot()
    _, second = one.topic("t").lost.ranges
    one.append("t", "end")
    answers = read_through(one)
    assert [
        answer.tombstone and (answer.tombstone.gap_from, answer.tombstone.gap_to) for answer in answers
    ] == [
        None,
        (4, first_last),
        (first_last + 2, second.last),
    ]
    assert [[record.data for record in answer.records] for answer in answers] == [
        [b"1", b"2", b"3"],
        [b'"between"'],
        [b'"end"'],
    ]


def test_two_crashes_with_nothing_between_do_not_lose_more() -> None:
    one = crashed(count=3)
    before = lost_range(one)
    one.reboot()
    one.kill()
    one.restart()
    assert lost_range(one) == before


def test_ranges_survive_every_end() -> None:
    one = crashed(count=3)
    one.append("t", "after")
    one.pass_time(2000)
    before = read_through(one)
    for end in ("restart", "kill", "reboot", "cut_power"):
        getattr(one, end)()
        assert read_through(one) == before


def test_a_range_is_reported_after_the_records_before_it_are_deleted() -> None:
    one = crashed(count=3)
    first, last = lost_range(one)
    one.append("t", "after")
    one.delete("t", before_seq=first)
    assert one.state("t").earliest_seq == last + 1
    answers = read_through(one)
    assert [answer.tombstone and answer.tombstone.reason for answer in answers] == [None, "crash"]
    assert answers[0].next_from_seq == 3


def test_deleting_by_tag_and_bound_works_on_both_sides_of_a_range() -> None:
    one = OneShard()
    one.append("t", record(1, tag="x"), record(2))
    one.pass_time(60)
    one.reboot()
    _, last = lost_range(one)
    one.append("t", record(3, tag="x"), record(4, tag="x"))
    assert one.delete("t", tag="x", before_seq=last + 2).deleted == 2
    assert [record.data for answer in read_through(one) for record in answer.records] == [b"2", b"4"]
    assert one.delete("t", before_seq=last + 10).deleted == 2
    assert one.state("t").count == 0


def test_the_own_node_filter_and_small_limits_step_over_a_range() -> None:
    one = OneShard()
    one.append("t", *[record(number, node="me") for number in range(3)])
    one.pass_time(60)
    one.reboot()
    one.append("t", *[record(number, node=node) for number, node in enumerate(("me", "you", "me"))])
    answers = [one.read("t", nodes=frozenset({"me"}), limit=1)]
    while not answers[-1].caught_up:
        answers.append(one.read("t", answers[-1].next_from_seq, nodes=frozenset({"me"}), limit=1))
    assert [record.node for answer in answers for record in answer.records] == [b"you"]
    assert [answer.tombstone is not None for answer in answers].count(True) == 1


def test_a_changed_epoch_is_reported_before_a_lost_range() -> None:
    one = crashed(count=3)
    _, last = lost_range(one)
    one.append("t", "after")
    answer = one.read("t", 1, epoch=one.state("t").epoch + 1)
    assert answer.tombstone is not None
    assert answer.tombstone.reason == "recreated"
    assert [record.seq for record in answer.records] == [1, 2, 3]
    assert answer.next_from_seq == 3
    following = one.read("t", 3)
    assert following.tombstone is not None
    assert (following.tombstone.gap_from, following.tombstone.gap_to) == (4, last)
