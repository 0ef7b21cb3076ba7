"""A closed cycle of routes: all of its routes are marked, so that each hop in the cycle counts."""

from __future__ import annotations

import asyncio

from shared.contract.errors import STORAGE_FULL, Refusal
from tests.unit.router.control.test_route_registry import A, B, C, FakeShards, play


def in_cycle(fakes: FakeShards) -> dict[str, bool]:
    return {name: rule.is_in_cycle for name, (rule, _) in sorted(fakes.rules.items())}


def test_all_routes_of_a_cycle_are_marked_as_in_a_cycle() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("ab", A, B)
        await fakes.made("bc", B, C)
        await fakes.made("out", B, "elsewhere")
        assert not any(in_cycle(fakes).values())
        assert (await fakes.made("ca", C, A, may_cycle=True)).created
        assert in_cycle(fakes) == {"ab": True, "bc": True, "ca": True, "out": False}
        assert not (await fakes.made("bc", B, C, keeps_tag=False)).created
        assert in_cycle(fakes)["bc"]
        assert await fakes.control.delete("ca") is True
        await fakes.made("bc", B, C)
        assert not in_cycle(fakes)["bc"]

    play(steps)


def test_a_route_of_the_cycle_that_was_not_marked_is_marked_by_a_repeated_put() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("ab", A, B)
        fakes.refusing["put rule ab"] = Refusal(STORAGE_FULL, "no room")
        refusal = await fakes.refused("ba", B, A, may_cycle=True)
        assert refusal.code == STORAGE_FULL
        assert in_cycle(fakes) == {"ab": False, "ba": True}
        fakes.refusing.clear()
        assert not (await fakes.made("ba", B, A, may_cycle=True)).created
        assert in_cycle(fakes) == {"ab": True, "ba": True}

    play(steps)


def test_a_route_replaced_while_the_cycle_is_closed_is_marked() -> None:
    async def steps(fakes: FakeShards) -> None:
        await fakes.made("ab", A, B)
        release = fakes.paused["put rule ab"] = asyncio.Event()
        anew = asyncio.create_task(fakes.made("ab", A, B, keeps_node=False))
        for _ in range(50):
            await asyncio.sleep(0)
        assert fakes.requests[-1] == "put rule ab"
        closing = asyncio.create_task(fakes.made("ba", B, A, may_cycle=True))
        for _ in range(50):
            await asyncio.sleep(0)
        assert "ba" in fakes.rules
        release.set()
        await asyncio.gather(anew, closing)
        assert in_cycle(fakes) == {"ab": True, "ba": True}
        assert not fakes.rules["ab"][0].keeps_node

    play(steps)
