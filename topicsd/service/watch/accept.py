"""The `Accept` field of requests for streams."""

from __future__ import annotations

from typing import Final

EVENT_STREAM: Final = ("text/event-stream", "text/*", "*/*")
LINES_OF_JSON: Final = ("application/x-ndjson", "application/*", "*/*")


def accept_weight(accept: str, kinds: tuple[str, ...]) -> float:
    """Return the weight that an `Accept` field gives to a type; `kinds` are the type and what covers it.

    >>> accept_weight("", EVENT_STREAM), accept_weight("text/html, text/event-stream;q=0.5", EVENT_STREAM)
    (1.0, 0.5)
    >>> accept_weight("application/json", EVENT_STREAM)
    0.0
    >>> accept_weight("*/*, text/event-stream; q=0", EVENT_STREAM)
    0.0
    """
    weights: dict[str, float] = {}
    for entry in accept.lower().split(","):
        kind, *parameters = (part.strip() for part in entry.split(";"))
        weights[kind] = min((_weight(part[2:]) for part in parameters if part.startswith("q=")), default=1.0)
    # The most specific type decides.
    return next((weights[kind] for kind in kinds if kind in weights), 0.0 if accept else 1.0)


def accepts_events(accept: str) -> bool:
    """Return whether an `Accept` field allows event streams."""
    return accept_weight(accept, EVENT_STREAM) > 0


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
