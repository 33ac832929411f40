"""Split and merge moves against the exact posterior of partitions on a tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grouped_oracle import partition_p_value
from scipy.special import betaln
from tree_oracle import (
    AGREEMENTS,
    CONCENTRATION,
    NUM_ITEMS,
    canonical,
    exact_draws,
    exact_partitions,
    value_p_value,
)

from jaxmrf.nonparametric import split_merge
from jaxmrf.nonparametric.base_measures import BetaBase, GeneralBase

# a Beta that the sampler knows by density and draws alone, its reference another
GENERAL = GeneralBase(BetaBase(2.0, 1.5).log_density, BetaBase(2.0, 1.5).sample)
BASES = {"uniform": BetaBase(), "beta": BetaBase(2.0, 0.7), "general": GENERAL}


def run(key, labels, values, *, base, num_moves=3):
    """Canonical labels, agreements of the edges, acceptance and fullness after some moves."""

    @jax.jit
    @jax.vmap
    def one(key, labels, values):
        return split_merge.step(
            key, labels, jax.scipy.special.logit(values), jnp.asarray(AGREEMENTS),
            jnp.asarray(NUM_ITEMS), concentration=CONCENTRATION, base=base, num_moves=num_moves,
        )  # fmt: skip

    labels, logits, acceptance, is_full = one(jax.random.split(key, len(labels)), labels, values)
    return *canonical(labels, jax.nn.sigmoid(logits)), np.asarray(acceptance), np.asarray(is_full)


@pytest.mark.slow
@pytest.mark.parametrize("name", BASES)
def test_moves_leave_the_exact_posterior_invariant(key, rng, name):
    base = BASES[name]
    a, b = (2.0, 1.5) if name == "general" else base
    labels, values = exact_draws(rng, 10_000, a, b, max_groups=5)
    after, theta, acceptance, is_full = run(key, labels, values, base=base)
    assert partition_p_value(after, *exact_partitions(a, b)) > 1e-3
    assert value_p_value(after, theta, a, b) > 1e-3
    assert acceptance.mean() > 0.2 and not is_full.any()


@pytest.mark.slow
def test_moves_alone_reach_the_exact_posterior_from_one_group(key):
    labels, values = jnp.zeros((10_000, 4), jnp.int32), jnp.full((10_000, 5), 0.5)
    after, *_ = run(key, labels, values, base=BetaBase(), num_moves=40)
    assert partition_p_value(after, *exact_partitions()) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("bug", ["proposal", "size"])
def test_planted_bug_in_the_ratio_is_caught(key, rng, monkeypatch, bug):
    if bug == "proposal":
        monkeypatch.setattr(split_merge, "log_sigmoid", jnp.zeros_like)
    else:
        monkeypatch.setattr(split_merge, "betaln", lambda a, b: jnp.zeros_like(a))
    labels, values = exact_draws(rng, 10_000, max_groups=5)
    after, *_ = run(key, labels, values, base=BetaBase())
    assert partition_p_value(after, *exact_partitions()) < 1e-6


@pytest.mark.slow
def test_split_without_a_free_slot_is_reported_and_left_out(key):
    labels = jnp.tile(jnp.array([0, 1, 0, 1], jnp.int32), (200, 1))
    after, _, _, is_full = run(key, labels, jnp.full((200, 2), 0.5), base=BetaBase(), num_moves=1)
    assert is_full.any() and not is_full.all()
    np.testing.assert_array_equal(after[is_full], np.asarray(labels)[is_full])


@pytest.mark.parametrize("scale", [1.0, 1e2, 1e5])
def test_evidence_ratio_is_accurate_for_large_counts(scale):
    """Counts far beyond the digits of single precision, on sides that are nearly equal."""
    successes = np.round(np.array([17.0, 9.0]) * scale)
    failures = np.round(np.array([34.0, 18.0]) * scale) + 3
    a, b = 1.5, 0.8
    expected = betaln(a + successes, b + failures).sum() - betaln(a, b)
    expected -= betaln(a + successes.sum(), b + failures.sum())
    found = split_merge.log_evidence_ratio(jnp.asarray(successes), jnp.asarray(failures), a, b)
    assert abs(float(found) - expected) < 2e-3
