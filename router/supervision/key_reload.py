"""Reload of the API keys on SIGHUP, without a restart, here and in every worker.

K1  Settings that cannot be read, or that are wrong anywhere, change nothing, and the log says why.
K2  A reload never removes all keys: without keys every client may do everything, so that takes a restart.
K3  A worker that starts later receives the new keys at its start. A running worker is sent the keys again
    until it acknowledges them or newer keys exist. Until then it uses the previous keys.
K4  Only keys change. For other settings that changed, the log says that they take a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from shared.contract.api_keys import ApiKeys, parse_keys
from shared.runtime.log_setup import fields
from shared.settings.settings import Settings, declared_values
from shared.settings.sources import Resolved

logger = logging.getLogger(__name__)

RESEND_SECONDS: Final = 0.25

LoadSettings = Callable[[], Resolved | str]
"""Reads every source again; returns a sentence when that fails."""


class KeyReload:
    """The reload of API keys, for the workers and brokers whose owner numbers `owners` returns.

    `send` sends the keys to one of them and returns whether it applied them; `on_keys` applies them
    here.
    """

    def __init__(
        self,
        settings: Settings,
        owners: Callable[[], Sequence[int]],
        load: LoadSettings,
        send: Callable[[int, str], Awaitable[bool]],
        on_keys: Callable[[Settings, ApiKeys], None],
    ) -> None:
        self._first = settings
        self._api_keys = settings.api_keys
        self._owners = owners
        self._load = load
        self._send = send
        self._on_keys = on_keys
        self._sending: set[asyncio.Task[None]] = set()

    def reload(self) -> None:
        resolved = self._load()
        if isinstance(resolved, str):
            logger.error("keys: not reloaded: %s", resolved)
            return
        settings = resolved.settings
        if self._api_keys and not settings.api_keys:
            logger.error("keys: not reloaded: the new settings have no keys; restart to remove all keys")
            return
        for sentence in resolved.advice:
            logger.warning("%s", sentence)
        old = dict(declared_values(self._first))
        changed = [field.variable for field, value in declared_values(settings) if value != old[field]]
        others = [variable for variable in changed if variable != "TOPICS_API_KEYS"]
        if others:
            logger.warning("settings: changed, restart to apply: %s", ", ".join(others))
        keys = parse_keys(settings.api_keys)
        self._api_keys = settings.api_keys
        self._on_keys(settings, keys)
        logger.info("keys: reloaded", extra=fields(keys=len(keys)))
        self.close()
        loop = asyncio.get_running_loop()
        for owner in self._owners():
            task = loop.create_task(self._send_until_applied(owner, settings.api_keys))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    def close(self) -> None:
        """Stop sending keys to workers."""
        for task in self._sending:
            task.cancel()

    async def _send_until_applied(self, owner: int, api_keys: str) -> None:
        while owner in self._owners():
            if await self._send(owner, api_keys):
                return
            await asyncio.sleep(RESEND_SECONDS)
