"""The sampler with the exact likelihood against all partitions with quadrature over the values."""

from functools import lru_cache

import grouped_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmrf.graphs import frontier_plan, grid
from jaxmrf.nonparametric import edge_messages, group_exact
from jaxmrf.nonparametric.base_measures import BetaBase, GeneralBase
from jaxmrf.nonparametric.label_updates import Auxiliary, Metropolis, Quadrature

LADDER, SQUARE = grid((2, 3)), grid((2, 2))
NUM_ITEMS, CONCENTRATION = 6.0, 1.2
AGREEMENTS = {
    LADDER: np.array([5.0, 2.0, 5.0, 4.0, 2.0, 5.0, 4.0]),
    SQUARE: np.array([5.0, 4.0, 2.0, 5.0]),
}
RULES = [Auxiliary(), Auxiliary(3), Quadrature(), Metropolis(2)]
# a mixture: no closed form, and not log-concave
MIXTURE = GeneralBase(
    log_density=lambda t: (
        jnp.logaddexp(
            jax.scipy.stats.beta.logpdf(t, 6.0, 2.0), jax.scipy.stats.beta.logpdf(t, 2.0, 9.0)
        )
        - np.log(2)
    ),
    sample=lambda key, shape: jnp.where(
        jax.random.bernoulli(key, 0.5, shape),
        jax.random.beta(jax.random.fold_in(key, 1), 6.0, 2.0, shape),
        jax.random.beta(jax.random.fold_in(key, 2), 2.0, 9.0, shape),
    ),
)


@lru_cache
def oracle(graph, budget=2**16, is_mixture=False):
    log_base = None
    if is_mixture:
        log_base = lambda t: np.log((stats.beta(6, 2).pdf(t) + stats.beta(2, 9).pdf(t)) / 2)  # noqa: E731
    return grouped_oracle.posterior(
        graph.edges, graph.num_nodes, AGREEMENTS[graph], NUM_ITEMS, CONCENTRATION, budget,
        log_base,
    )  # fmt: skip


def run(graph, key, *, rule, base=None, num_chains=4000, num_steps=25):
    """Labels and edge agreements of independent chains after some steps from one group."""
    base = BetaBase() if base is None else base
    plan = frontier_plan(graph)
    model = group_exact.EdgeCounts(jnp.asarray(AGREEMENTS[graph]), jnp.asarray(NUM_ITEMS))
    start = group_exact.init(
        jnp.zeros(graph.num_edges, jnp.int32), jnp.full(graph.num_edges + 1, 0.5)
    )

    @jax.jit
    @jax.vmap
    def chain(key):
        def body(state, key):
            return group_exact.step(
                key, state, model, graph, plan, concentration=CONCENTRATION, base=base, rule=rule
            )

        state, info = jax.lax.scan(body, start, jax.random.split(key, num_steps))
        return state.labels, state.values[state.labels], info.accept_prob, state.values[-1]

    return [np.asarray(leaf) for leaf in chain(jax.random.split(key, num_chains))]


def check(graph, found, exact):
    labels, theta, accept_prob, unused = found
    table, probabilities, means = exact
    assert grouped_oracle.partition_p_value(labels, table, probabilities) > 1e-3
    z = (theta.mean(axis=0) - means) / (theta.std(axis=0) / np.sqrt(len(theta)))
    assert np.abs(z).max() < 4
    assert accept_prob.mean() > 0.5
    return unused


def test_oracle_has_converged_in_the_number_of_points():
    _, coarse, means_coarse = oracle(SQUARE, 2**13)
    _, fine, means_fine = oracle(SQUARE)
    np.testing.assert_allclose(coarse, fine, atol=1e-4)
    np.testing.assert_allclose(means_coarse, means_fine, atol=1e-4)


@pytest.mark.slow
def test_posterior_on_a_ladder_equals_all_partitions_with_quadrature(key):
    found = run(LADDER, key, rule=Auxiliary(), num_chains=40_000)
    unused = check(LADDER, found, oracle(LADDER, 2**14))
    assert stats.kstest(unused, "uniform").pvalue > 1e-3


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.slow] * (i > 0)) for i, rule in enumerate(RULES)]
)
def test_every_rule_reaches_the_exact_posterior_on_a_cycle(key, rule):
    check(SQUARE, run(SQUARE, key, rule=rule), oracle(SQUARE))


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_exact_for_a_base_without_closed_form(key, rule):
    found = run(SQUARE, key, rule=rule, base=MIXTURE)
    check(SQUARE, found, oracle(SQUARE, is_mixture=True))


@pytest.mark.slow
def test_messages_left_out_are_caught(key, monkeypatch):
    monkeypatch.setattr(
        group_exact.edge_messages, "by_transfer", lambda logits, plan: edge_messages.none(4)
    )
    labels, *_ = run(SQUARE, key, rule=Auxiliary())
    table, probabilities, _ = oracle(SQUARE)
    assert grouped_oracle.partition_p_value(labels, table, probabilities) < 1e-6


@pytest.mark.slow
def test_proposal_ratio_left_out_is_caught(key, monkeypatch):
    monkeypatch.setattr(group_exact.group_values, "log_proposal", lambda *args: 0.0)
    _, theta, _, _ = run(SQUARE, key, rule=Auxiliary(), num_chains=20_000)
    z = (theta.mean(axis=0) - oracle(SQUARE)[2]) / (theta.std(axis=0) / np.sqrt(len(theta)))
    assert np.abs(z).max() > 6


@pytest.mark.parametrize("rule", [Auxiliary, Quadrature, Metropolis])
def test_bad_rule_is_refused(rule):
    with pytest.raises(ValueError, match=f"{rule.__name__}: expected num_"):
        rule(0)
