"""Key names: one slot for all keys of a resource."""

from __future__ import annotations

import random

import pytest

from fencing.redis.keys import SLOTS, keys_of, slot_of, tag_of


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"foo", 12182),
        (b"{user1000}.following", 3443),
        (b"{user1000}.followers", 3443),
        (b"foo{}{bar}", 8363),
        (b"foo{{bar}}zap", 4015),
        (b"foo{bar}{zap}", 5061),
        (b"", 0),
    ],
)
def test_slots_are_those_of_redis_cluster(key: bytes, slot: int) -> None:
    """Values as CLUSTER KEYSLOT gives them."""
    assert slot_of(key) == slot


def test_every_key_of_a_resource_is_in_its_slot() -> None:
    generator = random.Random(seed := random.randrange(2**32))
    print(f"seed {seed}")
    alphabet = "ab{}:ü"
    for _ in range(3000):
        resource = "".join(generator.choices(alphabet, k=generator.randint(1, 12)))
        keys = keys_of(resource)
        assert keys.lock == resource
        slots = {slot_of(key.encode()) for key in (keys.lock, keys.holder, keys.counter, keys.queue, keys.listeners)}
        assert len(slots) == 1, resource


@pytest.mark.thorough
def test_there_is_one_counter_a_slot_and_its_tag_is_the_smallest() -> None:
    assert tag_of("orders:42") == tag_of("orders:42")
    counters = {keys_of(str(number)).counter for number in range(200_000)}
    assert len(counters) == SLOTS
    tag = int(tag_of("orders:42"))
    slot = slot_of(b"orders:42")
    assert not [smaller for smaller in range(tag) if slot_of(str(smaller).encode()) == slot]
