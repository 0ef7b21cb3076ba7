"""Reload of API keys: what is applied, what is not, and which workers receive the keys."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.supervision import key_reload
from router.supervision.key_reload import KeyReload
from shared.contract.api_keys import ApiKeys, seal_api_keys
from shared.ipc.key_file import StoredKey
from shared.settings.settings import Settings
from shared.settings.sources import Resolved
from tests.harness.machine.manual_clock import ManualClock

OLD, NEW = seal_api_keys("the-old-key-of-the-server"), seal_api_keys("the-new-key-of-the-server")


class Reloads:
    def __init__(self, api_keys: str = OLD) -> None:
        self.loaded: Resolved | str = "nothing to load"
        self.applied: list[tuple[str, int]] = []
        self.sent: list[tuple[int, str]] = []
        self.deaf: set[int] = set()
        first = Settings(api_keys=api_keys)
        self.serving = {0, 1}
        self.reload = KeyReload(
            first,
            lambda: [0, 1],
            lambda: self.loaded,
            self._send,
            self._apply,
            lambda owner: owner in self.serving,
            ManualClock(),
        )

    async def _send(self, shard: int, version: int, api_keys: str) -> bool:
        self.sent.append((shard, api_keys))
        return shard not in self.deaf

    def _apply(self, api_keys: str, version: int, keys: ApiKeys) -> None:
        self.applied.append((api_keys, len(keys)))

    def load(self, **settings: object) -> None:
        self.loaded = Resolved(Settings(**settings), {}, {}, [], [])  # type: ignore[arg-type]
        self.reload.reload()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_new_keys_are_applied_and_sent_to_every_worker() -> None:
    async def run() -> None:
        reloads = Reloads()
        reloads.load(api_keys=NEW)
        assert reloads.applied == [(NEW, 1)]
        await turns()
        assert reloads.sent == [(0, NEW), (1, NEW)]

    asyncio.run(run())


def test_unreadable_settings_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        reloads = Reloads()
        reloads.loaded = "topicsd.toml: is not valid TOML"
        reloads.reload.reload()
        reloads.load(api_keys="")
        await turns()
        assert reloads.applied == []
        assert reloads.sent == []

    asyncio.run(run())
    assert "keys: not reloaded: topicsd.toml: is not valid TOML" in caplog.text
    assert "keys: not reloaded: the new settings have no keys; restart to remove all keys" in caplog.text


def test_keys_can_be_added_to_a_server_without_keys() -> None:
    async def run() -> None:
        reloads = Reloads(api_keys="")
        reloads.load(api_keys="")
        reloads.load(api_keys=NEW)
        reloads.load(api_keys="")
        await turns()
        assert reloads.applied == [("", 0), (NEW, 1)]

    asyncio.run(run())


def test_keys_are_sent_again_to_a_worker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reload, "RESEND_SECONDS", 0)

    async def run() -> None:
        reloads = Reloads()
        reloads.deaf = {1}
        reloads.load(api_keys=NEW)
        await turns(20)
        assert reloads.sent.count((0, NEW)) == 1
        assert reloads.sent.count((1, NEW)) > 2
        # Older keys are not sent any more.
        reloads.load(api_keys=OLD)
        await turns()
        reloads.sent.clear()
        await turns(20)
        assert set(reloads.sent) == {(1, OLD)}
        reloads.deaf.clear()
        await turns()
        reloads.sent.clear()
        await turns(20)
        assert reloads.sent == []

    asyncio.run(run())


def test_other_settings_wait_for_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        reloads = Reloads()
        reloads.load(api_keys=NEW, max_limit=7, port=5)
        assert reloads.applied == [(NEW, 1)]

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "settings: changed, restart to apply: TOPICS_PORT, TOPICS_MAX_LIMIT" in caplog.text
    assert "API_KEYS" not in caplog.text


def test_a_change_ends_when_every_owner_that_serves_has_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reload, "RESEND_SECONDS", 0.001)
    stored = [StoredKey(name="ci", digest="0" * 64, scopes=("read",), created_ms=1)]

    async def run() -> None:
        reloads = Reloads()
        reloads.deaf = {0, 1}
        change = asyncio.create_task(reloads.reload.change(stored))
        await asyncio.sleep(0.02)
        assert not change.done()
        # A reload meanwhile sends the named key too, and the change waits for that.
        reloads.load(api_keys=NEW)
        assert reloads.applied[-1] == (f"{NEW},sha256-{'0' * 64}@ci:read:", 2)
        await asyncio.sleep(0.02)
        assert not change.done()
        # One gets the keys, the other one restarts and compares the version first.
        reloads.deaf = {1}
        await asyncio.sleep(0.02)
        assert not change.done()
        reloads.serving = {0}
        await asyncio.wait_for(change, 5)
        reloads.reload.close()

    asyncio.run(run())
