"""The front process on the link: it answers the control requests that workers forward, and asks shards for
their topics.

What is asked of a shard for its topics is the array of `topicsd/http/topic_list.py`.

Must not know: what is answered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import Any, Final

import msgspec

from router.control import METRICS_TYPE, Control, refused
from router.topic_count import TopicCount
from shared.errors import INTERNAL, Refusal
from shared.forwarded import Forwarded, decode_forwarded, encode_answer
from shared.http_answer import CLOSE
from shared.link import FRONT, Asked, LinkKind, LinkPool, LinkServer, serve_links

logger = logging.getLogger(__name__)

LIST_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.25

_decode_topics = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode
_decode_shard = msgspec.msgpack.Decoder(int).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class FrontLink:
    def __init__(self, instance: str, topics: TopicCount) -> None:
        self._instance = instance
        self._topics = topics
        self._look_timer: asyncio.TimerHandle | None = None
        self._links = LinkPool(instance)
        self._control: Control | None = None
        self._server: LinkServer | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, control: Control) -> None:
        self._control = control
        self._server = await serve_links(self._instance, FRONT, self._serve)
        self._look()

    def close(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
        if self._server is not None:
            self._server.close()
        self._links.close()

    def _look(self) -> None:
        self._topics.look()
        self._look_timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    async def list_shard(
        self, shard: int, prefix: str, after: str, limit: int
    ) -> list[dict[str, Any]] | None:
        """Topics of a shard in name order; None when it does not answer."""
        answer = await self._ask(shard, LinkKind.LIST_TOPICS, _encode([prefix, after, limit]))
        return _decode_topics(answer) if answer else None

    async def tell_keys(self, shard: int, api_keys: str) -> bool:
        """Whether the worker of the shard goes by these keys now."""
        return bool(await self._ask(shard, LinkKind.KEYS, api_keys.encode()))

    async def _ask(self, shard: int, kind: LinkKind, payload: bytes) -> bytes | None:
        """The answer; None or empty when there is none."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._links.call(str(shard), kind, payload, done)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                return await answered
        except TimeoutError:
            return None

    def _serve(self, kind: int, payload: bytes, reply: Asked) -> None:
        if kind == LinkKind.RESERVE_TOPIC:
            reply(_encode(self._topics.reserve(_decode_shard(payload))))
            return
        assert kind == LinkKind.REQUEST, f"nobody asks the front process for {kind}"
        task = asyncio.get_running_loop().create_task(self._answer(decode_forwarded(payload), reply))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, request: Forwarded, reply: Asked) -> None:
        assert self._control is not None
        try:
            answer = await self._control.answer(
                request.operation, request.query, request.accept, request.prefixes
            )
        except Exception as error:  # whatever nobody foresaw
            error_id = secrets.token_hex(4)
            logger.error("error %s in a forwarded request", error_id, exc_info=error)
            answer = refused(Refusal(INTERNAL, f"an error that was not foreseen, {error_id} in the log"))
        status, content, fields = answer
        if isinstance(content, str):
            fields += b"content-type: %b\r\n" % METRICS_TYPE.encode()
        body = content.encode() if isinstance(content, str) else _encode_json(content)
        if status == 500:
            # Last of the fields: who asked ends its connection with it.
            fields += CLOSE
        reply(encode_answer(status, fields, [body]))
