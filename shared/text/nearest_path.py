"""The endpoint that a client probably meant by a path that is none.

A path is compared with the patterns word by word. Tried in this order: small differences of the whole path (a
slash at the end, capitals, another version, no version), words that other servers use for the same thing, and
typing errors in one word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from shared.text.nearest_name import nearest_name

VARIABLE: Final = ":"
"""The word of a pattern that stands for any name."""

Words = tuple[str, ...]

_VERSION: Final = "v0"
_OTHER_ROOTS: Final = frozenset({"api", "rest", "v1", "v2"})

_SYNONYMS: Final = {
    "topics": "queue queues streams subjects channels logs exchanges",
    "routers": "routes route bridges bindings",
    "watch": "subscribe subscriptions events sse",
    "stream": "tail follow listen subscribe watch events sse messages",
    "ws": "websocket websockets socket sockets",
    "health": "healthcheck live livez liveness alive ping status",
    "ready": "readiness",
    "metrics": "prometheus stats statistics",
    "keys": "tokens apikeys api-keys api_keys users credentials",
    "whoami": "me auth self identity",
    "backup-points": "backup backups snapshot snapshots",
    "cluster": "nodes brokers members",
    "records": "messages message events event publish append push send entries",
    "diff": "consume read fetch poll pull list query messages",
    "claim": "receive lease dequeue pop take reserve",
    "ack": "acknowledge commit complete",
    "nack": "reject release requeue",
    "extend": "renew heartbeat",
    "delete": "purge truncate clear trim",
    "redrive": "dlq dead-letters retry replay",
    "cursors": "offsets offset consumers groups",
    "schedules": "schedule cron crons recurring jobs",
    "owner": "leader where",
}
"""For a word of our paths, words that mean the same elsewhere. A word may stand for several."""


def _by_synonym() -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    for word, synonyms in _SYNONYMS.items():
        for one in synonyms.split():
            words.setdefault(one, []).append(word)
    return words


_WORDS_OF: Final = _by_synonym()


def nearest_path(words: Words, patterns: Collection[Words], shunned: Collection[Words] = ()) -> Words | None:
    """Return the words of the path that was probably meant, or None. Names in it are as given.

    A guess by a synonym has a pattern of `shunned`, which does not accept the method of the request, only if
    there is no other guess.

    >>> patterns = [("v0", "topics"), ("v0", "topics", ":", "diff"), ("v0", "topics", ":", "records")]
    >>> nearest_path(("v1", "Topics", ""), patterns)
    ('v0', 'topics')
    >>> nearest_path(("v0", "queues", "a"), patterns) is None
    True
    >>> nearest_path(("v0", "queues", "a", "publish"), patterns)
    ('v0', 'topics', 'a', 'records')
    >>> nearest_path(("v0", "topics", "a", "messages"), patterns, [("v0", "topics", ":", "records")])
    ('v0', 'topics', 'a', 'diff')
    >>> nearest_path(("v0", "topics", "a", "difff"), patterns)
    ('v0', 'topics', 'a', 'diff')
    """
    plain = _plain(words)
    patterns = [pattern for pattern in patterns if len(pattern) == len(plain)]
    for pattern in patterns:
        if matches(pattern, plain):
            return _filled(pattern, plain)
    guesses = [
        (pattern, guess) for guess in _guesses(plain) for pattern in patterns if matches(pattern, guess)
    ]
    for pattern, guess in (*(one for one in guesses if one[0] not in shunned), *guesses):
        return _filled(pattern, guess)
    return _with_one_word_corrected(plain, patterns)


def _plain(words: Words) -> Words:
    """Return the words under our version, without empty ones at the end."""
    while words and not words[-1]:
        words = words[:-1]
    while words and words[0].lower() in (*_OTHER_ROOTS, _VERSION):
        words = words[1:]
    return (_VERSION, *words)


def _guesses(words: Words) -> Iterator[Words]:
    """Yield the path with synonyms replaced: one word of it, then two."""
    by_place = [(place, _WORDS_OF.get(word.lower(), ())) for place, word in enumerate(words)]
    for place, ours in by_place:
        for our in ours:
            yield (*words[:place], our, *words[place + 1 :])
    for place, ours in by_place[:2]:
        for our in ours:
            replaced = (*words[:place], our, *words[place + 1 :])
            for later, others in by_place[2:]:
                for other in others:
                    yield (*replaced[:later], other, *replaced[later + 1 :])


def matches(pattern: Words, words: Words) -> bool:
    """Return whether the words are those of the pattern, in capitals or not."""
    return len(pattern) == len(words) and all(
        ours in (VARIABLE, word.lower()) for ours, word in zip(pattern, words, strict=True)
    )


def _filled(pattern: Words, words: Words) -> Words:
    return tuple(word if ours == VARIABLE else ours for ours, word in zip(pattern, words, strict=True))


def _with_one_word_corrected(words: Words, patterns: Collection[Words]) -> Words | None:
    near: dict[int, set[str]] = {}
    for pattern in patterns:
        pairs = enumerate(zip(pattern, words, strict=True))
        places = [place for place, (ours, word) in pairs if ours not in (VARIABLE, word.lower())]
        if len(places) == 1:
            near.setdefault(places[0], set()).add(pattern[places[0]])
    for place, ours in near.items():
        nearest = nearest_name(words[place], sorted(ours))
        if nearest is not None:
            return (*words[:place], nearest, *words[place + 1 :])
    return None
