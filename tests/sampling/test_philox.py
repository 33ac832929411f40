"""The generator against published vectors, plain integers, and the other form of its products."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.sampling import philox

# Random123 1.14, tests/kat_vectors: rounds, counter, key, words
KNOWN = [
    (7, "00000000" * 4, "00000000" * 2, "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, "ffffffff" * 4, "ffffffff" * 2, "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (10, "00000000" * 4, "00000000" * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, "ffffffff" * 4, "ffffffff" * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (
        10,
        "243f6a8885a308d313198a2e03707344",
        "a4093822299f31d0",
        "d16cfe09 94fdcceb 5001e420 24126ea1",
    ),
]


def split(text):
    return [int(text[i : i + 8], 16) for i in range(0, len(text), 8)]


def in_integers(counter, key, num_rounds):
    """The definition, in Python's integers."""
    c, k = list(counter), list(key)
    for _ in range(num_rounds):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            second >> 32 ^ c[1] ^ k[0],
            second & 0xFFFFFFFF,
            first >> 32 ^ c[3] ^ k[1],
            first & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


@pytest.mark.parametrize(("num_rounds", "counter", "key", "words"), KNOWN)
def test_published_vectors(num_rounds, counter, key, words):
    found = philox.philox4x32(split(counter), split(key), num_rounds=num_rounds)
    assert [f"{int(word):08x}" for word in found] == words.split()


@pytest.mark.parametrize("has_mulhi", [True, False])
def test_words_equal_the_definition_in_integers(has_mulhi, monkeypatch):
    if not has_mulhi:
        monkeypatch.delattr(jax.lax, "mulhi", raising=False)
    rng = np.random.default_rng(0)
    counter, key = rng.integers(0, 2**32, (4, 50)), rng.integers(0, 2**32, 2)
    found = np.array(philox.philox4x32(tuple(counter.astype(np.uint32)), tuple(key.tolist())))
    wanted = [in_integers(column, key.tolist(), 10) for column in counter.T.tolist()]
    np.testing.assert_array_equal(found.T, wanted)


def test_words_are_those_of_the_counters_that_broadcast(key):
    seed = philox.key_words(key)
    outer, inner = np.arange(3, dtype=np.uint32)[:, None], np.arange(5, dtype=np.uint32)
    words = philox.random_words(seed, outer, 7, inner, num_words=6, stream=2)
    assert len(words) == 6 and {word.shape for word in words} == {(3, 5)}
    for number in (0, 5):
        counter = (2, 2 << 24 | number // 4, 7, 4)
        wanted = in_integers(counter, [int(word) for word in seed], 10)[number % 4]
        assert int(words[number][2, 4]) == wanted


def test_streams_steps_and_places_give_different_words(key):
    seed = philox.key_words(key)
    places = jnp.arange(64, dtype=jnp.uint32)
    words = [
        philox.random_words(seed, outer, step, places, num_words=8, stream=stream)
        for outer in (0, 1)
        for step in (0, 1)
        for stream in (0, 1)
    ]
    assert np.unique(np.array(words)).size > 0.999 * np.array(words).size


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_of_every_kind_seed_it(impl):
    first, second = (philox.key_words(jax.random.key(seed, impl=impl)) for seed in (0, 1))
    assert first != second
    raw = philox.key_words(jax.random.PRNGKey(0))
    assert raw == philox.key_words(jax.random.key(0))
