from dataclasses import replace

import numpy as np
import pytest
from random_factor_graphs import (
    STRUCTURES,
    check_beliefs,
    evidence_rows,
    exact,
    log_values,
    random_model,
    structure,
    with_tables,
)
from scipy.stats import chisquare

from jaxmrf.exact import _cliques, host
from jaxmrf.graphs import Hypergraph, elimination_plan
from jaxmrf.models import FactorGraph

MODELS = [structure(name, seed) for seed, name in enumerate(STRUCTURES)]
MODELS += [random_model(seed) for seed in range(40)]
CHAIN = with_tables([12] * 5, [(0, 1), (1, 2), (3, 2), (3, 4)], seed=3)  # four cliques


def with_evidence(graph):
    """The model under every kind of evidence."""
    return [replace(graph, log_evidence=row) for row in evidence_rows(graph, seed=7)]


@pytest.fixture
def fresh():
    """No plans kept from before, so that constants of the module matter."""
    _cliques.clique_steps.cache_clear()
    yield
    _cliques.clique_steps.cache_clear()


def test_beliefs_equal_brute_force():
    num_impossible = 0
    for graph in MODELS:
        for model in with_evidence(graph):
            beliefs = host.solve(model)
            check_beliefs(beliefs, model)
            num_impossible += int(beliefs.log_z == -np.inf)
            assert beliefs.nodes.flat.dtype == beliefs.factors.flat.dtype == np.float64
    assert num_impossible > 5


@pytest.mark.parametrize("merge_below", [0, 128, 10**6])
@pytest.mark.parametrize("kept", [0, 2**20])
def test_sizes_of_cliques_and_what_is_kept_change_nothing(fresh, monkeypatch, merge_below, kept):
    monkeypatch.setattr(host, "MERGE_BELOW", merge_below)
    monkeypatch.setattr(host, "_KEPT", kept)
    monkeypatch.setattr(_cliques, "_MANY", kept)  # trees of partial sums for every table
    for graph in MODELS[:20]:
        model = with_evidence(graph)[1]
        check_beliefs(host.solve(model), model)
        assert host.mode(model)[1] == pytest.approx(log_values(model).max(), abs=1e-10)


def test_every_order_gives_the_same_beliefs():
    graph = structure("mixed", zeros=0)
    rng = np.random.default_rng(0)
    for _ in range(10):
        plan = elimination_plan(graph.hypergraph, order=rng.permutation(graph.num_nodes).tolist())
        check_beliefs(host.solve(graph, plan), graph)
        assert host.mode(graph, plan)[1] == pytest.approx(log_values(graph).max())


def test_logs_give_the_same_beliefs(monkeypatch):
    monkeypatch.setattr(host, "_pass_up", lambda *given: host._try_up(*given, is_log=True, lost=[]))
    for graph in [*MODELS, CHAIN]:
        for model in with_evidence(graph):
            check_beliefs(host.solve(model), model)


def test_single_precision_tables_are_summed_in_double():
    graph = structure("mixed", dtype=np.float32)
    assert graph.log_tables.dtype == np.float32
    check_beliefs(host.solve(graph), graph)


@pytest.mark.parametrize("scale", [30, 300, 3000])
def test_tables_beyond_linear_space_are_summed_exactly(scale):
    for seed in range(5):
        graph = with_tables([12] * 4, [(0, 1), (1, 2), (3, 2), (3,)], seed=seed, scale=scale)
        for model in with_evidence(graph)[:2]:
            check_beliefs(host.solve(model), model, tolerance=1e-9)


def test_evidence_that_turns_late_against_what_was_negligible_is_not_lost():
    """State 1 is e-1000 as probable as state 0 after one half, e+1000 after the other."""
    number = 20
    same = np.where(np.eye(12, dtype=bool), 0.0, -np.inf)
    scopes = [(node, node + 1) for node in range(number - 1)]
    graph = FactorGraph.from_tables([12] * number, scopes, [same] * (number - 1))
    evidence = np.full((number, 12), -np.inf)
    evidence[:, :2] = 0
    evidence[: number // 2, 1] = -100
    evidence[number // 2 :, 0] = -101
    graph = replace(graph, log_evidence=evidence.ravel())
    beliefs = host.solve(graph, elimination_plan(graph.hypergraph, order=list(range(number))))
    assert beliefs.log_z == pytest.approx(-1000 + np.log1p(np.exp(-10)))
    for node in beliefs.nodes:
        assert node[1] == pytest.approx(1 / (1 + np.exp(-10)))


def test_hub_of_many_leaves_does_not_underflow(rng):
    """Naive Bayes: the product of 700 messages is below the smallest double."""
    number = 700
    tables = 3 * rng.normal(size=(number, 3, 2))
    scopes = [(0, leaf) for leaf in range(1, number + 1)]
    graph = FactorGraph.from_tables([3] + [2] * number, scopes, list(tables))
    order = list(reversed(range(number + 1)))
    plan = elimination_plan(graph.hypergraph, order=order)
    beliefs = host.solve(graph, plan)
    logs = np.logaddexp(tables[..., 0], tables[..., 1]).sum(axis=0)
    assert beliefs.log_z == pytest.approx(np.logaddexp.reduce(logs), rel=1e-12)
    posterior = np.exp(logs - np.logaddexp.reduce(logs))
    np.testing.assert_allclose(beliefs.nodes[0], posterior, atol=1e-12)
    first = np.exp(tables[0] - np.logaddexp(*tables[0].T)[:, None]) * posterior[:, None]
    np.testing.assert_allclose(beliefs.factors[0], first, atol=1e-12)
    draws = host.sample(rng, graph, num_samples=5, plan=plan)
    assert draws.shape == (5, number + 1) and (draws[:, 0] == posterior.argmax()).all()


def test_renumbering_permutes_the_answers(rng):
    for seed in range(8):
        graph = random_model(seed)
        node_order = rng.permutation(graph.num_nodes)  # new number -> old number
        factor_order = rng.permutation(len(graph.scopes))
        state_orders = [rng.permutation(number) for number in graph.num_states]
        new_of = np.argsort(node_order)
        scopes, tables = [], []
        for factor in factor_order:
            scope = graph.scopes[factor]
            axes = rng.permutation(len(scope)).astype(int)
            table = graph.log_table(factor)[np.ix_(*(state_orders[node] for node in scope))]
            tables.append(table.reshape(graph.hypergraph.table_shape(factor)).transpose(axes))
            scopes.append([int(new_of[scope[axis]]) for axis in axes])
        num_states = [graph.num_states[node] for node in node_order.tolist()]
        turned = FactorGraph.from_tables(num_states, scopes, tables)
        before, after = host.solve(graph), host.solve(turned)
        assert after.log_z == pytest.approx(before.log_z, abs=1e-12)
        for new, old in enumerate(node_order):
            np.testing.assert_allclose(
                after.nodes[new], before.nodes[old][state_orders[old]], atol=1e-12
            )


def test_mode_equals_brute_force():
    for graph in MODELS:
        for model in with_evidence(graph):
            values = log_values(model)
            states, value = host.mode(model)
            assert states.shape == (model.num_nodes,)
            assert ((states >= 0) & (states < np.array(model.num_states, int))).all()
            np.testing.assert_allclose(value, values.max(), atol=1e-10)
            np.testing.assert_allclose(values[tuple(states)], value, atol=1e-10)


def test_mode_with_ties_is_one_of_them():
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    differ = np.array([[-np.inf, 0.0], [0.0, -np.inf]])
    states, value = host.mode(FactorGraph.from_tables([2] * 4, ring, [differ] * 4))
    assert value == 0 and (np.diff(states) != 0).all()
    flat = FactorGraph.from_tables([3] * 4, ring, [np.zeros((3, 3))] * 4)
    assert host.mode(flat)[1] == 0


def test_mode_of_an_impossible_model_is_minus_infinity():
    constant = FactorGraph.from_tables([2], [(), (0,)], [np.array(-np.inf), np.zeros(2)])
    odd = [np.array([[-np.inf, 0.0], [0.0, -np.inf]])] * 3
    triangle = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2), (2, 0)], odd)
    for graph in (constant, triangle):
        states, value = host.mode(graph)
        assert value == -np.inf and ((states == 0) | (states == 1)).all()


def test_impossible_constant_makes_everything_impossible():
    graph = FactorGraph.from_tables([2], [(), (0,)], [np.array(-np.inf), np.zeros(2)])
    check_beliefs(host.solve(graph), graph)


@pytest.mark.parametrize(
    ("name", "scale", "row"),
    [("clique", 1, 0), ("clique", 1, 2), ("ring", 1, 1), ("ring", 1000, 0), ("empty", 1, 0)],
)
def test_draws_have_the_exact_distribution(name, scale, row):
    """Chi-square at level 1e-3 with a fixed seed; no impossible configuration is drawn."""
    if name == "ring":
        ring = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]
        graph = with_tables([3, 2, 2, 1, 2], ring, seed=5, scale=scale, zeros=0.2)
    else:
        graph = structure(name, seed=2)
    graph = with_evidence(graph)[row]
    values = log_values(graph)
    probabilities = np.exp(values - exact(graph)[0]).ravel()
    assert probabilities.size <= 64
    draws = host.sample(np.random.default_rng(1), graph, num_samples=20_000)
    assert draws.shape == (20_000, graph.num_nodes) and draws.dtype == np.int32
    if not graph.num_nodes:
        return
    codes = np.ravel_multi_index(draws.T, graph.num_states)
    counts = np.bincount(codes, minlength=probabilities.size)
    assert counts[probabilities == 0].sum() == 0
    often = probabilities * 20_000 > 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(probabilities[often], probabilities[~often].sum()) * 20_000
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / 2e4
        expected *= observed.sum() / expected.sum()
    if len(expected) > 1:
        assert chisquare(observed, expected).pvalue > 1e-3


def test_draws_through_several_cliques_have_the_exact_marginals(rng):
    beliefs = host.solve(CHAIN)
    draws = host.sample(rng, CHAIN, num_samples=20_000)
    for factor, scope in enumerate(CHAIN.scopes):
        found = np.zeros((12, 12))
        np.add.at(found, tuple(draws[:, list(scope)].T), 1 / 20_000)
        wanted = beliefs.factors[factor]
        assert (found[wanted == 0] == 0).all()
        assert (abs(found - wanted) <= 5 * np.sqrt(wanted / 20_000) + 1e-4).all()


def test_same_seed_draws_the_same_and_none_is_none():
    graph = structure("mixed")
    first, second = (host.sample(np.random.default_rng(5), graph, num_samples=9) for _ in range(2))
    assert (first == second).all()
    assert host.sample(np.random.default_rng(5), graph, num_samples=0).shape == (0, 6)


def test_draws_of_an_impossible_model_are_refused(rng):
    zero = [np.array([0.0, -np.inf]), np.array([-np.inf, 0.0])]
    constant = FactorGraph.from_tables([2], [()], [np.array(-np.inf)])
    for graph in (FactorGraph.from_tables([2], [(0,), (0,)], zero), constant):
        with pytest.raises(ValueError, match=r"sample: expected a possible config.*, got none"):
            host.sample(rng, graph, num_samples=2)


def test_plan_of_another_model_is_refused(rng):
    graph = structure("mixed")
    plan = elimination_plan(Hypergraph([2, 2], [(0, 1)]))
    rule = r"host: expected a plan of Hypergraph\(num_nodes=6, .*, got one of .*num_nodes=2.*; pass"
    with pytest.raises(ValueError, match=rule):
        host.solve(graph, plan)
    with pytest.raises(ValueError, match=rule):
        host.mode(graph, plan)
    with pytest.raises(ValueError, match=rule):
        host.sample(rng, graph, num_samples=1, plan=plan)


def test_model_too_large_is_refused():
    scopes = [(one, two) for one in range(40) for two in range(one)]
    tables = [np.zeros((2, 2))] * len(scopes)
    with pytest.raises(ValueError, match=r"elimination_plan: expected a table of at most 4.29 GB"):
        host.solve(FactorGraph.from_tables([2] * 40, scopes, tables))
