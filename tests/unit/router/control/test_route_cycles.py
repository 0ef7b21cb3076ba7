"""A closed cycle of routes: all of its routes are marked, so that each hop in the cycle counts."""

from __future__ import annotations

import asyncio

from shared.contract.errors import STORAGE_FULL, Refusal
from tests.unit.router.control.test_route_registry import A, B, C, Stage, play


def in_cycle(stage: Stage) -> dict[str, bool]:
    return {name: rule.is_in_cycle for name, (rule, _) in sorted(stage.rules.items())}


def test_all_routes_of_a_cycle_are_marked_as_in_a_cycle() -> None:
    async def steps(stage: Stage) -> None:
        await stage.made("ab", A, B)
        await stage.made("bc", B, C)
        await stage.made("out", B, "elsewhere")
        assert not any(in_cycle(stage).values())
        assert (await stage.made("ca", C, A, may_cycle=True)).created
        assert in_cycle(stage) == {"ab": True, "bc": True, "ca": True, "out": False}
        assert not (await stage.made("bc", B, C, keeps_tag=False)).created
        assert in_cycle(stage)["bc"]
        assert await stage.control.delete("ca") is True
        await stage.made("bc", B, C)
        assert not in_cycle(stage)["bc"]

    play(steps)


def test_a_route_of_the_cycle_that_was_not_marked_is_marked_by_a_repeated_put() -> None:
    async def steps(stage: Stage) -> None:
        await stage.made("ab", A, B)
        stage.refusing["put rule ab"] = Refusal(STORAGE_FULL, "no room")
        refusal = await stage.refused("ba", B, A, may_cycle=True)
        assert refusal.code == STORAGE_FULL
        assert in_cycle(stage) == {"ab": False, "ba": True}
        stage.refusing.clear()
        assert not (await stage.made("ba", B, A, may_cycle=True)).created
        assert in_cycle(stage) == {"ab": True, "ba": True}

    play(steps)


def test_a_route_replaced_while_the_cycle_is_closed_is_marked() -> None:
    async def steps(stage: Stage) -> None:
        await stage.made("ab", A, B)
        release = stage.paused["put rule ab"] = asyncio.Event()
        anew = asyncio.create_task(stage.made("ab", A, B, keeps_node=False))
        for _ in range(50):
            await asyncio.sleep(0)
        assert stage.requests[-1] == "put rule ab"
        closing = asyncio.create_task(stage.made("ba", B, A, may_cycle=True))
        for _ in range(50):
            await asyncio.sleep(0)
        assert "ba" in stage.rules
        release.set()
        await asyncio.gather(anew, closing)
        assert in_cycle(stage) == {"ab": True, "ba": True}
        assert not stage.rules["ab"][0].keeps_node

    play(steps)
