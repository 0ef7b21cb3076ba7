"""Pages that were used last stay, within the bound of bytes."""

from __future__ import annotations

from topicsd.engine.read.page import PAGE_RECORDS, VARIANTS
from topicsd.engine.read.page_cache import PAGE_COST_BYTES, PageCache

PLAIN = VARIANTS[False, False]


def test_a_page_is_the_same_for_all_its_seqs_and_another_for_another_variant_or_epoch() -> None:
    cache = PageCache(1 << 20)
    page = cache.page(1, PAGE_RECORDS, PLAIN)
    assert cache.page(1, 2 * PAGE_RECORDS - 1, PLAIN) is page
    assert page.first_seq == PAGE_RECORDS
    others = [cache.page(1, 0, PLAIN), cache.page(2, PAGE_RECORDS, PLAIN)]
    others += [cache.page(1, PAGE_RECORDS, one) for one in VARIANTS.values() if one is not PLAIN]
    assert all(other is not page for other in others)


def test_what_was_used_longest_ago_leaves_first_and_the_last_one_stays() -> None:
    cache = PageCache(2 * PAGE_COST_BYTES)
    first, second = cache.page(1, 0, PLAIN), cache.page(2, 0, PLAIN)
    assert cache.page(1, 0, PLAIN) is first
    cache.page(3, 0, PLAIN)
    assert cache.page(1, 0, PLAIN) is first
    assert cache.page(2, 0, PLAIN) is not second
    cache.add_bytes(1 << 20)
    assert cache.page(2, 0, PLAIN) is not first


def test_a_forgotten_page_is_made_anew_and_its_room_is_free() -> None:
    cache = PageCache(2 * PAGE_COST_BYTES)
    page = cache.page(1, 0, PLAIN)
    kept = cache.page(2, 0, PLAIN)
    cache.forget(1, 0, PLAIN)
    assert cache.page(1, 0, PLAIN) is not page
    assert cache.page(2, 0, PLAIN) is kept
