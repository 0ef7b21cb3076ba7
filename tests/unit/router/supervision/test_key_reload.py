"""Keys that are read again: what is put in place, what is not, and who is told until when."""

from __future__ import annotations

import asyncio
import logging

import pytest

from router.supervision import key_reload
from router.supervision.key_reload import KeyReload
from shared.contract.api_keys import Keys, seal_api_keys
from shared.settings.settings import Settings
from shared.settings.sources import Resolved

OLD, NEW = seal_api_keys("the-old-key-of-the-server"), seal_api_keys("the-new-key-of-the-server")


class Stage:
    def __init__(self, api_keys: str = OLD) -> None:
        self.loaded: Resolved | str = "nothing to load"
        self.taken: list[tuple[str, int]] = []
        self.told: list[tuple[int, str]] = []
        self.deaf: set[int] = set()
        first = Settings(api_keys=api_keys)
        self.reload = KeyReload(first, 2, lambda: self.loaded, self._tell, self._take)

    async def _tell(self, shard: int, api_keys: str) -> bool:
        self.told.append((shard, api_keys))
        return shard not in self.deaf

    def _take(self, settings: Settings, keys: Keys) -> None:
        self.taken.append((settings.api_keys, len(keys)))

    def load(self, **settings: object) -> None:
        self.loaded = Resolved(Settings(**settings), {}, {}, [], [])  # type: ignore[arg-type]
        self.reload.reload()


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_new_keys_are_put_in_place_and_every_worker_is_told() -> None:
    async def run() -> None:
        stage = Stage()
        stage.load(api_keys=NEW)
        assert stage.taken == [(NEW, 1)]
        await turns()
        assert stage.told == [(0, NEW), (1, NEW)]

    asyncio.run(run())


def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        stage = Stage()
        stage.loaded = "topicsd.toml: is not valid TOML"
        stage.reload.reload()
        stage.load(api_keys="")
        await turns()
        assert stage.taken == []
        assert stage.told == []

    asyncio.run(run())
    assert "keys: not reloaded: topicsd.toml: is not valid TOML" in caplog.text
    assert (
        "keys: not reloaded: the new settings have none, and removing all keys takes a restart" in caplog.text
    )


def test_a_server_without_keys_may_get_some() -> None:
    async def run() -> None:
        stage = Stage(api_keys="")
        stage.load(api_keys="")
        stage.load(api_keys=NEW)
        stage.load(api_keys="")
        await turns()
        assert stage.taken == [("", 0), (NEW, 1)]

    asyncio.run(run())


def test_a_worker_that_does_not_answer_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_reload, "TELL_AGAIN_SECONDS", 0)

    async def run() -> None:
        stage = Stage()
        stage.deaf = {1}
        stage.load(api_keys=NEW)
        await turns(20)
        assert stage.told.count((0, NEW)) == 1
        assert stage.told.count((1, NEW)) > 2
        # Of those that came before nobody hears any more.
        stage.load(api_keys=OLD)
        await turns()
        stage.told.clear()
        await turns(20)
        assert set(stage.told) == {(1, OLD)}
        stage.deaf.clear()
        await turns()
        stage.told.clear()
        await turns(20)
        assert stage.told == []

    asyncio.run(run())


def test_other_settings_wait_for_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        stage = Stage()
        stage.load(api_keys=NEW, max_limit=7, port=5)
        assert stage.taken == [(NEW, 1)]

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    assert "settings: changed, restart to apply: TOPICS_PORT, TOPICS_MAX_LIMIT" in caplog.text
    assert "API_KEYS" not in caplog.text
