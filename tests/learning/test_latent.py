import jax
import jax.numpy as jnp
import numpy as np
import pytest
import table_oracle

from jaxmrf.exact import host, junction_tree
from jaxmrf.learning import fit_by_em, fit_latent_likelihood
from jaxmrf.models import FactorGraph
from jaxmrf.variational import belief_propagation

NUM_STATES = [2, 3, 2, 2]
PARENTS = [(), (0,), (0,), (1, 2)]


def network(seed):
    rng = np.random.default_rng(seed)
    tables = []
    for node, parents in enumerate(PARENTS):
        shape = [NUM_STATES[one] for one in (*parents, node)]
        table = rng.gamma(1.0, size=shape) + 0.1
        tables.append(np.log(table / table.sum(axis=-1, keepdims=True)))
    return FactorGraph.from_conditionals(NUM_STATES, PARENTS, tables)


def hidden_data(number=300, seed=0):
    states = host.sample(np.random.default_rng(seed), network(5), num_samples=number)
    states = states.astype(int)
    states[:, 0] = -1  # never seen
    states[::3, 2] = -1
    return states


def log_likelihood(graph, states):
    """Of all items, by sums over brute-force tables."""
    tables = [np.exp(np.asarray(graph.log_table(one), np.float64)) for one in range(4)]
    joint = table_oracle.joint(NUM_STATES, graph.scopes, tables)
    total = 0.0
    for row in states:
        index = tuple(slice(None) if state < 0 else state for state in row)
        total += np.log(joint[index].sum())
    return total


def test_em_rises_to_a_point_where_the_gradient_vanishes():
    states = hidden_data()
    fit = fit_by_em(states, network(1), tolerance=1e-8, max_iters=2000)
    assert fit.is_converged
    assert np.diff(fit.log_likelihood).min() > -1e-3  # float32 sums of order 1e3
    exact = log_likelihood(fit.model, states)
    assert fit.log_likelihood[-1] == pytest.approx(exact, rel=1e-5)
    assert exact > log_likelihood(network(5), states)  # the truth fits the sample less well
    for one in range(4):
        np.testing.assert_allclose(np.exp(fit.model.log_table(one)).sum(axis=-1), 1, atol=1e-5)


def test_gradients_find_what_em_finds():
    states = hidden_data()
    start = network(1)
    em = fit_by_em(states, start, tolerance=1e-9, max_iters=3000)

    def build(logits):
        tables = [jax.nn.log_softmax(table, axis=-1) for table in logits]
        return FactorGraph.from_conditionals(NUM_STATES, PARENTS, tables)

    logits = [jnp.asarray(start.log_table(one)) for one in range(4)]
    for is_normalized in (True, False):
        fit = fit_latent_likelihood(
            states, logits, build, is_normalized=is_normalized, tolerance=3e-4, max_iters=300
        )
        assert log_likelihood(fit.model, states) == pytest.approx(em.log_likelihood[-1], abs=0.05)


def test_complete_data_need_one_iteration_of_counting():
    states = host.sample(np.random.default_rng(1), network(5), num_samples=400)
    fit = fit_by_em(states, network(1))
    assert fit.num_iters <= 2
    counts = np.zeros([3, 2, 2])
    np.add.at(counts, tuple(states[:, [1, 2, 3]].T), 1)
    total = counts.sum(axis=-1, keepdims=True)
    seen = total[..., 0] > 0
    found = np.exp(np.asarray(fit.model.log_table(3)))
    np.testing.assert_allclose(found[seen], (counts / np.maximum(total, 1))[seen], atol=1e-5)


def test_tied_tables_are_equal_and_fit_their_pooled_counts():
    parents = [(), (0,), (0,)]
    table = np.log(np.array([[0.6, 0.4], [0.3, 0.7]]))
    start = FactorGraph.from_conditionals([2, 2, 2], parents, [np.log([0.5, 0.5]), table, table])
    states = np.random.default_rng(0).integers(0, 2, (200, 3))
    fit = fit_by_em(states, start, tied=[0, 1, 1])
    pooled = np.zeros((2, 2))
    for child in (1, 2):
        np.add.at(pooled, (states[:, 0], states[:, child]), 1)
    expected = pooled / pooled.sum(axis=1, keepdims=True)
    for factor in (1, 2):
        np.testing.assert_allclose(np.exp(fit.model.log_table(factor)), expected, atol=1e-5)


def test_prior_counts_keep_unseen_states_possible():
    states = np.zeros((10, 4), int)
    fit = fit_by_em(states, network(1), prior_count=1)
    np.testing.assert_allclose(np.exp(fit.model.log_table(0)), [11 / 12, 1 / 12], atol=1e-5)
    assert np.diff(fit.log_likelihood).min() > -1e-4


def test_another_engine_exact_on_trees_gives_the_same_answer():
    parents = [(), (0,), (0,)]
    rng = np.random.default_rng(0)
    tables = [np.log(rng.dirichlet(np.ones(2), 2 if own else ())) for own in parents]
    start = FactorGraph.from_conditionals([2, 2, 2], parents, tables)
    states = rng.integers(0, 2, (60, 3))
    states[:, 0] = -1

    def engine(graph, log_evidence):
        def one(row):
            return belief_propagation.solve(FactorGraph(graph.log_tables, row, graph.hypergraph))

        return jax.vmap(one)(log_evidence)

    exact = fit_by_em(states, start, max_iters=5)
    found = fit_by_em(states, start, engine=engine, max_iters=5)
    np.testing.assert_allclose(found.log_likelihood, exact.log_likelihood, rtol=1e-5)
    np.testing.assert_allclose(found.model.log_tables, exact.model.log_tables, atol=1e-3)


def test_empirical_bayes_finds_the_hyperparameter_of_a_hidden_level():
    # groups with a hidden type; the mixing weight is the hyperparameter, estimated in closed form
    def build(logit):
        weight = jnp.stack([jax.nn.log_sigmoid(-logit), jax.nn.log_sigmoid(logit)])
        channel = jnp.log(jnp.array([[0.9, 0.1], [0.2, 0.8]]))
        return FactorGraph.from_conditionals([2, 2], [(), (0,)], [weight, channel])

    states = np.array([[-1, 1]] * 45 + [[-1, 0]] * 55)
    fit = fit_latent_likelihood(states, jnp.array(0.3), build, is_normalized=True)
    assert fit.is_converged
    assert jax.nn.sigmoid(fit.parameters) == pytest.approx((0.45 - 0.1) / 0.7, abs=1e-3)


BAD = [
    (dict(states=np.zeros((3, 2))), r"fit_by_em: expected observations of shape \[items, 4\]"),
    (dict(states=np.full((2, 4), 2)), r"expected a state in 0..1 or -1 of variable 0, got 2"),
    (dict(prior_count=-1.0), "expected a prior_count of at least 0"),
    (dict(tied=[0, 0, 1, 2]), "expected tied tables of one shape"),
    (dict(tied=[0]), "expected one label per factor"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_bad_arguments_are_refused(options, message):
    arguments = {"states": hidden_data(5), "network": network(1)} | options
    with pytest.raises(ValueError, match=message):
        fit_by_em(**arguments)


def test_start_that_rules_an_item_out_is_refused():
    with np.errstate(divide="ignore"):
        start = FactorGraph.from_conditionals([2], [()], [np.log([1.0, 0.0])])
    with pytest.raises(ValueError, match="expected every item to be possible under the start"):
        fit_by_em(np.array([[1]]), start)


def test_default_engine_is_the_exact_one():
    graph = network(1)
    evidence = jnp.zeros((1, graph.hypergraph.num_node_entries))
    assert float(junction_tree.solve_batch(graph, evidence).log_z[0]) == pytest.approx(0, abs=1e-5)
