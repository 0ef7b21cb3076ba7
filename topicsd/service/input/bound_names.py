"""Names and settings that a body may contain, by the key of its request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shared.contract.api_keys import ADMIN
from shared.contract.errors import FORBIDDEN, Refusal
from shared.contract.topic_config import TopicConfigPatch
from shared.text.message import quoted

CONFIG_NEEDS_ADMIN: Final = Refusal(
    FORBIDDEN, "config: the key lacks the scope admin", {"field": "config", "scopes": [ADMIN]}
)


def is_within(prefixes: Sequence[str], name: str) -> bool:
    """Return whether a key with these prefixes covers the name; no prefixes cover all.

    >>> is_within(("a.", "b."), "b.1"), is_within(("a.",), "b.1"), is_within((), "b.1")
    (True, False, True)
    """
    return not prefixes or name.startswith(tuple(prefixes))


def refuse_uncovered(field: str, name: str) -> Refusal:
    message = f"{field}: the key's prefixes do not allow the name {quoted(name)}"
    return Refusal(FORBIDDEN, message, {"field": field, "topic": name})


def refuse_dead_letter(prefixes: Sequence[str], patch: TopicConfigPatch | None) -> Refusal | None:
    """Refuse a dead-letter topic outside the key's prefixes, since the server writes to it.

    Only a name in the patch is checked, not the name that the topic has already.
    """
    if not prefixes or patch is None or not isinstance(patch.dead_letter, str):
        return None
    if is_within(prefixes, patch.dead_letter):
        return None
    return refuse_uncovered("dead_letter", patch.dead_letter)
