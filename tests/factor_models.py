"""Small factor graphs shared by tests, and their exact distributions by brute force."""

import numpy as np
import table_oracle

from jaxmrf.models import FactorGraph

NUM_STATES = (2, 3, 2, 1, 3)
SCOPES = ((0,), (1, 0), (2, 1, 4), (4, 0), (3, 2), ())


def mixed(*, has_zeros=False, seed=0):
    """A loopy graph of mixed numbers of states, a factor of three variables and a constant."""
    rng = np.random.default_rng(seed)
    tables = [np.exp(rng.normal(size=[NUM_STATES[node] for node in one])) for one in SCOPES]
    if has_zeros:  # every single variable can still go everywhere
        tables[2][0, 1, 2] = tables[2][1, 0, 0] = 0
    with np.errstate(divide="ignore"):
        logs = [np.log(np.asarray(table)) for table in tables]
    return FactorGraph.from_tables(NUM_STATES, SCOPES, logs)


def distribution(graph, power=1.0):
    """Probabilities of all configurations, one axis a variable, evidence included."""
    tables = [np.exp(np.asarray(graph.log_table(one))) for one in range(len(graph.scopes))]
    starts = graph.hypergraph.node_starts
    evidence = np.exp(np.asarray(graph.log_evidence))
    scopes = [*graph.scopes, *((node,) for node in range(graph.num_nodes))]
    tables += [evidence[s : s + n] for s, n in zip(starts, graph.num_states, strict=True)]
    values = table_oracle.joint(graph.num_states, scopes, tables) ** power
    return values / values.sum()


def counts_of(states, num_states):
    """Number of columns of "nodes items" in every configuration, flat."""
    codes = np.ravel_multi_index(np.asarray(states), num_states)
    return np.bincount(codes, minlength=int(np.prod(num_states)))


def draws(probabilities, number, seed):
    """Independent draws "nodes items" of a brute-force distribution."""
    rng = np.random.default_rng(seed)
    codes = rng.choice(probabilities.size, number, p=probabilities.ravel())
    return np.array(np.unravel_index(codes, probabilities.shape), np.int8)


def p_value(counts, probabilities):
    """Chi-square p-value of counts; zero if an impossible configuration was seen."""
    from scipy import stats

    expected = probabilities.ravel() * counts.sum()
    if counts[expected == 0].any():
        return 0.0
    small = (expected > 0) & (expected < 5)
    keep = expected >= 5
    observed = np.append(counts[keep], counts[small].sum())
    expected = np.append(expected[keep], expected[small].sum())
    used = expected > 0
    return stats.chisquare(observed[used], expected[used]).pvalue
