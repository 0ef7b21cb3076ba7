"""The topics of a selection, on all shards and among the shared topics, as one follower finds them.

D1  One search is with each process at a time (`topic_search.py`). A finder that is closed has none, so a
    server without such followers does nothing for them.
D2  A process that restarts, or that was added, lists its topics: the follower ignores those that it knows.
D3  A topic that was deleted may be created again under its name, and is then reported again. The follower
    calls `search_again` when it sees the deletion, since that may be after the report, which it ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from shared.contract.errors import Refusal, no_answer
from shared.contract.tag_filter import TagFilter, TopicSelection
from shared.ipc.link import LinkPool, LinkReply
from shared.ipc.link_kind import LinkKind
from shared.ipc.shared_placement import SharedPlacement
from shared.runtime.disk_thread import Loop
from topicsd.stream.tail.topic_search import (
    NOT_NOW,
    TopicNames,
    TopicQuery,
    TopicSearcher,
    decode_names,
    decode_query,
    encode_search,
)

RETRY_SECONDS: Final = 0.1

OnTopics = Callable[[Collection[str]], object]


class TopicFinders:
    """The searches of one process at all processes of its server.

    `refusal` returns why an owner is unavailable, or None; `ready_broker` returns the owner number of a
    broker of this node that serves now, and is None on a node without brokers.
    """

    def __init__(
        self,
        number: int,
        searcher: TopicSearcher,
        links: LinkPool,
        placement: SharedPlacement,
        loop: Loop,
        refusal: Callable[[int], Refusal | None],
        ready_broker: Callable[[], int] | None,
    ) -> None:
        self.number = number
        self.searcher = searcher
        self.links = links
        self.loop = loop
        self.refusal = refusal
        self.ready_broker = ready_broker
        self._placement = placement
        self._open: dict[TopicFinder, None] = {}
        placement.call_on_change(self._on_change)

    @property
    def count(self) -> int:
        """Return the number of open finders."""
        return len(self._open)

    def finder(self, selection: TopicSelection, names_max: int) -> TopicFinder:
        """Return a finder that gets at most `names_max` topics of one process at once."""
        return TopicFinder(self, selection, names_max)

    def shards(self) -> range:
        return range(self._placement.shard_count)

    def _on_change(self) -> None:
        """Search the shards that were added. The searches at retired ones end by themselves."""
        for finder in list(self._open):
            finder.search_new_shards()

    def opened(self, finder: TopicFinder) -> None:
        self._open[finder] = None

    def closed(self, finder: TopicFinder) -> None:
        self._open.pop(finder, None)

    def answer(self, payload: bytes, reply: LinkReply) -> None:
        """Answer a search of another process."""
        cancel = self.searcher.search(decode_query(payload), lambda names: reply(encode_search(names)))

        def cancel_wait() -> None:
            cancel()
            reply(b"")

        reply.cancel_wait = cancel_wait


class TopicFinder:
    def __init__(self, finders: TopicFinders, selection: TopicSelection, names_max: int) -> None:
        self.finders = finders
        self.selection = selection
        self.names_max = names_max
        self._on_topics: OnTopics | None = None
        self._news: list[str] = []
        """Topics that are not reported yet."""
        self._searches: dict[int | None, _OwnerSearch] = {}
        """By owner number; at None the search at the broker."""
        self._reply: Callable[[list[str] | Refusal], object] | None = None
        self._waiting_count = 0
        self._listed: set[str] = set()
        self.reported: set[str] = set()
        """Names that a broker need not report."""
        self._again: dict[str, TopicFinder] = {}
        """Finders of single topics that were deleted (D3)."""

    # -- calls of the follower -----------------------------------------------------------------------------

    def find_existing(self, reply: Callable[[list[str] | Refusal], object]) -> None:
        """Pass the topics that exist to `reply`, in order, or a refusal while a process is unavailable.

        From then on new ones are news. A refused finder is closed.
        """
        self._reply = reply
        self._start()
        self._waiting_count = len(self._searches)
        for search in list(self._searches.values()):
            search.ask()

    def begin(self) -> None:
        """Begin without a list: the topics that exist are news. An unavailable process is searched later."""
        self._start()
        for search in list(self._searches.values()):
            search.ask()

    def follow(self, on_topics: OnTopics) -> None:
        """Call `on_topics` with news: names of topics, of which the follower may know some already."""
        self._on_topics = on_topics
        self._report([])

    def search_again(self, name: str) -> None:
        """Report a topic once more if it exists, after it was deleted (D3)."""
        self.reported.discard(name)
        if None in self._searches:
            self._searches[None].restart()
        former = self._again.pop(name, None)
        if former is not None:
            former.close()
        selection = TopicSelection(TagFilter(frozenset([name])), self.selection.within)
        one = self._again[name] = self.finders.finder(selection, 1)
        one.find_existing(partial(self._on_listed_again, name))

    def _on_listed_again(self, name: str, names: list[str] | Refusal) -> None:
        finder = self._again.pop(name)
        finder.close()
        if isinstance(names, Refusal):
            self.finders.loop.call_later(RETRY_SECONDS, self._search_later, name)
        else:
            self.reported.update(names)
            self._report(names)

    def _search_later(self, name: str) -> None:
        if self._searches and name not in self.reported:
            self.search_again(name)

    def close(self) -> None:
        self._reply = None
        self.finders.closed(self)
        finders, self._again = self._again, {}
        for finder in finders.values():
            finder.close()
        searches, self._searches = self._searches, {}
        for search in searches.values():
            search.close()

    # -- searches ------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self.finders.opened(self)
        owners: list[int | None] = [*self.finders.shards()]
        if self.finders.ready_broker is not None:
            owners.append(None)
        self._searches = {owner: _OwnerSearch(self, owner) for owner in owners}

    def search_new_shards(self) -> None:
        for owner in self.finders.shards():
            if owner not in self._searches:
                self._searches[owner] = _OwnerSearch(self, owner)
                self._searches[owner].ask()

    def retire(self, owner: int | None, is_listing: bool) -> bool:
        """Forget the search at a shard that was removed; return whether it was."""
        if owner is None or owner in self.finders.shards():
            return False
        self._searches.pop(owner, None)
        self.on_names(is_listing, [])
        return True

    def on_names(self, is_listing: bool, names: list[str]) -> None:
        self.reported.update(names)
        if self._reply is None:
            self._report(names)
            return
        self._listed.update(names)
        self._waiting_count -= is_listing
        if not self._waiting_count:
            reply, self._reply = self._reply, None
            reply(sorted(self._listed))

    def _report(self, names: Collection[str]) -> None:
        self._news += names
        if self._news and self._on_topics is not None:
            news, self._news = self._news, []
            self._on_topics(news)

    def on_unavailable(self, refusal: Refusal) -> bool:
        """Refuse the first list; return whether the search is repeated later instead."""
        if self._reply is None:
            return True
        reply = self._reply
        self.close()
        reply(refusal)
        return False


class _OwnerSearch:
    """The search of a finder at one process."""

    def __init__(self, finder: TopicFinder, owner: int | None) -> None:
        self._finder = finder
        self._owner = owner
        self._place: int | None = None
        self._round = 0
        """Answers of earlier rounds are ignored."""
        self._cancel: Callable[[], object] | None = None
        self._timer: Any = None

    def ask(self) -> None:
        finders, finder = self._finder.finders, self._finder
        self._timer = None
        self._round += 1
        owner = self._owner
        known: list[str] = []
        if owner is None:
            assert finders.ready_broker is not None
            owner, known = finders.ready_broker(), list(finder.reported)
        query = TopicQuery(finder.selection, self._place, known, finder.names_max)
        if owner == finders.number:
            self._cancel = finders.searcher.search(query, partial(self._on_names, self._round))
            return
        refusal = finders.refusal(owner)
        if refusal is not None:
            # Not at once: the finder may still start its other searches.
            finders.loop.call_soon(self._on_unavailable, self._round, refusal)
            return
        on_answer = partial(self._on_answer, self._round, owner)
        call = finders.links.call(str(owner), LinkKind.FIND_TOPICS, encode_search(query), on_answer)
        self._cancel = call.cancel_wait

    def restart(self) -> None:
        """List the topics again, whatever the search waits for."""
        self._place = None
        self._stop()
        self.ask()

    def close(self) -> None:
        self._round += 1
        self._stop()

    def _stop(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_answer(self, number: int, owner: int, answer: bytes | None) -> None:
        if answer:
            self._on_names(number, decode_names(answer))
        else:
            refusal = self._finder.finders.refusal(owner)
            self._on_unavailable(number, refusal or no_answer(owner))

    def _on_names(self, number: int, answer: TopicNames) -> None:
        if number != self._round:
            return
        if answer.place == NOT_NOW:
            self._on_unavailable(number, no_answer(self._owner, is_broker=self._owner is None))
            return
        self._cancel = None
        is_listing, self._place = self._place is None, answer.place
        self._finder.on_names(is_listing, answer.names)
        if number == self._round:
            # The finder is not closed, and the search was not restarted.
            self.ask()

    def _on_unavailable(self, number: int, refusal: Refusal) -> None:
        if number != self._round:
            return
        self._cancel = None
        if self._finder.retire(self._owner, self._place is None):
            return
        if self._finder.on_unavailable(refusal):
            self._timer = self._finder.finders.loop.call_later(RETRY_SECONDS, self.ask)
