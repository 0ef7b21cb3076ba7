"""Appends that are done only once or only at a head: `expected_head` and `producer`."""

from __future__ import annotations

import pytest

from tests.contract.api import Api


def test_an_append_at_another_head_is_refused_with_the_head(api: Api) -> None:
    assert api.append(1, 2, expected_head=0)["last_seq"] == 2
    body = {"records": [{"data": 3}], "expected_head": 1}
    answer = api.refused(409, "head_mismatch", "POST", "", body)
    assert answer.json["error"]["detail"] == {"field": "expected_head", "head_seq": 2}
    assert api.append(3, expected_head=2)["first_seq"] == 3


def test_a_producer_learns_the_outcome_of_its_write(api: Api) -> None:
    first = api.append(1, 2, producer={"id": "p", "seq": 10})
    assert (first["deduped"], first["seqs"]) == (False, [1, 2])
    again = api.append(1, 2, producer={"id": "p", "seq": 10})
    assert (again["deduped"], again["created"], again["seqs"], again["count"]) == (True, False, [1, 2], 2)
    assert api.append(3, producer={"id": "p", "seq": 11})["seqs"] == [3]
    older = api.append(1, 2, producer={"id": "p", "seq": 10})
    assert (older["deduped"], older["seqs"], older["count"], older["head_seq"]) == (True, [], 0, 3)
    assert (older["first_seq"], older["last_seq"]) == (0, 0)
    body = {"records": [{"data": 1}], "producer": {"id": "p", "seq": 13}}
    answer = api.refused(409, "producer_gap", "POST", "", body)
    detail = {"field": "producer.seq", "last_seq": 11, "next_seq": 12}
    assert answer.json["error"]["detail"] == detail
    assert api.state()["head_seq"] == 3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("producer", 5),
        ("producer", {"id": "p"}),
        ("producer", {"id": "", "seq": 1}),
        ("producer", {"id": "p" * 257, "seq": 1}),
        ("producer", {"id": "p\0", "seq": 1}),
        ("producer", {"id": "p", "seq": -1}),
        ("producer", {"id": "p", "seq": 1 << 63}),
        ("producer", {"id": "p", "seq": 1.5}),
        ("expected_head", "1"),
        ("expected_head", 0.5),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(api: Api, field: str, value: object) -> None:
    answer = api.refused(400, "invalid_request", "POST", "", {"records": [{"data": 1}], field: value})
    assert answer.json["error"]["detail"]["field"].startswith(field)


def test_a_producer_goes_without_an_idempotency_key(api: Api) -> None:
    body = {"records": [{"data": 1}], "producer": {"id": "p", "seq": 1}, "idempotency_key": "k"}
    api.refused(400, "invalid_request", "POST", "", body)
    body = {"records": [{"data": 1}], "producer": {"id": "p", "seq": 1}}
    assert api.call("POST", "", body).status == 201
