"""The requests of a reshard to the shards: survey their topics, and move one.

A move is an ordinary request to move a topic, as a client sends it. Neither request is sent to a shard that
is known to be down, so that a reshard pauses at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import msgspec

from router.resharding.placement_writer import SurveyResult
from shared.contract.errors import TOPIC_NOT_FOUND, Refusal, no_answer
from shared.http.answer import refusal_in
from shared.ipc.link_kind import LinkKind
from shared.ipc.remote_request import RemoteRequest, decode_answer, encode_remote_request
from shared.ipc.survey import SurveyRequest, decode_survey, encode_survey_message

AskWorker = Callable[[int, LinkKind, bytes], Awaitable[bytes | None]]
"""Asks a shard; None or an empty answer when there is none."""

_decode_json = msgspec.json.Decoder(dict[str, Any]).decode
_encode_json: Final = msgspec.json.Encoder().encode


class RefusalOfShard(Protocol):
    """The workers, as `router/accept/worker_channels.py` presents them."""

    def refusal(self, shard: int) -> Refusal | None: ...


class ShardRequests:
    def __init__(self, shards: RefusalOfShard, ask: AskWorker) -> None:
        self._shards = shards
        self._ask = ask

    async def survey(self, request: SurveyRequest, shard_count: int) -> SurveyResult | Refusal:
        """Ask every shard for its topics that the rule of the request places elsewhere."""
        shards = range(shard_count)
        for shard in shards:
            refusal = self._shards.refusal(shard)
            if refusal is not None:
                return refusal
        payload = encode_survey_message(request)
        answers = await asyncio.gather(*(self._ask(shard, LinkKind.SURVEY, payload) for shard in shards))
        pids: dict[int, int] = {}
        locations: dict[str, int] = {}
        departed: dict[str, int] = {}
        hidden: set[str] = set()
        epoch_floor = 0
        for shard, answer in zip(shards, answers, strict=True):
            if not answer:
                return no_answer(shard)
            survey = decode_survey(answer)
            pids[shard] = survey.pid
            locations.update(dict.fromkeys(survey.elsewhere, shard))
            departed.update(dict.fromkeys(survey.departed, shard))
            hidden.update(survey.hidden)
            epoch_floor = max(epoch_floor, survey.next_epoch - 1)
        return SurveyResult(pids, locations, departed, hidden, epoch_floor)

    async def move(self, name: str, source: int, target: int) -> float | str | None:
        """Move a topic; return how many milliseconds it was frozen, or why that failed.

        Return None when the topic does not exist.
        """
        for shard in (source, target):
            refusal = self._shards.refusal(shard)
            if refusal is not None:
                return refusal.message
        body = _encode_json({"shard": target})
        request = RemoteRequest("move", name, "", "application/json", "", "", body)
        answer = await self._ask(source, LinkKind.REQUEST, encode_remote_request(request))
        if not answer:
            return f"shard {source} did not answer the request to move topic {name}"
        status, _, content = decode_answer(answer)
        if status < 400:
            return float(_decode_json(content)["frozen_ms"])
        refusal = refusal_in(content)
        return None if refusal.code == TOPIC_NOT_FOUND else f"topic {name}: {refusal.message}"
