"""The keys that all processes use: their reload on SIGHUP, and every other change, without a restart.

K1  Settings that cannot be read, or that are wrong anywhere, change nothing, and the log says why.
K2  A reload never removes all keys: without keys every client may do everything, so that takes a restart.
K3  A worker that starts later receives the new keys at its start. A running worker is sent the keys again
    until it acknowledges them or newer keys exist. Until then it uses the previous keys.
K4  Only keys change. For other settings that changed, the log says that they take a restart.
K5  A change of a named key is answered when every process that serves has it. A worker that is starting
    compares the version on the board before it serves, so it need not be waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from shared.contract.api_keys import ApiKeys, parse_keys
from shared.ipc.key_file import StoredKey, key_text
from shared.runtime.audit import audit
from shared.runtime.clock import Clock
from shared.runtime.log_setup import fields
from shared.settings.settings import Settings, declared_values
from shared.settings.sources import Resolved

logger = logging.getLogger(__name__)

RESEND_SECONDS: Final = 0.25

LoadSettings = Callable[[], Resolved | str]
"""Reads every source again; returns a sentence when that fails."""
SendKeys = Callable[[int, int, str], Awaitable[bool]]
"""Sends the keys of a version to an owner; returns whether it applied them."""
OnKeys = Callable[[str, int, ApiKeys], None]
"""Applies the keys of a version in this process, and at the start of a worker."""


class KeyReload:
    """The keys of the workers and brokers whose owner numbers `owners` returns.

    `serves` returns whether an owner answers requests. `stored` are the named keys.
    """

    def __init__(
        self,
        settings: Settings,
        owners: Callable[[], Sequence[int]],
        load: LoadSettings,
        send: SendKeys,
        on_keys: OnKeys,
        serves: Callable[[int], bool],
        clock: Clock,
        stored: Sequence[StoredKey] = (),
    ) -> None:
        self._first = settings
        self._configured = settings.api_keys
        self._owners = owners
        self._load = load
        self._send = send
        self._on_keys = on_keys
        self._serves = serves
        self._clock = clock
        self.stored = tuple(stored)
        self._version = 0
        self._sending: dict[asyncio.Task[None], int] = {}
        self.keys = parse_keys(self._text())

    @property
    def configured(self) -> ApiKeys:
        return parse_keys(self._configured)

    def reload(self) -> None:
        resolved = self._load()
        if isinstance(resolved, str):
            logger.error("keys: not reloaded: %s", resolved)
            return
        settings = resolved.settings
        if self._configured and not settings.api_keys:
            logger.error("keys: not reloaded: the new settings have no keys; restart to remove all keys")
            return
        for sentence in resolved.advice:
            logger.warning("%s", sentence)
        old = dict(declared_values(self._first))
        changed = [field.variable for field, value in declared_values(settings) if value != old[field]]
        others = [variable for variable in changed if variable != "TOPICS_API_KEYS"]
        if others:
            logger.warning("settings: changed, restart to apply: %s", ", ".join(others))
        self._configured = settings.api_keys
        self.apply()
        logger.info("keys: reloaded", extra=fields(keys=len(self.keys)))
        audit("reload_keys", "", "SIGHUP", "")

    async def change(self, stored: Sequence[StoredKey]) -> None:
        """Use these named keys; return when every process that serves uses them (K5)."""
        self.stored = tuple(stored)
        self.apply()
        # At first also for owners that do not serve: one that compared the version before serves by then.
        waiting = list(self._sending)
        while waiting:
            await asyncio.wait(waiting, timeout=RESEND_SECONDS)
            # Newer keys have other tasks.
            waiting = [task for task, owner in self._sending.items() if self._serves(owner)]

    def apply(self) -> None:
        """Apply the keys here, and send them to every worker until it has them (K3)."""
        text = self._text()
        self.keys = parse_keys(text)
        self._version += 1
        self._on_keys(text, self._version, self.keys)
        self.close()
        loop = asyncio.get_running_loop()
        for owner in self._owners():
            task = loop.create_task(self._send_until_applied(owner, self._version, text))
            self._sending[task] = owner
            task.add_done_callback(lambda task: self._sending.pop(task, None))

    def close(self) -> None:
        """Stop sending keys to workers."""
        for task in self._sending:
            task.cancel()

    def _text(self) -> str:
        return key_text(self.stored, self._clock.now_ms(), self._configured)

    async def _send_until_applied(self, owner: int, version: int, api_keys: str) -> None:
        while owner in self._owners():
            if await self._send(owner, version, api_keys):
                return
            await asyncio.sleep(RESEND_SECONDS)
