"""The front process on the link: it answers the control requests that workers forward, and asks shards for
their topics.

What is asked of a shard for its topics is the array of `topicsd/http/topic_list.py`.

Must not know: what is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from router.control import METRICS_TYPE, Control, refused
from shared.errors import INTERNAL, Refusal
from shared.forwarded import Forwarded, decode_forwarded, encode_answer
from shared.link import FRONT, LinkKind, LinkPool, serve_links

logger = logging.getLogger(__name__)

LIST_SECONDS: Final = 2.0

_decode_topics = msgspec.msgpack.Decoder(list[dict[str, Any]]).decode
_encode = msgspec.msgpack.Encoder().encode
_encode_json = msgspec.json.Encoder().encode


class FrontLink:
    def __init__(self, instance: str) -> None:
        self._instance = instance
        self._links = LinkPool(instance, self._serve)
        self._control: Control | None = None
        self._server: asyncio.AbstractServer | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, control: Control) -> None:
        self._control = control
        self._server = await serve_links(self._instance, FRONT, self._serve)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._links.close()

    async def list_shard(
        self, shard: int, prefix: str, after: str, limit: int
    ) -> list[dict[str, Any]] | None:
        """Topics of a shard in name order; None when it does not answer."""
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        def done(answer: bytes | None) -> None:
            if not answered.done():
                answered.set_result(answer)

        self._links.call(str(shard), LinkKind.LIST_TOPICS, _encode([prefix, after, limit]), done)
        try:
            async with asyncio.timeout(LIST_SECONDS):
                answer = await answered
        except TimeoutError:
            return None
        return _decode_topics(answer) if answer else None

    def _serve(self, kind: int, payload: bytes, reply: Callable[[bytes], None]) -> None:
        assert kind == LinkKind.REQUEST, f"nobody asks the front process for {kind}"
        task = asyncio.get_running_loop().create_task(self._answer(decode_forwarded(payload), reply))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer(self, request: Forwarded, reply: Callable[[bytes], None]) -> None:
        assert self._control is not None
        try:
            answer = await self._control.answer(
                request.operation, request.query, request.accept, request.prefixes
            )
        except Exception:  # whatever nobody foresaw
            logger.exception("a forwarded request failed")
            answer = refused(Refusal(INTERNAL, "an error that was not foreseen"))
        status, content, fields = answer
        if isinstance(content, str):
            fields += b"content-type: %b\r\n" % METRICS_TYPE.encode()
        body = content.encode() if isinstance(content, str) else _encode_json(content)
        reply(encode_answer(status, fields, [body]))
