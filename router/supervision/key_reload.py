"""New API keys without a restart: read again on SIGHUP, and put in place here and in every worker.

K1  What cannot be read, or is wrong in any setting, changes nothing, and the log says why.
K2  Keys never vanish in a reload: without any, everybody may do everything, and that takes a restart.
K3  A worker that starts later is told the new ones at its start. One that does not answer now is told again
    until it does, or until there are newer ones. Until it is told it goes by those before.
K4  Only keys change. Of other settings that changed it is said that they take a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from shared.contract.api_keys import Keys, parse_keys
from shared.runtime.log_setup import fields
from shared.settings.settings import Settings, declared_values
from shared.settings.sources import Resolved

logger = logging.getLogger(__name__)

TELL_AGAIN_SECONDS: Final = 0.25

LoadSettings = Callable[[], Resolved | str]
"""Reads every source again; a sentence when that cannot be."""


class KeyReload:
    """`tell` gives a worker the keys and says whether it took them, `on_keys` puts them in place here."""

    def __init__(
        self,
        settings: Settings,
        shard_count: int,
        load: LoadSettings,
        tell: Callable[[int, str], Awaitable[bool]],
        on_keys: Callable[[Settings, Keys], None],
    ) -> None:
        self._first = settings
        self._api_keys = settings.api_keys
        self._shard_count = shard_count
        self._load = load
        self._tell = tell
        self._on_keys = on_keys
        self._telling: set[asyncio.Task[None]] = set()

    def reload(self) -> None:
        resolved = self._load()
        if isinstance(resolved, str):
            logger.error("keys: not reloaded: %s", resolved)
            return
        settings = resolved.settings
        if self._api_keys and not settings.api_keys:
            logger.error(
                "keys: not reloaded: the new settings have none, and removing all keys takes a restart"
            )
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
        for shard in range(self._shard_count):
            task = loop.create_task(self._tell_until_taken(shard, settings.api_keys))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    def close(self) -> None:
        """Nobody is told any more."""
        for task in self._telling:
            task.cancel()

    async def _tell_until_taken(self, shard: int, api_keys: str) -> None:
        while True:
            if await self._tell(shard, api_keys):
                return
            await asyncio.sleep(TELL_AGAIN_SECONDS)
