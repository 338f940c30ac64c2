"""Finding a key among many, and what it may ask for."""

import hmac
from hashlib import sha256

import pytest

from app.auth.keys import Ring, hash_of
from tests.rig.keys import HASH, key


def test_each_key_is_found_by_itself_only() -> None:
    names = [f"key-{number}" for number in range(20)]
    ring = Ring([key(name=name, sha256=hash_of(name)) for name in names])
    for name in names:
        found = ring.find(name.encode())
        assert found is not None
        assert found.name == name
    assert ring.find(b"") is None
    assert ring.find(b"key-20") is None
    assert ring.find(sha256(b"key-1").hexdigest().encode()) is None


@pytest.mark.parametrize("presented", ["key-0", "key-4", "none"])
def test_all_keys_are_compared_whatever_is_presented(
    monkeypatch: pytest.MonkeyPatch, presented: str
) -> None:
    ring = Ring([key(name=n, sha256=hash_of(n)) for n in map("key-{}".format, range(5))])
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def counting(one: bytes, other: bytes) -> bool:
        compared.append(one)
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    ring.find(presented.encode())
    assert len(compared) == 5


@pytest.mark.parametrize(
    ("allowed", "asked", "granted"),
    [(None, 0, 0), (None, -5, 0), (None, 3, 3), (-2, -5, -2), (-2, -1, -1), (-2, 0, 0), (4, 0, 4)],
)
def test_the_most_urgent_priority(allowed: int | None, asked: int, granted: int) -> None:
    owner = key() if allowed is None else key(priority=allowed)
    assert owner.clamp(asked) == granted


def test_a_key_shows_no_hash() -> None:
    assert HASH not in repr(key())
