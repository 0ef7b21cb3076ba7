"""All rules of forwards, as a graph of topics: what may be added to it, and what not.

G1  One rule at most leads into a topic. So there is one way up from any topic, and whether a rule would close
    a cycle is found by going up it.
G2  In every cycle there is a rule that may be in one. Who closes it has to be that; another rule of it may be
    put again as it is.
G3  A rule is reserved before its shard is asked to keep it, so two that exclude each other are never both
    under way; what is refused is given back. The cap counts what is reserved.
G4  What a shard says that it has takes the place of what was known of it, but for what is reserved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from shared.contract.errors import ROUTER_CYCLE, THROTTLED, TOPIC_EXISTS_INCOMPATIBLE, Refusal
from shared.contract.names import topic_id
from shared.contract.route_rule import ForwardRule
from shared.ipc.placement import shard_of

RETRY_AFTER_MS: Final = 1000


class ForwardGraph:
    def __init__(self, shard_count: int, bound: int) -> None:
        """A bound of 0 is none."""
        self._shard_count = shard_count
        self._bound = bound
        self._rules: dict[str, ForwardRule] = {}
        self._into: dict[str, str] = {}
        """The name of the rule, by its destination."""
        self._from: dict[str, set[str]] = {}
        self._reserved: dict[str, ForwardRule | None] = {}
        """What stood in the place of each that is reserved."""

    def __len__(self) -> int:
        return len(self._rules)

    def shard_of(self, rule: ForwardRule) -> int:
        """The shard of the destination, which keeps it."""
        return shard_of(topic_id(rule.dest), self._shard_count)

    def find(self, name: str) -> ForwardRule | None:
        return self._rules.get(name)

    def touching(self, topic: str) -> list[ForwardRule]:
        """The rules from the topic and the one into it, in name order."""
        names = {*self._from.get(topic, ())}
        if topic in self._into:
            names.add(self._into[topic])
        return [self._rules[name] for name in sorted(names)]

    def refusal(self, rule: ForwardRule) -> Refusal | None:
        """Why there may be no such rule beside the others."""
        existing = self._rules.get(rule.name)
        if existing is not None and (existing.source, existing.dest) != (rule.source, rule.dest):
            message = (
                f'route "{rule.name}" leads from "{existing.source}" to "{existing.dest}"; '
                "to change its topics, delete it and create it again"
            )
            return _incompatible(message, "router_repoint_forbidden", existing.name)
        other = self._into.get(rule.dest, rule.name)
        if other != rule.name:
            message = f'dest: route "{other}" already leads into "{rule.dest}", a topic takes one route'
            return _incompatible(message, "router_dest_fan_in", other)
        cycle = None if rule.may_cycle else self._cycle(rule)
        if cycle is not None:
            message = f"the route closes a cycle of {len(cycle) - 1} topics; allow_cycle: true allows it"
            return Refusal(ROUTER_CYCLE, message, {"cycle": cycle})
        if existing is None and self._bound and len(self._rules) >= self._bound:
            detail: dict[str, object] = {"limit": "max_routers", "max": self._bound}
            return Refusal(
                THROTTLED,
                f"there are {self._bound} routes, the most that TOPICS_MAX_ROUTERS allows",
                detail,
                RETRY_AFTER_MS,
            )
        return None

    def around(self, rule: ForwardRule) -> list[ForwardRule]:
        """The other rules of the circle that it is part of, or would be; none when there is none."""
        others: list[ForwardRule] = []
        topic, seen = rule.source, {rule.source}
        while topic != rule.dest:
            name = self._into.get(topic)
            if name is None:
                return []
            above = self._rules[name]
            # One that was come by before is of a cycle that was allowed, and leads nowhere else.
            if above.source in seen:
                return []
            others.append(above)
            topic = above.source
            seen.add(topic)
        return others

    def _cycle(self, rule: ForwardRule) -> list[str] | None:
        """The topics along it, from the destination to the destination."""
        others = self.around(rule)
        # It was closed by another one, if this one is there already.
        if not others or (rule.name in self._rules and any(one.may_cycle for one in others)):
            return None
        return [*(one.source for one in reversed(others)), rule.source, rule.dest]

    # -- one rule, under way -------------------------------------------------------------------------------

    def reserve(self, rule: ForwardRule) -> None:
        """It is allowed, and on its way to its shard: nothing that it excludes is allowed from here on."""
        assert rule.name not in self._reserved
        assert self.refusal(rule) is None
        self._reserved[rule.name] = self._rules.get(rule.name)
        self._add(rule)

    def keep(self, rule: ForwardRule) -> None:
        """Its shard has it, or may have it."""
        del self._reserved[rule.name]
        self._add(rule)

    def give_back(self, name: str) -> None:
        """Its shard does not have it: all is as it was before."""
        before = self._reserved.pop(name)
        self._remove(name)
        if before is not None:
            self._add(before)

    def drop(self, name: str) -> None:
        """Its shard has it no longer."""
        if name not in self._reserved:
            self._remove(name)

    def _remove(self, name: str) -> None:
        rule = self._rules.pop(name, None)
        if rule is None:
            return
        if self._into.get(rule.dest) == name:
            del self._into[rule.dest]
        names = self._from[rule.source]
        names.discard(name)
        if not names:
            del self._from[rule.source]

    def learn(self, shard: int, rules: Iterable[ForwardRule]) -> None:
        """These are all that the shard has."""
        told = {rule.name: rule for rule in rules}
        known = [name for name, rule in self._rules.items() if self.shard_of(rule) == shard]
        for name in known:
            if name not in told:
                self.drop(name)
        for name, rule in told.items():
            if name not in self._reserved:
                self._remove(name)
                self._add(rule)

    def _add(self, rule: ForwardRule) -> None:
        self._rules[rule.name] = rule
        self._into[rule.dest] = rule.name
        self._from.setdefault(rule.source, set()).add(rule.name)


def _incompatible(message: str, reason: str, name: str) -> Refusal:
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": reason, "router": name})
