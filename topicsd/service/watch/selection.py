"""The names and patterns with which a request selects topics."""

from __future__ import annotations

from collections.abc import Iterable

from shared.contract.api_keys import ApiKey
from shared.contract.errors import Refusal, invalid
from shared.contract.names import is_topic_name, is_topic_pattern
from shared.contract.tag_filter import TagFilter, TopicSelection
from shared.text.message import quoted
from topicsd.service.input.bound_names import refuse_uncovered
from topicsd.service.input.tag_match import parse_match


def topic_selection(words: Iterable[str], count_max: int) -> TopicSelection | Refusal:
    """Return the selection of names and patterns.

    >>> topic_selection(["clicks", "orders.*"], 256)
    TopicSelection(filter=TagFilter(tags=frozenset({'clicks'}), prefixes=('orders.',), globs=()), within=())
    """
    words = list(dict.fromkeys(words))
    if len(words) > count_max:
        return invalid("topics", f"must have at most {count_max} entries, got {len(words)}", count_max)
    for word in words:
        if not (is_topic_name(word) or is_topic_pattern(word)):
            rule = "must be names of topics, or patterns with * and ?, got"
            return invalid("topics", f"{rule} {quoted(word)}")
    names = frozenset(filter(is_topic_name, words))
    globs: list[str | list[str | list[str]]] = [["tag", "Glob", word] for word in words if word not in names]
    if not globs:
        return TopicSelection(TagFilter(names))
    parsed = parse_match("topics", ["any", *names, *globs])
    return parsed if isinstance(parsed, Refusal) else TopicSelection(parsed)


def refuse_uncovered_topics(selection: TopicSelection, key: ApiKey) -> Refusal | None:
    """Refuse names that the key does not cover, and patterns that match no name that it covers."""
    for name in sorted(selection.filter.tags):
        if not key.allows_name(name):
            return refuse_uncovered("topics", name)
    for pattern in (*selection.filter.prefixes, *selection.filter.globs):
        beginning = pattern.partition("*")[0].partition("?")[0]
        if key.prefixes and not any(
            one.startswith(beginning) or beginning.startswith(one) for one in key.prefixes
        ):
            return refuse_uncovered("topics", pattern)
    return None
