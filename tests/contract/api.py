"""What the contract tests ask of one topic, in the words of the API.

Each call but `call` expects the status that it names, so that a test only says what it is about.
"""

from __future__ import annotations

from typing import Any, Final

from tests.harness.clients.raw_client import Answer, HttpClient

OCTETS: Final = "application/octet-stream"
BROKEN_UPLOADS: Final = (
    ("?tag=" + "x" * 257, "tag"),
    ("?node=" + "x" * 129, "node"),
    ("?tag=a%00b", "tag"),
    ("?create=maybe", "create"),
    ("?return_seqs=maybe", "return_seqs"),
    ("?data=1", "data"),
)
"""Queries of an upload that break a rule, and the parameter that does."""


class Api:
    def __init__(self, client: HttpClient, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.path = f"/v0/topics/{topic}"

    def call(self, method: str, rest: str = "", body: object = None, *fields: str) -> Answer:
        """Any request for the topic; bytes are sent as they are, anything else becomes JSON."""
        return self.client.ask(method, self.path + rest, body, *fields)

    def put(self, **config: Any) -> Any:
        return _expect(self.call("PUT", "", config), 200, 201)

    def state(self) -> Any:
        return _expect(self.call("GET"), 200)

    def append(self, *data: Any, **envelope: Any) -> Any:
        body = {"records": [{"data": one} for one in data], **envelope}
        return _expect(self.call("POST", "", body), 200, 201)

    def append_raw(self, record: bytes) -> Any:
        """One record, as it is in the body."""
        return _expect(self.call("POST", "", b'{"records":[%b]}' % record), 200, 201)

    def upload(self, data: bytes, query: str = "", *fields: str, content_type: str | None = OCTETS) -> Answer:
        """One record of bytes as the body, whatever the status."""
        return self.client.ask(
            "POST", f"{self.path}/records{query}", data, *fields, content_type=content_type
        )

    def diff(self, from_seq: int = 0, **options: Any) -> Any:
        return _expect(self.call("POST", "/diff", {"after_seq": from_seq, **options}), 200)

    def seqs(self, from_seq: int = 0, **options: Any) -> list[int]:
        return [record["$seq"] for record in self.diff(from_seq, **options)["records"]]

    def delete(self, **body: Any) -> Any:
        return _expect(self.call("POST", "/delete", body), 200)

    def refused(self, status: int, code: str, method: str, rest: str = "", body: object = None) -> Answer:
        answer = self.call(method, rest, body)
        assert (answer.status, answer.code) == (status, code), answer
        return answer


def _expect(answer: Answer, *statuses: int) -> Any:
    assert answer.status in statuses, answer
    return answer.json
