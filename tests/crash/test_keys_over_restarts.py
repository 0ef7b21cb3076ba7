"""An idempotency key stands for one write of one incarnation, whatever ends in between."""

from __future__ import annotations

import pytest

from tests.harness.shard.one_shard import OneShard


def test_the_key_of_the_write_that_makes_a_topic_is_known_to_its_repeat() -> None:
    one = OneShard()
    first = one.append("t", 1, 2, idempotency_key="k")
    again = one.append("t", 1, 2, idempotency_key="k")
    assert (again.deduped, again.first_seq, again.last_seq) == (True, first.first_seq, first.last_seq)
    assert one.state("t").head_seq == 2


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_the_key_of_the_write_that_makes_a_topic_is_known_after_a_restart(end: str) -> None:
    one = OneShard()
    one.append("t", 1, idempotency_key="k")
    getattr(one, end)()
    assert one.append("t", 1, idempotency_key="k").deduped


def test_a_key_of_a_deleted_topic_is_free_in_the_next_one_of_its_name() -> None:
    one = OneShard()
    one.append("t", 1, idempotency_key="k")
    one.delete_topic("t")
    made = one.append("t", 1, idempotency_key="k")
    assert made.created
    assert not made.deduped
    one.delete_topic("t")
    assert one.append("t", "something else", idempotency_key="k").first_seq == 1
