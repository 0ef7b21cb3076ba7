"""The compactor as a service: a scheduler on an event loop, with health and metrics over HTTP."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Final

import msgspec
from aiohttp import web

from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields
from topicsd.broker.repeats import Repeats
from topicsd.broker.upkeep.scheduler import UpkeepLimits, UpkeepScheduler
from topicsd.cli.compactor.compactor_metrics import CompactorDocument, document, prometheus_text
from topicsd.cli.compactor.shared_places import SharedPlaces
from topicsd.offline.command_error import CommandError

JSON_TYPE: Final = "application/json"
PROMETHEUS_TYPE: Final = "text/plain"

logger = logging.getLogger("topicsd.compactor")


class CompactorService:
    def __init__(
        self, clock: Clock, places: SharedPlaces, repeats: Repeats, limits: UpkeepLimits, name: str
    ) -> None:
        self._clock = clock
        self._places = places
        self._repeats = repeats
        self._limits = limits
        self._name = name
        self._started_at = clock.monotonic()

    async def run(self, host: str, port: int) -> None:
        """Run until SIGTERM or SIGINT; then release claims and end (U5)."""
        loop = asyncio.get_running_loop()
        is_stopping, is_stopped = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, is_stopping.set)
        store, catalog = self._places
        self._scheduler = UpkeepScheduler(
            self._clock, loop, store, catalog, self._repeats, self._limits, self._name
        )
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/prometheus", self._prometheus)
        runner = web.AppRunner(app, access_log=None, handle_signals=False)
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise CommandError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
        address = runner.addresses[0]
        logger.info("compactor: listening", extra=fields(host=address[0], port=address[1], name=self._name))
        self._scheduler.start()
        await is_stopping.wait()
        logger.info("compactor: stopping", extra=fields(name=self._name))
        self._repeats.end()
        self._scheduler.stop(is_stopped.set)
        await is_stopped.wait()
        await runner.cleanup()

    def _document(self) -> CompactorDocument:
        uptime = self._clock.monotonic() - self._started_at
        return document(self._name, uptime, self._scheduler.counts, self._places.store)

    async def _health(self, request: web.Request) -> web.Response:
        """Answer 503 while the topics cannot be listed."""
        is_healthy = not self._scheduler.is_listing_failed
        answer = {"status": "ok" if is_healthy else "catalog unavailable", "name": self._name}
        body = msgspec.json.encode(answer)
        return web.Response(status=200 if is_healthy else 503, body=body, content_type=JSON_TYPE)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=msgspec.json.encode(self._document()), content_type=JSON_TYPE)

    async def _prometheus(self, request: web.Request) -> web.Response:
        return web.Response(text=prometheus_text(self._document()), content_type=PROMETHEUS_TYPE)
