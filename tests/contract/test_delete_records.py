"""Delete records: `POST /v0/topics/:topic/delete`."""

from __future__ import annotations

import pytest

from tests.contract.api import Api


def _tagged(api: Api, *tags: str | None) -> None:
    records = [{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    assert api.call("POST", "", {"records": records}).status == 201


def test_before_seq_deletes_all_below_it_and_answers_with_what_is_left(api: Api) -> None:
    api.append(1, 2, 3)
    answer = api.delete(before_seq=3)
    names = ["topic", "deleted", "earliest_seq", "head_seq", "count", "bytes", "performance"]
    assert list(answer) == names
    assert (answer["topic"], answer["deleted"]) == (api.topic, 2)
    assert (answer["earliest_seq"], answer["head_seq"], answer["count"]) == (3, 3, 1)
    assert answer["bytes"] == api.state()["bytes"]
    assert api.delete(before_seq=3)["deleted"] == 0
    assert api.delete(before_seq=100)["deleted"] == 1


@pytest.mark.parametrize(
    ("match", "left"),
    [
        ("a.1", [2, 3, 4, 5]),
        (["tag", "Eq", "a.1"], [2, 3, 4, 5]),
        (["tag", "Glob", "a.*"], [3, 4, 5]),
        (["tag", "Glob", "*"], [4]),
        (["tag", "Eq", "a.*"], [1, 2, 3, 4, 5]),
        (["tag", "Eq", "none"], [1, 2, 3, 4, 5]),
    ],
)
def test_match_deletes_by_tag(api: Api, match: object, left: list[int]) -> None:
    _tagged(api, "a.1", "a.2", "b", None, "c")
    assert api.delete(match=match)["deleted"] == 5 - len(left)
    assert api.seqs() == left


@pytest.mark.parametrize("match", ["*", "a.*"])
def test_a_bare_tag_that_looks_like_a_prefix_is_refused(api: Api, match: str) -> None:
    _tagged(api, "a.1", match)
    answer = api.refused(400, "invalid_request", "POST", "/delete", {"match": match})
    assert answer.message == (
        f'match: must not end with *; send ["tag","Glob","{match}"] for a prefix'
        f' or ["tag","Eq","{match}"] for this tag'
    )
    assert api.delete(match=["tag", "Eq", match])["deleted"] == 1
    assert api.seqs() == [1]


def test_with_both_both_must_hold(api: Api) -> None:
    _tagged(api, "a", "b", "a", "a")
    assert api.delete(before_seq=4, match="a")["deleted"] == 2
    assert api.seqs() == [2, 4]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "before_seq"),
        (None, "before_seq"),
        ({"before_seq": -1}, "before_seq"),
        ({"before_seq": 1.5}, "before_seq"),
        ({"before_seq": 1 << 63}, str((1 << 63) - 1)),
        ({"match": 5}, "match"),
        ({"match": []}, "match"),
        ({"match": ["tag", "Eq"]}, "match"),
        ({"match": ["tag", "Like", "x"]}, "match"),
        ({"match": ["node", "Eq", "x"]}, "match"),
        ({"match": ["tag", "Glob", "x"]}, "match"),
        ({"match": ["tag", "Glob", "*x"]}, "match"),
        ({"match": ["tag", "Glob", "x*y*"]}, "match"),
        ({"match": "a\0b"}, "match"),
    ],
)
def test_a_refusal_names_the_field(api: Api, body: object, message: str) -> None:
    api.append(1)
    assert message in api.refused(400, "invalid_request", "POST", "/delete", body).message
    assert api.seqs() == [1]


def test_deleting_from_what_is_absent_is_404(api: Api) -> None:
    api.refused(404, "topic_not_found", "POST", "/delete", {"before_seq": 1})


def test_only_what_exists_at_the_call_is_deleted(api: Api) -> None:
    api.append(1)
    api.delete(before_seq=1000)
    api.append(2)
    assert api.seqs() == [2]
