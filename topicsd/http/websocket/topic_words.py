"""The patterns of a WebSocket session, and the names for which it waits: where new topics come from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from shared.contract.errors import Refusal
from shared.contract.reader_options import ReaderOptions
from shared.contract.tag_filter import TopicSelection
from topicsd.service.watch.selection import topic_selection
from topicsd.stream.tail.topic_finder import TopicFinder, TopicFinders

OnNewTopic = Callable[[str, str, ReaderOptions], object]
"""Called with the name of a topic, the word that selects it, and the options of its subscription."""


class TopicWords:
    def __init__(
        self, finders: TopicFinders, topics_max: int, within: tuple[str, ...], on_topic: OnNewTopic
    ) -> None:
        """Report topics within the prefixes of the key. The follower may know some of them already."""
        self._finders = finders
        self._topics_max = topics_max
        self._within = within
        self._on_topic = on_topic
        self._options: dict[str, ReaderOptions] = {}
        self._selections: dict[str, TopicSelection] = {}
        self._finder: TopicFinder | None = None

    def __len__(self) -> int:
        return len(self._options)

    def selection(self, words: Collection[str]) -> TopicSelection:
        """Return the selection of words, which are checked."""
        selection = topic_selection(words, len(words))
        assert not isinstance(selection, Refusal)
        return TopicSelection(selection.filter, self._within)

    def finder(self, words: Collection[str]) -> TopicFinder:
        return self._finders.finder(self.selection(words), self._topics_max + 1)

    def word_of(self, name: str) -> str | None:
        """Return the word that selects a topic: its name, or the first pattern."""
        if name in self._options:
            return name
        return next((word for word, one in self._selections.items() if one.selects(name)), None)

    def add(self, words: Mapping[str, ReaderOptions]) -> None:
        if words:
            self._options.update(words)
            self._selections.update({word: self.selection([word]) for word in words})
            self._restart()

    def remove(self, words: Collection[str]) -> None:
        before = len(self._options)
        for word in words:
            self._options.pop(word, None)
            self._selections.pop(word, None)
        if len(self._options) < before:
            self._restart()

    def remove_patterns(self) -> None:
        self.remove([word for word, one in self._selections.items() if one.has_patterns])

    def search_again(self, name: str) -> None:
        """Look for a topic that was deleted."""
        if self._finder is not None and self.word_of(name) is not None:
            self._finder.search_again(name)

    def close(self) -> None:
        self._options.clear()
        self._selections.clear()
        self._restart()

    def _restart(self) -> None:
        if self._finder is not None:
            self._finder.close()
            self._finder = None
        if self._options:
            self._finder = self.finder(self._options)
            self._finder.follow(self._on_topics)
            self._finder.begin()

    def _on_topics(self, names: Collection[str]) -> None:
        for name in names:
            word = self.word_of(name)
            if word is not None:
                self._on_topic(name, word, self._options[word])
