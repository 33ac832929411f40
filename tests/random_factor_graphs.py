"""Factor graphs of every awkward kind, small enough for brute force, and their exact beliefs."""

import numpy as np
from table_oracle import log_joint, log_sum, marginal

from jaxmrf.models import FactorGraph

STRUCTURES = {
    "mixed": (
        [2, 3, 4, 1, 2, 3],
        [(0, 1), (2, 1, 4), (4, 5), (5, 0), (2,), (1, 0), (3, 2), (1,)],
    ),
    "components": ([2, 3, 2, 1, 4, 2, 1], [(0, 1), (), (2,), (4, 5), (), (3,), (5, 4), (4,)]),
    "hub": ([3] + [2] * 7, [(0, leaf) for leaf in range(1, 8)] + [(1, 2), (2, 3, 0), (0,)]),
    "clique": ([2, 3, 2, 2], [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3), (3, 1), (2, 0, 3)]),
    "isolated": ([2, 3, 1], []),
    "constant": ([], [(), ()]),
    "empty": ([], []),
}


def with_tables(num_states, scopes, seed=0, scale=1.0, zeros=0.1, dtype=float):
    """A model of the structure with normal log tables, some entries impossible."""
    rng = np.random.default_rng(seed)
    tables = []
    for scope in scopes:
        table = rng.normal(0, scale, [num_states[node] for node in scope])
        tables.append(
            np.where((rng.random(table.shape) < zeros) & (table.size > 1), -np.inf, table)
        )
    graph = FactorGraph.from_tables(num_states, scopes, [np.asarray(one) for one in tables])
    return FactorGraph(
        graph.log_tables.astype(dtype), graph.log_evidence.astype(dtype), graph.hypergraph
    )


def structure(name, seed=0, **options):
    """One of the models with a name."""
    return with_tables(*STRUCTURES[name], seed=seed, **options)


def random_model(seed, **options):
    """A model of random structure: 1 to 7 variables of 1 to 4 states, factors of 0 to 4."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(1, 8))
    num_states = rng.integers(1, 5, num_nodes).tolist()
    scopes = []
    for _ in range(int(rng.integers(0, 2 * num_nodes))):
        arity = min(num_nodes, int(rng.integers(0, 5)))
        scopes.append(tuple(rng.permutation(num_nodes)[:arity].tolist()))
    if scopes and rng.random() < 0.5:
        scopes.append(scopes[0][::-1])
    return with_tables(num_states, scopes, seed=seed + 1000, **options)


def evidence_rows(graph, seed=0):
    """Log evidence of four kinds, one a row: none, soft, hard, and soft with impossible states."""
    rng = np.random.default_rng(seed)
    number = graph.hypergraph.num_node_entries
    owner = np.repeat(np.arange(graph.num_nodes), graph.num_states)
    level = np.arange(number) - graph.hypergraph.node_starts[owner]
    state = rng.integers(0, graph.num_states)[owner] if number else owner
    seen = (rng.random(graph.num_nodes) < 0.4)[owner] if number else owner.astype(bool)
    soft = rng.normal(0, 1, number)
    hard = np.where(seen & (level != state), -np.inf, 0)
    mixed = np.where(rng.random(number) < 0.2, -np.inf, soft)
    return np.array([np.zeros(number), soft, hard, mixed])


def log_values(graph):
    """Log potential of every configuration, by brute force."""
    tables = [np.asarray(graph.log_table(factor), float) for factor in range(len(graph.scopes))]
    starts = graph.hypergraph.node_starts[1:]
    evidence = np.split(np.asarray(graph.log_evidence, float), starts) if graph.num_nodes else []
    return log_joint(graph.num_states, graph.scopes, tables, evidence)


def exact(graph):
    """Log Z, flat marginals of variables and of factors (in the order of the hypergraph)."""
    values = log_values(graph)
    nodes = [marginal(values, (node,)) for node in range(graph.num_nodes)]
    factors = np.zeros(graph.hypergraph.num_entries)
    for factor, scope in enumerate(graph.scopes):
        start = graph.hypergraph.table_starts[factor]
        table = marginal(values, scope)
        factors[start : start + table.size] = table.ravel()
    return log_sum(values), np.concatenate([*nodes, np.zeros(0)]), factors


def check_beliefs(beliefs, graph, tolerance=1e-10):
    """Every number of the beliefs equals brute force; minus infinity and zeros if impossible."""
    log_z, nodes, factors = exact(graph)
    np.testing.assert_allclose(beliefs.log_z, log_z, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(beliefs.nodes.flat, nodes, rtol=0, atol=tolerance)
    np.testing.assert_allclose(beliefs.factors.flat, factors, rtol=0, atol=tolerance)
    assert bool(np.all(beliefs.is_converged)) and int(np.max(beliefs.num_iters)) == 0
