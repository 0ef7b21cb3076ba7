"""The ledger accepts possible recoveries and names what is wrong in others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.harness.books.ledger import Ledger
from tests.harness.books.ledger_entries import Durability, Request, TopicContents


def _ledger(durability: Durability = "fsync", *, evicts: bool = False) -> tuple[Ledger, list[Request]]:
    """Return a ledger with two acked requests: seqs 1 to 3, seqs 4 and 5."""
    ledger = Ledger()
    ledger.topic("t", durability, evicts=evicts)
    first = ledger.sent("t", [b"a", b"b", b"c"], tags=["x", None, "y"])
    ledger.acked(first, 1)
    second = ledger.sent("t", [b"d", b"e"], key="k")
    ledger.acked(second, 4)
    return ledger, [first, second]


RECORDS: list[tuple[int, bytes, str | None]] = [
    (1, b"a", "x"),
    (2, b"b", None),
    (3, b"c", "y"),
    (4, b"d", None),
    (5, b"e", None),
]
WHOLE = TopicContents(head_seq=5, records=RECORDS)


def _without(*seqs: int, **changed: object) -> TopicContents:
    records = [record for record in RECORDS if record[0] not in seqs]
    first = records[0][0] if records else 6
    return replace(WHOLE, records=records, earliest_seq=first, **changed)  # type: ignore[arg-type]


def _refuses(ledger: Ledger, shown: TopicContents, why: str, *, exact: bool = False) -> None:
    with pytest.raises(AssertionError, match=why):
        ledger.check({"t": shown}, exact=exact)


def test_a_complete_recovery_is_accepted_after_any_crash() -> None:
    ledger, _ = _ledger()
    for machine_failed in (False, True):
        ledger.new_generation(machine_failed=machine_failed)
        ledger.check({"t": WHOLE}, exact=True)


def test_a_missing_acked_fsync_request_fails_even_when_reported_as_lost() -> None:
    ledger, _ = _ledger()
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, _without(4, 5, lost=[(4, 5, "crash")]), r"acked seqs \[4, 5\] are missing")


def test_an_absent_topic_counts_as_empty() -> None:
    ledger, _ = _ledger()
    with pytest.raises(AssertionError, match="are missing: "):
        ledger.check({})
    with pytest.raises(AssertionError, match="never created"):
        ledger.check({"t": WHOLE, "u": TopicContents()})


def test_a_disk_request_may_be_lost_in_a_power_cut_when_reported() -> None:
    gone = _without(4, 5, head_seq=9, lost=[(4, 9, "crash")])
    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    ledger.check({"t": gone})
    ledger.new_generation(machine_failed=False)
    ledger.check({"t": gone}, exact=True)

    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, replace(gone, lost=[]), "without a reason")
    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, replace(gone, lost=[], head_seq=3), "seq 5 was assigned")
    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=False)
    _refuses(ledger, gone, "are missing: ")


def test_records_that_survived_one_machine_failure_survive_the_next() -> None:
    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    ledger.check({"t": WHOLE})
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, _without(4, 5, lost=[(4, 5, "crash")]), "are missing: ")


def test_a_partial_request_is_refused() -> None:
    classes: tuple[Durability, ...] = ("disk", "fsync")
    for durability in classes:
        ledger, _ = _ledger(durability)
        ledger.new_generation(machine_failed=True)
        _refuses(ledger, _without(5, lost=[(5, 5, "crash")]), "survived in part")


def test_unknown_changed_moved_and_duplicated_records_are_refused() -> None:
    def changed(seq: int, payload: bytes, tag: str | None = None) -> TopicContents:
        return replace(WHOLE, records=[*RECORDS[:4], (seq, payload, tag)], head_seq=9, lost=[(6, 9, "crash")])

    for shown, why in (
        (changed(5, b"E"), "never sent"),
        (changed(5, b"e", "tag"), "the tag of seq 5"),
        (changed(6, b"e"), "at seq 6 and not at 5"),
        (changed(5, b"d"), "at seq 5 and not at 4"),
        (changed(4, b"e"), "out of order or twice"),
    ):
        ledger, _ = _ledger()
        _refuses(ledger, shown, why)


def test_an_unreported_hole_and_a_record_reported_as_lost_are_refused() -> None:
    ledger, _ = _ledger()
    _refuses(ledger, replace(WHOLE, head_seq=6), r"\[6\] are missing")
    _refuses(ledger, replace(WHOLE, lost=[(3, 3, "crash")]), r"\[3\] are live and reported")
    _refuses(ledger, replace(WHOLE, lost=[(6, 8, "crash")]), "a loss beyond the head")


def test_an_unanswered_request_survives_whole_or_not_at_all_and_permanently() -> None:
    def opened() -> Ledger:
        ledger, _ = _ledger()
        ledger.errored(ledger.sent("t", [b"f", b"g"]))
        ledger.sent("t", [b"h"])
        ledger.new_generation(machine_failed=True)
        return ledger

    with_both = replace(
        WHOLE, records=[*RECORDS, (6, b"f", None), (7, b"g", None), (8, b"h", None)], head_seq=8
    )
    ledger = opened()
    ledger.check({"t": WHOLE}, exact=True)
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, with_both, "returned at seq")

    ledger = opened()
    ledger.check({"t": with_both}, exact=True)
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, replace(WHOLE, head_seq=8, lost=[(6, 8, "crash")]), "are missing: ")

    half = replace(WHOLE, records=[*RECORDS, (7, b"g", None)], head_seq=7, lost=[(6, 6, "crash")])
    _refuses(opened(), half, "survived in part")


def test_a_refused_request_never_appears() -> None:
    ledger, _ = _ledger()
    ledger.refused(ledger.sent("t", [b"f"]))
    ledger.new_generation(machine_failed=False)
    _refuses(ledger, replace(WHOLE, records=[*RECORDS, (6, b"f", None)], head_seq=6), "returned at seq")


def test_a_seq_is_never_reused_even_after_its_record_was_lost() -> None:
    ledger, _ = _ledger("disk")
    with pytest.raises(AssertionError, match="and now has"):
        ledger.acked(ledger.sent("t", [b"f"]), 5)
    ledger, _ = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    ledger.check({"t": _without(4, 5, head_seq=9, lost=[(4, 9, "crash")])})
    with pytest.raises(AssertionError, match="not above the head 9"):
        ledger.acked(ledger.sent("t", [b"g"]), 8)


def test_a_retry_gets_the_same_seqs_unless_the_first_try_was_lost() -> None:
    ledger, (_, second) = _ledger("disk")
    ledger.retried(second)
    ledger.acked(second, 4)
    with pytest.raises(AssertionError, match="acked again, now at 6"):
        ledger.acked(second, 6)

    ledger, (_, second) = _ledger("disk")
    ledger.new_generation(machine_failed=True)
    gone = _without(4, 5, head_seq=9, lost=[(4, 9, "crash")])
    ledger.check({"t": gone})
    ledger.retried(second)
    ledger.acked(second, 10)
    ledger.check(
        {"t": replace(gone, records=[*gone.records, (10, b"d", None), (11, b"e", None)], head_seq=11)}
    )


def test_an_acked_delete_stays_and_one_in_doubt_is_atomic() -> None:
    deleted = _without(1, 3)
    ledger, _ = _ledger()
    ledger.delete_acked(ledger.deleting("t", [1, 3]))
    assert ledger.live("t") == [(2, None), (4, None), (5, None)]
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, WHOLE, r"seqs \[1, 3\] were deleted and are live")
    ledger.check({"t": deleted}, exact=True)

    ledger, _ = _ledger()
    ledger.deleting("t", [1, 3])
    ledger.new_generation(machine_failed=True)
    _refuses(ledger, _without(1), "survived in part")
    ledger.check({"t": deleted})
    _refuses(ledger, WHOLE, "were deleted and are live")

    ledger, _ = _ledger()
    ledger.deleting("t", [1, 3])
    ledger.new_generation(machine_failed=True)
    ledger.check({"t": WHOLE})
    _refuses(ledger, deleted, "survived in part")


def test_an_acked_disk_delete_may_be_lost_in_a_power_cut_and_not_in_a_kill() -> None:
    for machine_failed in (True, False):
        ledger, _ = _ledger("disk")
        ledger.delete_acked(ledger.deleting("t", [1, 3]))
        ledger.new_generation(machine_failed=machine_failed)
        if machine_failed:
            ledger.check({"t": WHOLE})
        else:
            _refuses(ledger, WHOLE, "were deleted")


def test_floors_only_rise_and_only_where_something_may_be_evicted() -> None:
    evicted = _without(1, 2, evict_floor=3)
    ledger, _ = _ledger()
    _refuses(ledger, evicted, "without a cap")
    ledger, _ = _ledger(evicts=True)
    ledger.check({"t": evicted}, exact=True)
    _refuses(ledger, replace(WHOLE, evict_floor=2), "are live and reported")
    _refuses(ledger, _without(1, evict_floor=2), "the floor fell from 3")
    _refuses(ledger, replace(evicted, earliest_seq=4), "alive from 3")


def test_an_ephemeral_topic_loses_its_records_and_keeps_its_seqs() -> None:
    ledger, _ = _ledger("ephemeral")
    ledger.new_generation(machine_failed=False)
    ledger.check({"t": TopicContents(head_seq=300, evict_floor=301, earliest_seq=301)})
    _refuses(ledger, TopicContents(head_seq=5, evict_floor=301, earliest_seq=301), "fell from 300")


def test_a_reported_loss_stays_reported_and_a_known_head_has_none() -> None:
    ledger, _ = _ledger()
    ledger.new_generation(machine_failed=False)
    padded = replace(WHOLE, head_seq=9, lost=[(6, 9, "crash")])
    _refuses(ledger, padded, "the head can be known", exact=True)
    ledger.new_generation(machine_failed=True)
    ledger.check({"t": padded})
    ledger.check({"t": padded}, exact=True)
    _refuses(ledger, replace(padded, lost=[], evict_floor=0, head_seq=9), "without a reason")
