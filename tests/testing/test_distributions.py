"""The conformance suite catches planted mistakes, each by the check that is named for it."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.distributions import Ising
from jaxmrf.graphs import Graph
from jaxmrf.testing import DISTRIBUTION_CHECKS, DistributionCase, check_distribution

PAW = Graph(4, [(0, 1), (1, 2), (0, 2), (2, 3)])
PARAMETERS = {
    "couplings": np.array([[0.5, -0.3, 0.8, 0.2], [0.1, 0.9, -0.7, 0.4]], dtype=np.float32),
    "fields": np.array([0.1, -0.4, 0.3, 0.6], dtype=np.float32),
}


class ClaimsEnumeration(Ising):
    has_enumerate_support = True


class FloatDraws(Ising):
    def sample(self, key, sample_shape=()):
        return super().sample(key, sample_shape).astype(float)


class WrongInferredShape(Ising):
    @classmethod
    def infer_shapes(cls, graph, **shapes):
        return (), (graph.num_nodes,)


class IdentityHash(Graph):
    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)

    def __reduce__(self):
        return (IdentityHash, (self.num_nodes, self.edges))


jax.tree_util.register_static(IdentityHash)


class FrozenNormalizer(Ising):
    @property
    def log_normalizer(self):
        return jax.lax.stop_gradient(super().log_normalizer)


class Unnormalized(Ising):
    def log_prob(self, value):
        return self.unnormalized_log_prob(value)


class SpinMean(Ising):
    @property
    def mean(self):
        return 2 * super().mean - 1


class OneNodeInverted(Ising):
    def sample(self, key, sample_shape=()):
        value = super().sample(key, sample_shape)
        return value.at[..., 0].set(1 - value[..., 0])


class TracedParameters(Ising):
    def __init__(self, graph, couplings, fields, **options):
        super().__init__(graph, jnp.asarray(couplings) + 0.0, jnp.asarray(fields) + 0.0, **options)


class UncheckedValues(Ising):
    def log_prob(self, value):
        return self.unnormalized_log_prob(value) - self.log_normalizer


class ShuffledBatch(Ising):
    def sample(self, key, sample_shape=()):
        value = super().sample(key, sample_shape)
        num_elements = int(np.prod(self.batch_shape))
        return jnp.moveaxis(value.reshape(-1, num_elements, 4), 0, 1).reshape(value.shape)


class ArrayAsStatic(Ising):
    pytree_aux_fields = ("weights",)

    def __init__(self, *args, **options):
        self.weights = np.ones(2)
        super().__init__(*args, **options)


class LostAttribute(Ising):
    def __init__(self, graph, couplings, fields, *, scale=1.0, **options):
        self.scale = scale
        super().__init__(graph, couplings, fields, **options)

    def unnormalized_log_prob(self, value):
        return self.scale * super().unnormalized_log_prob(value)


class RawKeysOnly(Ising):
    def sample(self, key, sample_shape=()):
        return super().sample(jax.random.wrap_key_data(key), sample_shape)


class InvertedCopy(Ising):
    def __deepcopy__(self, memo):
        return InvertedCopy(self.graph, -self.couplings, self.fields)


class WrongMask(Ising):
    def mask(self, mask):
        return self


class IgnoresParameters(Ising):
    def log_prob(self, value):
        return jnp.zeros(jnp.broadcast_shapes(np.shape(value)[:-1], self.batch_shape))


PLANTED = [
    ("declarations", ClaimsEnumeration, PAW, "has_enumerate_support False, got True"),
    ("shapes", FloatDraws, PAW, "expected integer draws"),
    ("infer_shapes", WrongInferredShape, PAW, "expected inferred shapes"),
    ("jit", Ising, IdentityHash(4, PAW.edges), "number of traces .* 1, got 2"),
    ("gradient", FrozenNormalizer, PAW, "couplings"),
    ("normalized", Unnormalized, PAW, "Not equal to tolerance"),
    ("mean", SpinMean, PAW, "mean"),
    ("goodness_of_fit", OneNodeInverted, PAW, "chi-square p-value"),
    (
        "parameter_validation",
        TracedParameters,
        PAW,
        "expected ValueError .couplings., got no error",
    ),
    ("value_validation", UncheckedValues, PAW, "a warning of values out of support"),
    ("expand", ShuffledBatch, PAW, "means of an interstitial expand"),
    ("expand", OneNodeInverted, PAW, "means of an interstitial expand"),
    ("mask_and_to_event", WrongMask, PAW, "Not equal to tolerance"),
    ("pytree", ArrayAsStatic, PAW, "equality of metadata fields"),
    ("pytree", LostAttribute, PAW, "no attribute 'scale'"),
    ("pytree", Ising, IdentityHash(4, PAW.edges), "expected tree structure"),
    ("copies", InvertedCopy, PAW, "Arrays are not equal"),
    ("vmap", LostAttribute, PAW, "no attribute 'scale'"),
    ("random_keys", RawKeysOnly, PAW, "invalid PRNG key data"),
    ("in_model", IgnoresParameters, PAW, "expected dependencies"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("check", "broken", "graph", "message"), PLANTED)
def test_planted_mistake_is_caught(check, broken, graph, message):
    case = DistributionCase(partial(broken, graph), PARAMETERS)
    with pytest.raises((AssertionError, AttributeError, TypeError, ValueError), match=message):
        DISTRIBUTION_CHECKS[check](case, jax.random.key(1))


def test_every_check_has_a_planted_mistake():
    assert {check for check, *_ in PLANTED} == set(DISTRIBUTION_CHECKS)


def test_check_distribution_runs_every_check(monkeypatch):
    seen = []
    for name in DISTRIBUTION_CHECKS:
        note = partial(lambda name, case, key: seen.append((name, case.parameters)), name)
        monkeypatch.setitem(DISTRIBUTION_CHECKS, name, note)
    check_distribution(partial(Ising, PAW), {}, rng_key=jax.random.key(0))
    assert seen == [(name, {}) for name in DISTRIBUTION_CHECKS]
