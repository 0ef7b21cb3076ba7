"""Appends of batches that no receiver of a webhook accepted, at the shard of their dead-letter topic."""

from __future__ import annotations

from collections.abc import Callable

from shared.contract.errors import Refusal, in_doubt, no_answer
from shared.http.answer import refusal_in
from shared.ipc.link import NEVER_SENT, LinkPool
from shared.ipc.link_kind import LinkKind
from shared.ipc.placement import OwnerLookup
from shared.ipc.remote_request import RemoteRequest, decode_answer, encode_remote_request
from topicsd.stream.webhooks.dead_batch import DeadBatch


class DeadBatches:
    def __init__(self, links: LinkPool, placement: OwnerLookup) -> None:
        self._links = links
        self._placement = placement

    def store(self, batch: DeadBatch, on_stored: Callable[[Refusal | None], object]) -> None:
        """Append a batch as a client would, over the link even to a topic of this shard."""
        owner = self._placement.owner_of(batch.topic)
        request = RemoteRequest(
            "append", batch.topic, "", "application/json", "", batch.idempotency_key, batch.body
        )

        def on_answer(answer: bytes | None) -> None:
            if answer is None:
                on_stored(in_doubt(owner))
            elif answer == NEVER_SENT:
                on_stored(no_answer(owner))
            else:
                status, _, body = decode_answer(answer)
                on_stored(refusal_in(body) if status >= 400 else None)

        self._links.call(str(owner), LinkKind.REQUEST, encode_remote_request(request), on_answer)
