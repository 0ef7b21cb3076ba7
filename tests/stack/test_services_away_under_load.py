"""A catalog that hangs and is killed, and a store that answers 503, while clients write.

Writes to existing topics continue, no local file is deleted that is not in the store, and exports catch up.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.harness.books.process_ledger import ProcessLedger, book_of, seed_of_this_run
from tests.harness.clients.writer_clients import Writers
from tests.harness.output.command_run import run_here
from tests.harness.server.whole_server import WholeServer
from tests.harness.sweeps.crash_sweep import DEEP
from tests.stack.failing_proxy import failing_proxy
from tests.stack.servers import CREDENTIALS, REGION, postgres_server, s3_server

pytestmark = pytest.mark.slow

SHARDS: Final = 2
AWAY_SECONDS: Final = 75.0 if DEEP else 7.0
"""In a long run local files of exported segments are dropped meanwhile, which is done each minute."""
STALL_SECONDS: Final = 5.0
"""No write waits longer than this; the machine may be busy."""
CATCH_UP_SECONDS: Final = 120.0
PAUSE_SECONDS: Final = 0.02
ENVIRON: Final = {
    "TOPICS_SEGMENT_MAX_EVENTS": "50",
    "TOPICS_CHECKPOINT_INTERVAL_MS": "500",
    "TOPICS_EXPORT_INTERVAL_MS": "2000",
    "TOPICS_HOT_RETAIN_SEGMENTS": "0",
}


class LoadedServer:
    """A server with a store and a catalog, and clients whose writes the ledger knows."""

    def __init__(self, server: WholeServer) -> None:
        self.server = server
        self.book: ProcessLedger = book_of(SHARDS)

    @contextmanager
    def load(self) -> Iterator[None]:
        self.book.make_topics(self.server.port)
        self.server.wait_for(self._have_rows, "all topics have rows", CATCH_UP_SECONDS)
        with Writers(
            self.server.port, self.book, seed_of_this_run(), writers=3, pause_seconds=PAUSE_SECONDS, size=100
        ):
            self.wait_for(lambda: self.exports["segments"] > 0, "something is exported")
            yield

    def _have_rows(self) -> bool:
        return all(
            self.server.ask("GET", f"/v0/topics/{name}/owner").status == 200 for name in self.book.topics
        )

    @property
    def exports(self) -> Any:
        return self.server.ask_json("GET", "/v0/store")["exports"]

    @property
    def degraded(self) -> str:
        return str(self.server.ask_json("GET", "/v0/ready").get("degraded", ""))

    def wait_for(self, is_so: Callable[[], bool], what: str) -> None:
        self.server.wait_for(is_so, what, CATCH_UP_SECONDS)

    def check_writes_continue(self, seconds: float) -> None:
        """Check that writes are acknowledged all the time, and none is refused."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            before, started = self.book.acked_count, time.monotonic()
            while self.book.acked_count < before + 5:
                assert time.monotonic() - started < STALL_SECONDS, "writes wait"
                time.sleep(0.05)
            time.sleep(0.2)
        assert not self.book.answers, self.book.answers

    def local_segments(self) -> set[str]:
        """Return the local files with the records of sealed segments."""
        return {
            str(path)
            for path in (self.server.folder / "data").rglob("seg-*.data")
            if "trash" not in path.parts and re.fullmatch(r"seg-\d{16}.*[.]data", path.name)
        }

    def check_nothing_is_exported_or_deleted(self, seconds: float) -> None:
        """Check a time without the store or the catalog; its first seconds are for requests in flight."""
        self.check_writes_continue(min(seconds, 2))
        exported, segments = self.exports["segments"], self.local_segments()
        self.check_writes_continue(seconds)
        assert self.exports["segments"] == exported
        assert self.exports["waiting_segments"] > 0
        if not DEEP:
            assert segments <= self.local_segments()

    def check_end(self) -> None:
        """Check that the exports have caught up and nothing acknowledged is missing, also after a restart."""
        self.wait_for(lambda: self.degraded == "", "nothing is degraded")
        self.wait_for(lambda: self.exports["waiting_segments"] == 0, "the exports have caught up")
        self.book.check(self.server.port)
        for name in self.book.topics:
            row = self.server.ask_json("GET", f"/v0/topics/{name}/owner")
            assert row["exported_to"] > 0, row
        self.server.kill()
        self.server.start()
        self.book.check(self.server.port)
        assert self.server.stop() == 0


def test_writes_continue_while_postgresql_hangs_is_killed_and_returns(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    with postgres_server() as postgres:
        environ = {
            **ENVIRON,
            "TOPICS_STORE_URL": f"file://{tmp_path}/objects",
            "TOPICS_CATALOG_URL": postgres.new_database("load"),
        }
        with WholeServer(tmp_path, shards=SHARDS, environ=environ) as server:
            loaded = LoadedServer(server)
            with loaded.load():
                postgres.freeze()
                loaded.check_nothing_is_exported_or_deleted(AWAY_SECONDS)
                loaded.wait_for(lambda: "catalog" in loaded.degraded, "the catalog is reported away")
                postgres.kill_frozen()
                loaded.check_nothing_is_exported_or_deleted(AWAY_SECONDS)
                exported = loaded.exports["segments"]
                postgres.start()
                loaded.wait_for(lambda: loaded.exports["segments"] > exported, "exports continue")
                loaded.check_writes_continue(2)
            loaded.check_end()
        assert run_here("verify", tmp_path / "data").code == 0


def test_writes_continue_while_s3_answers_503(tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    with s3_server(tmp_path / "s3") as s3, failing_proxy(s3.port) as proxy:
        s3.url("load")
        endpoint = f"http://127.0.0.1:{proxy.port}"
        environ = {
            **ENVIRON,
            **CREDENTIALS,
            "TOPICS_STORE_URL": f"s3://load?endpoint={endpoint}&region={REGION}",
        }
        with WholeServer(tmp_path, shards=SHARDS, environ=environ) as server:
            loaded = LoadedServer(server)
            with loaded.load():
                proxy.share = 1.0
                loaded.check_nothing_is_exported_or_deleted(AWAY_SECONDS)
                loaded.wait_for(lambda: loaded.degraded != "", "the store is reported away")
                assert proxy.refused_count > 0
                # Some requests succeed: an export is made of several.
                proxy.share = 0.4
                loaded.check_writes_continue(AWAY_SECONDS)
                proxy.share = 0.0
                exported = loaded.exports["segments"]
                loaded.wait_for(lambda: loaded.exports["segments"] > exported, "exports continue")
            loaded.check_end()
