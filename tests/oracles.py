"""Brute force in plain NumPy loops: what every method is held against. Imports nothing of jaxmrf.

A field is given by its log potential, a function of one configuration (a tuple of integers).
"""

import itertools
import math

import numpy as np


def ising_potential(edges, couplings, fields):
    """sum_e J_e s_u s_v + sum_i h_i s_i with spins s = 2x - 1."""

    def potential(states):
        spins = [2 * int(state) - 1 for state in states]
        value = sum(h * spin for h, spin in zip(fields, spins, strict=True))
        return value + sum(
            J * spins[u] * spins[v] for (u, v), J in zip(edges, couplings, strict=True)
        )

    return potential


def potts_potential(edges, couplings, fields):
    """sum_e J_e [x_u = x_v] + sum_i h_i(x_i)."""

    def potential(states):
        value = sum(row[state] for row, state in zip(fields, states, strict=True))
        return value + sum(
            J * (states[u] == states[v]) for (u, v), J in zip(edges, couplings, strict=True)
        )

    return potential


def table_potential(edges, edge_tables, node_tables):
    """sum_e b_e(x_u, x_v) + sum_i a_i(x_i); (u, v) as the edge is written."""

    def potential(states):
        value = sum(row[state] for row, state in zip(node_tables, states, strict=True))
        return value + sum(
            table[states[u]][states[v]] for (u, v), table in zip(edges, edge_tables, strict=True)
        )

    return potential


def configurations(num_nodes, num_states):
    """Every configuration, as a list of tuples, node 0 changing fastest."""
    return [states[::-1] for states in itertools.product(range(num_states), repeat=num_nodes)]


def log_z(potential, num_nodes, num_states):
    values = [float(potential(states)) for states in configurations(num_nodes, num_states)]
    top = max(values)
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


def distribution(potential, num_nodes, num_states):
    """Probability of every configuration, in their order."""
    states = configurations(num_nodes, num_states)
    total = log_z(potential, num_nodes, num_states)
    return np.array([math.exp(float(potential(x)) - total) for x in states])


def node_marginals(probabilities, num_nodes, num_states):
    marginals = np.zeros((num_nodes, num_states))
    states = configurations(num_nodes, num_states)
    for x, probability in zip(states, probabilities, strict=True):
        for node in range(num_nodes):
            marginals[node, x[node]] += probability
    return marginals


def pair_marginals(probabilities, pairs, num_nodes, num_states):
    """Joint distribution of the two ends of every pair, first end on the first axis."""
    marginals = np.zeros((len(pairs), num_states, num_states))
    states = configurations(num_nodes, num_states)
    for x, probability in zip(states, probabilities, strict=True):
        for number, (u, v) in enumerate(pairs):
            marginals[number, x[u], x[v]] += probability
    return marginals


def conditional(potential, states, node, num_states):
    """Probabilities of one node's values given the other nodes' states."""
    values = []
    for value in range(num_states):
        changed = list(states)
        changed[node] = value
        values.append(float(potential(tuple(changed))))
    weights = np.exp(np.array(values) - max(values))
    return weights / weights.sum()


def log_pseudolikelihood(potential, states, num_states):
    """sum_i log p(x_i | all other x) of one observation."""
    return sum(
        math.log(conditional(potential, states, node, num_states)[states[node]])
        for node in range(len(states))
    )


def block_transition_matrix(nodes, conditionals, num_nodes, num_states):
    """One Gibbs update of a block of nodes at once, as a matrix over configurations.

    `conditionals[c, j, k]` is the probability with which the kernel gives value k to the block's
    j-th node when it starts in configuration c.
    """
    states = configurations(num_nodes, num_states)
    number = {x: c for c, x in enumerate(states)}
    matrix = np.zeros((len(states), len(states)))
    for c, x in enumerate(states):
        for values in itertools.product(range(num_states), repeat=len(nodes)):
            changed = list(x)
            probability = 1.0
            for j, (node, value) in enumerate(zip(nodes, values, strict=True)):
                changed[node] = value
                probability *= conditionals[c, j, value]
            matrix[c, number[tuple(changed)]] += probability
    return matrix
