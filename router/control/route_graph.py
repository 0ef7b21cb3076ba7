"""All routes as a graph of topics: which routes may be added, and which are refused.

G1  At most one route leads into a topic. So one path leads upstream from any topic, and following it finds
    out whether a route would close a cycle.
G2  Every cycle contains a route with `allow_cycle`. The route that closes a cycle must have it; another route
    of the cycle may be put again unchanged.
G3  A route is reserved before its shard is asked to keep it, so two routes that exclude each other are never
    in progress together; a refused route is released. The cap counts reserved routes.
G4  The routes that a shard reports replace those known of it, except reserved ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from shared.contract.errors import ROUTER_CYCLE, TOPIC_EXISTS_INCOMPATIBLE, Refusal, limit_reached
from shared.contract.route_rule import RouteRule
from shared.ipc.placement import OwnerLookup


class RouteGraph:
    def __init__(self, placement: OwnerLookup, bound: int) -> None:
        """Start with no routes, under a cap of `bound`; 0 means no cap."""
        self._placement = placement
        self._bound = bound
        self._rules: dict[str, RouteRule] = {}
        self._into: dict[str, str] = {}
        """The name of the route, by its destination."""
        self._from: dict[str, set[str]] = {}
        self._reserved: dict[str, RouteRule | None] = {}
        """The previous route under each reserved name, or None."""

    def __len__(self) -> int:
        return len(self._rules)

    def shard_of(self, rule: RouteRule) -> int:
        """Return the shard of the destination, or of a webhook's source, which keeps the route."""
        return self._placement.owner_of(rule.keeper)

    def find(self, name: str) -> RouteRule | None:
        return self._rules.get(name)

    def touching(self, topic: str) -> list[RouteRule]:
        """Return the routes from the topic and the one into it, in name order."""
        names = {*self._from.get(topic, ())}
        if topic in self._into:
            names.add(self._into[topic])
        return [self._rules[name] for name in sorted(names)]

    def refusal(self, rule: RouteRule) -> Refusal | None:
        """Return why the route is not allowed beside the others; None when it is allowed."""
        existing = self._rules.get(rule.name)
        if existing is not None and not rule.may_replace(existing):
            message = (
                f'route "{rule.name}" copies from "{existing.source}" to "{existing.dest}"; '
                "to change its topics, delete it and create it again"
            )
            return _incompatible(message, "router_repoint_forbidden", existing.name)
        other = self._into.get(rule.dest, rule.name)
        if other != rule.name:
            message = f'dest: must have at most one route, route "{other}" already copies into "{rule.dest}"'
            return _incompatible(message, "router_dest_fan_in", other)
        cycle = None if rule.may_cycle else self._cycle(rule)
        if cycle is not None:
            closes = f"the route would close a cycle of {len(cycle) - 1} topics"
            message = f"{closes}; to allow it, set allow_cycle to true"
            return Refusal(ROUTER_CYCLE, message, {"cycle": cycle})
        if existing is None and self._bound and len(self._rules) >= self._bound:
            return limit_reached("max_routers", self._bound, "no more routes can be created")
        return None

    def others_in_cycle(self, rule: RouteRule) -> list[RouteRule]:
        """Return the other routes of the cycle that the route is or would be in; empty if none."""
        others: list[RouteRule] = []
        topic, seen = rule.source, {rule.source}
        while topic != rule.dest:
            name = self._into.get(topic)
            if name is None:
                return []
            above = self._rules[name]
            # A topic seen before is in a cycle that was allowed and does not contain the destination.
            if above.source in seen:
                return []
            others.append(above)
            topic = above.source
            seen.add(topic)
        return others

    def _cycle(self, rule: RouteRule) -> list[str] | None:
        """Return the topics along the cycle that the route closes, or None.

        The list begins and ends with the destination.
        """
        others = self.others_in_cycle(rule)
        # If this route exists already, another route closed the cycle.
        if not others or (rule.name in self._rules and any(one.may_cycle for one in others)):
            return None
        return [*(one.source for one in reversed(others)), rule.source, rule.dest]

    # -- one route in progress -----------------------------------------------------------------------------

    def reserve(self, rule: RouteRule) -> None:
        """Reserve an allowed route on its way to its shard; routes it excludes are refused now."""
        assert rule.name not in self._reserved
        assert self.refusal(rule) is None
        self._reserved[rule.name] = self._rules.get(rule.name)
        self._add(rule)

    def confirm(self, rule: RouteRule) -> None:
        """Confirm a reserved route: its shard has it, or may have it."""
        del self._reserved[rule.name]
        self._add(rule)

    def release(self, name: str) -> None:
        """Release a reserved route that its shard does not have, and restore the route before it."""
        before = self._reserved.pop(name)
        self._remove(name)
        if before is not None:
            self._add(before)

    def drop(self, name: str) -> None:
        """Remove a route that its shard no longer has."""
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

    def learn(self, shard: int, rules: Iterable[RouteRule]) -> None:
        """Replace the known routes of a shard by `rules`, which are all that it has."""
        reported = {rule.name: rule for rule in rules}
        known = [name for name, rule in self._rules.items() if self.shard_of(rule) == shard]
        for name in known:
            if name not in reported:
                self.drop(name)
        for name, rule in reported.items():
            if name not in self._reserved:
                self._remove(name)
                self._add(rule)

    def _add(self, rule: RouteRule) -> None:
        self._rules[rule.name] = rule
        if rule.webhook is None:
            self._into[rule.dest] = rule.name
        self._from.setdefault(rule.source, set()).add(rule.name)


def _incompatible(message: str, reason: str, name: str) -> Refusal:
    return Refusal(TOPIC_EXISTS_INCOMPATIBLE, message, {"reason": reason, "router": name})
