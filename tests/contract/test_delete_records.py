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


# -- truncation ----------------------------------------------------------------------------------------------


def test_after_seq_removes_the_tail_and_gives_no_seq_again(api: Api) -> None:
    api.append(1, 2, 3, 4, 5)
    answer = api.delete(after_seq=2)
    assert (answer["deleted"], answer["earliest_seq"], answer["head_seq"], answer["count"]) == (3, 1, 5, 2)
    assert api.delete(after_seq=2)["deleted"] == 0
    assert api.seqs() == [1, 2]
    assert api.append(6)["seqs"] == [6]
    read = api.diff(3)
    assert ([one["$seq"] for one in read["records"]], read["tombstone"]) == ([6], None)
    assert api.diff(5, epoch=read["epoch"])["records"][0]["$seq"] == 6


@pytest.mark.parametrize(
    ("body", "left"),
    [
        ({"after_seq": 0}, []),
        ({"after_seq": 1, "before_seq": 4}, [1, 4, 5]),
        ({"after_seq": 4, "before_seq": 100}, [1, 2, 3, 4]),
        ({"after_seq": 3, "before_seq": 2}, [1, 2, 3, 4, 5]),
        ({"after_seq": 2, "before_seq": 0}, [1, 2, 3, 4, 5]),
        ({"after_seq": 100}, [1, 2, 3, 4, 5]),
    ],
)
def test_a_range_is_what_both_bounds_leave(api: Api, body: dict[str, int], left: list[int]) -> None:
    api.append(1, 2, 3, 4, 5)
    assert api.delete(**body)["deleted"] == 5 - len(left)
    assert api.seqs() == left
    assert api.state()["next_seq"] == 6


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"after_seq": -1}, "after_seq: must be at least 0"),
        ({"after_seq": "x"}, "after_seq: must be an integer"),
        ({"after_seq": 1, "match": "a"}, "after_seq: must not be sent with match"),
        ({"after_seq": 1, "seqs": [1]}, "seqs: must not be sent with"),
    ],
)
def test_a_wrong_truncation_is_refused(api: Api, body: object, message: str) -> None:
    api.append(1, 2)
    assert message in api.refused(400, "invalid_request", "POST", "/delete", body).message
    assert api.seqs() == [1, 2]


def test_a_truncation_leaves_keys_producers_and_cursors(api: Api) -> None:
    api.append(1)
    api.append(2, idempotency_key="k")
    api.append(3, producer={"id": "p", "seq": 7})
    assert api.call("PUT", "/cursors/c", {"after_seq": 3}).status == 201
    api.delete(after_seq=1)
    again = api.append(2, idempotency_key="k")
    assert (again["seqs"], again["deduped"]) == ([2], True)
    again = api.append(3, producer={"id": "p", "seq": 7})
    assert (again["seqs"], again["deduped"]) == ([3], True)
    assert api.append(4, producer={"id": "p", "seq": 8})["seqs"] == [4]
    assert api.call("GET", "/cursors/c").json["from_seq"] == 3
    assert api.seqs(3) == [4]


def test_a_truncated_queue_has_no_such_jobs(api: Api) -> None:
    api.put(type="queue")
    api.append(1, 2, 3, 4)
    claimed = api.call("POST", "/claim", {"node": "n", "max": 3}).json["claimed"]
    assert [job["$seq"] for job in claimed] == [1, 2, 3]
    api.delete(after_seq=1)
    assert api.state()["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 0}
    assert api.call("POST", "/ack", {"node": "n", "seqs": [1, 2]}).json["skipped"] == [2]
    assert api.call("GET", "/explain?seq=3").json["state"] == "deleted"
    assert api.append(5)["seqs"] == [5]
    claimed = api.call("POST", "/claim", {"node": "n"}).json["claimed"]
    assert [job["$seq"] for job in claimed] == [5]
