"""`POST /v0/topics/:topic/redrive`: dead letters go back to their queues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.contract.api import Api
from tests.harness.server.whole_server import WholeServer


def meta_of(queue: str, **own: object) -> dict[str, object]:
    return {
        **own,
        "$dead_letter_from": queue,
        "$dead_letter_deliveries": 3,
        "$dead_letter_src_seq": 1,
        "$dead_letter_reason": "no luck",
    }


def letters(api: Api, queue: str, *tags: str) -> None:
    """Dead letters as a queue leaves them, numbered from 1."""
    records = [
        {"data": number, "tag": tag, "meta": meta_of(queue, own=number)} for number, tag in enumerate(tags, 1)
    ]
    assert api.call("POST", "", {"records": records}).status in (200, 201)


def redrive(api: Api, **body: Any) -> Any:
    answer = api.call("POST", "/redrive", body)
    assert answer.status == 200, answer
    return answer.json


def beside(api: Api, **config: Any) -> Api:
    """Another topic, of the type queue."""
    queue = Api(api.client, f"q-{api.topic}"[:200])
    queue.put(type="queue", **config)
    return queue


def claimed(queue: Api) -> Any:
    return queue.call("POST", "/claim", {"node": "w", "max": 100}).json["claimed"]


def test_dead_letters_are_fresh_jobs_of_their_queue_again(api: Api) -> None:
    queue = beside(api)
    letters(api, queue.topic, "a", "b")
    answer = redrive(api)
    assert (answer["topic"], answer["matched"], answer["redriven"], answer["done"]) == (api.topic, 2, 2, True)
    assert (answer["queues"], answer["stayed"], answer["reasons"]) == ({queue.topic: 2}, 0, {})
    jobs = claimed(queue)
    assert [(one["data"], one["$tag"], one["deliveries"], one["meta"]) for one in jobs] == [
        (1, "a", 1, {"own": 1}),
        (2, "b", 1, {"own": 2}),
    ]
    assert api.state()["count"] == 0


def test_only_what_is_meant_goes_back(api: Api) -> None:
    queue = beside(api)
    letters(api, queue.topic, "a", "ab", "c", "ab", "a")
    assert redrive(api, seqs=[3, 3, 99])["redriven"] == 1
    assert redrive(api, match="a", from_seq=1)["redriven"] == 1
    assert redrive(api, match=["tag", "Glob", "a*"], max=1)["redriven"] == 1
    assert [one["data"] for one in claimed(queue)] == [3, 5, 1]
    assert api.seqs() == [2, 4]
    first_ts = api.diff()["records"][0]["$ts"]
    assert redrive(api, to_ts=first_ts)["matched"] == 0
    assert redrive(api, from_ts=first_ts + 60_000)["matched"] == 0
    assert redrive(api, from_ts=first_ts, to_ts=first_ts + 60_000)["redriven"] == 2


def test_a_dry_run_counts_and_moves_nothing(api: Api) -> None:
    letters(api, "elsewhere", "a", "b", "a")
    answer = redrive(api, match="a", dry_run=True)
    assert (answer["matched"], answer["redriven"], answer["queues"]) == (2, 0, {"elsewhere": 2})
    assert api.seqs() == [1, 2, 3]


def test_a_partial_redrive_says_where_to_resume(api: Api) -> None:
    queue = beside(api)
    letters(api, queue.topic, *"abcde")
    first = redrive(api, max=2, rate=1000)
    assert (first["redriven"], first["next_from_seq"], first["done"]) == (2, 2, False)
    rest = redrive(api, from_seq=first["next_from_seq"])
    assert (rest["redriven"], rest["done"]) == (3, True)
    assert [one["data"] for one in claimed(queue)] == [1, 2, 3, 4, 5]


def test_what_cannot_go_back_stays_and_the_answer_says_why(api: Api) -> None:
    full = beside(api, cap_records=1, discard="reject")
    letters(api, full.topic, "a", "b")
    letters(api, api.topic, "c")
    letters(api, "nowhere", "d")
    api.append("not stamped")
    answer = redrive(api)
    assert (answer["matched"], answer["redriven"], answer["stayed"], answer["done"]) == (5, 1, 4, True)
    assert answer["reasons"] == {"topic_full": 1, "not_a_queue": 1, "topic_not_found": 1, "no_origin": 1}
    assert api.seqs() == [2, 3, 4, 5]


def test_a_queue_is_not_redriven_nor_what_is_not_there(api: Api) -> None:
    api.refused(404, "topic_not_found", "POST", "/redrive", {})
    api.put(type="queue")
    api.refused(409, "topic_exists_incompatible", "POST", "/redrive", {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"max": 0}, "max: must be at least 1"),
        ({"rate": 0}, "rate: must be at least 1"),
        ({"from_ts": -1}, "from_ts: must be at least 0"),
        ({"match": ["tag", "Like", "x"]}, "match: must be a tag"),
        ({"match": "a\0"}, "match: must not contain a NUL"),
        ({"dry_run": 1}, "dry_run: "),
    ],
)
def test_a_wrong_redrive_is_refused_with_the_field(api: Api, body: object, message: str) -> None:
    api.put()
    assert api.refused(400, "invalid_request", "POST", "/redrive", body).message.startswith(message)


def test_too_many_seqs_are_refused(api: Api) -> None:
    api.put()
    api.refused(400, "batch_too_large", "POST", "/redrive", {"seqs": list(range(1001))})


def test_dead_letters_go_back_to_a_queue_of_another_shard(tmp_path: Path) -> None:
    def ask(method: str, path: str, body: object = None) -> Any:
        return server.ask_json(method, f"/v0/topics/{path}", body)

    def fail_all() -> None:
        for _ in range(2):
            jobs = ask("POST", f"{queue}/claim", {"node": "w", "max": 10})["claimed"]
            ask("POST", f"{queue}/nack", {"node": "w", "seqs": [job["$seq"] for job in jobs]})

    with WholeServer(tmp_path, shards=2) as server:
        queue, dead = server.topic_of(0, "queue"), server.topic_of(1, "dead")
        ask("PUT", queue, {"type": "queue", "max_deliveries": 1, "dead_letter": dead})
        ask("POST", queue, {"records": [{"data": number} for number in range(3)]})
        for times in (1, 2):
            fail_all()
            server.wait_for(lambda times=times: ask("GET", queue)["queue"]["dead_lettered"] == 3 * times, "")
            assert ask("POST", f"{dead}/redrive", {})["redriven"] == 3
        assert sorted(one["data"] for one in ask("POST", f"{queue}/diff", {})["records"]) == [0, 1, 2]
        assert ask("GET", dead)["count"] == 0
