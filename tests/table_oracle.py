"""Sums over products of tables by brute force and by opt_einsum. Imports nothing of jaxmrf."""

import itertools
import math

import numpy as np
import opt_einsum


def joint(num_states, scopes, tables):
    """Unnormalised potential of every configuration, one axis per variable, by plain loops."""
    values = np.ones(num_states)
    for states in itertools.product(*map(range, num_states)):
        values[states] = math.prod(
            float(table[tuple(states[node] for node in scope)])
            for scope, table in zip(scopes, tables, strict=True)
        )
    return values


def marginals(joint_values):
    """Marginal distribution of every axis of a joint one."""
    axes = range(joint_values.ndim)
    total = joint_values.sum()
    return [joint_values.sum(axis=tuple({*axes} - {axis})) / total for axis in axes]


def sum_product(scopes, tables, keep=()):
    """Sum of the product of all tables over the variables not kept; for models of small width."""
    pairs = zip(tables, scopes, strict=True)
    arguments = [part for table, scope in pairs for part in (table, list(scope))]
    return opt_einsum.contract(*arguments, list(keep), optimize="greedy")
