import pytest
import xxhash

from shared.contract.names import topic_id
from shared.ipc.placement import shard_of

NAME_COUNT = 100_000


@pytest.fixture(scope="module")
def ids() -> list[int]:
    return [topic_id(f"topic-{number}") for number in range(NAME_COUNT)]


def test_one_shard_owns_everything() -> None:
    assert {shard_of(number, 1) for number in (0, 1, 2**63, 2**64 - 1)} == {0}


def test_the_shard_with_the_highest_score_wins() -> None:
    number = 0x0123456789ABCDEF
    id_bytes = bytes.fromhex("efcdab8967452301")
    scores = [xxhash.xxh3_64_intdigest(id_bytes, seed=shard) for shard in range(16)]
    for count in range(1, 17):
        assert shard_of(number, count) == scores.index(max(scores[:count]))


@pytest.mark.parametrize("wrong", [-1, 2**64])
def test_a_number_that_is_not_an_id_is_an_assertion_error(wrong: int) -> None:
    with pytest.raises(AssertionError):
        shard_of(wrong, 2)


def test_a_shard_count_of_zero_is_an_assertion_error() -> None:
    with pytest.raises(AssertionError):
        shard_of(1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 15])
def test_an_added_shard_takes_its_share_and_moves_nothing_else(ids: list[int], count: int) -> None:
    before = [shard_of(number, count) for number in ids]
    after = [shard_of(number, count + 1) for number in ids]
    targets = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(targets) == {count}
    assert abs(len(targets) / NAME_COUNT - 1 / (count + 1)) <= 0.02


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 5, 16])
def test_shards_get_equal_shares(ids: list[int], count: int) -> None:
    shares = [0] * count
    for number in ids:
        shares[shard_of(number, count)] += 1
    assert all(abs(share / NAME_COUNT - 1 / count) <= 0.02 / count * 2 for share in shares)
