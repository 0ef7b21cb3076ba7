"""Every kind of catalog reports the commits of one process to another, and survives a lost connection."""

from __future__ import annotations

import itertools
import os
import queue
import resource
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from shared.runtime.clock import SystemClock
from tests.stack.cut_proxy import CutProxy, cut_proxy
from tests.stack.engines import POLICY
from tests.stack.test_shared_catalogs import remove_all, run_threads
from topicsd.catalog.shared.open_shared import open_shared_catalog
from topicsd.catalog.shared.shared_catalog import HeadNotice, Part, PartResult, SharedCatalog, Slice

WAIT_SECONDS = 20.0
DESCRIPTORS = 1100
"""More than `select` can wait for."""
_databases = itertools.count()


class Two(NamedTuple):
    """Two processes with one catalog."""

    writer: SharedCatalog
    reader: SharedCatalog


def open_at(url: str, folder: Path) -> SharedCatalog:
    return open_shared_catalog(url, str(folder), POLICY, SystemClock().now_ms)


@pytest.fixture(params=["sqlite", "postgresql", "etcd", "oxia"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "sqlite":
        yield "sqlite:"
    elif request.param == "postgresql":
        yield request.getfixturevalue("postgresql").new_database(f"notices_{next(_databases)}")
    else:
        url = request.getfixturevalue(request.param).url
        yield url
        remove_all(url)


@pytest.fixture
def two(url: str, tmp_path: Path) -> Iterator[Two]:
    with ExitStack() as opened:
        catalogs = [open_at(url, tmp_path) for _ in range(2)]
        for catalog in catalogs:
            opened.callback(catalog.close)
        yield Two(*catalogs)


class Notices:
    """The notices of one listener, as they come."""

    def __init__(self, catalog: SharedCatalog) -> None:
        self._queue: queue.SimpleQueue[HeadNotice] = queue.SimpleQueue()
        self.listener = catalog.listen(self._take)

    def _take(self, notices: Sequence[HeadNotice]) -> None:
        for notice in notices:
            self._queue.put(notice)

    def wait(self, is_wanted: Callable[[HeadNotice], bool]) -> HeadNotice:
        while True:
            notice = self._queue.get(timeout=WAIT_SECONDS)
            if is_wanted(notice):
                return notice

    def drop(self) -> None:
        """Forget what has come."""
        while not self._queue.empty():
            self._queue.get()

    def wait_for_all(self, names: Sequence[str]) -> None:
        left = set(names)
        while left:
            left.discard(self._queue.get(timeout=WAIT_SECONDS).topic)


@contextmanager
def notices_of(catalog: SharedCatalog) -> Iterator[Notices]:
    notices = Notices(catalog)
    try:
        yield notices
    finally:
        notices.listener.close()


def commit(catalog: SharedCatalog, *names: str) -> list[PartResult]:
    number = next(_databases)
    slices = [Slice(name, 7, 50, (Part(f"a-{number}", 1, 10),)) for name in names]
    return [result for (result,) in catalog.commit(f"blob-{number}", "frames-v1", slices)]


def test_a_commit_of_another_process_is_reported_once_it_is_committed(two: Two) -> None:
    two.writer.create("t", 7, b"{}")
    with notices_of(two.reader) as notices:
        notices.listener.follow(["t"])
        notices.wait_for_all(["t"])
        for seq in range(1, 21):
            commit(two.writer, "t")
            notice = notices.wait(lambda one: one.head is None or one.head >= seq)  # noqa: B023
            assert notice.incarnation in (7, None)
            assert two.reader.heads([("t", 7)]) == [seq]


def test_no_notice_says_more_than_is_committed(two: Two) -> None:
    two.writer.create("t", 7, b"{}")
    problems: list[HeadNotice] = []
    last = threading.Event()

    def check(notices: Sequence[HeadNotice]) -> None:
        (head,) = two.reader.heads([("t", 7)])
        problems.extend(one for one in notices if one.head is not None and one.head > head)
        if head == 60:
            last.set()

    listener = two.reader.listen(check)
    listener.follow(["t"])
    catalogs = (two.writer, two.writer, two.reader)

    def write(number: int) -> None:
        for _ in range(20):
            commit(catalogs[number], "t")

    run_threads(write, 3)
    assert last.wait(WAIT_SECONDS)
    listener.close()
    assert not problems


def test_a_topic_that_is_followed_later_is_reported(two: Two) -> None:
    for name in ("t", "later"):
        two.writer.create(name, 7, b"{}")
    with notices_of(two.reader) as notices:
        notices.listener.follow(["t"])
        notices.wait_for_all(["t"])
        commit(two.writer, "later")
        notices.listener.follow(["t", "later"])
        notices.wait(lambda one: one.topic == "later")
        commit(two.writer, "later")
        notices.wait(lambda one: one.topic == "later" and one.head in (2, None))


def test_one_commit_of_many_topics_with_long_names_is_reported_whole(two: Two) -> None:
    names = [f"{number:03}-{'n' * 100}" for number in range(200)]
    for name in names:
        two.writer.create(name, 7, b"{}")
    with notices_of(two.reader) as notices:
        notices.listener.follow(names)
        notices.wait_for_all(names)
        results = commit(two.writer, *names)
        assert {result.last_seq for result in results} == {1}
        left = set(names)
        while left:
            notice = notices.wait(lambda one: one.head in (1, None))
            left.discard(notice.topic)


def test_a_listener_that_is_closed_reports_nothing_more(two: Two) -> None:
    two.writer.create("t", 7, b"{}")
    with notices_of(two.reader) as notices, notices_of(two.reader) as open_ones:
        for one in (notices, open_ones):
            one.listener.follow(["t"])
            one.wait_for_all(["t"])
        notices.listener.close()
        notices.listener.close()
        commit(two.writer, "t")
        open_ones.wait(lambda one: one.head in (1, None))


@pytest.fixture
def proxy(url: str) -> Iterator[CutProxy]:
    with cut_proxy(urlsplit(url).port or 0) as proxy:
        yield proxy


def test_a_process_with_a_thousand_connections_gets_notices_too(two: Two) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 2 * DESCRIPTORS), limits[1]))
        for _ in range(DESCRIPTORS):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        two.writer.create("t", 7, b"{}")
        notices = opened.enter_context(notices_of(two.reader))
        notices.listener.follow(["t"])
        notices.wait_for_all(["t"])
        commit(two.writer, "t")
        notices.wait(lambda one: one.head in (1, None))
        commit(two.writer, "t")
        notices.wait(lambda one: one.head == 2)


@pytest.mark.parametrize("url", ["postgresql", "etcd", "oxia"], indirect=True)
def test_what_was_missed_while_the_connection_was_lost_is_reported_when_it_is_back(
    url: str, proxy: CutProxy, tmp_path: Path
) -> None:
    parts = urlsplit(url)
    through = url.replace(f":{parts.port}", f":{proxy.port}", 1)
    with ExitStack() as opened:
        writer, reader = open_at(url, tmp_path), open_at(through, tmp_path)
        opened.callback(writer.close)
        opened.callback(reader.close)
        notices = opened.enter_context(notices_of(reader))
        writer.create("t", 7, b"{}")
        notices.listener.follow(["t"])
        notices.wait_for_all(["t"])
        proxy.cut = "refused"
        commit(writer, "t")
        notices.drop()
        proxy.cut = "none"
        notices.wait(lambda one: one.head in (1, None))
        commit(writer, "t")
        notices.wait(lambda one: one.head == 2)
