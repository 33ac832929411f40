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


def log_joint(num_states, scopes, log_tables, evidence):
    """Log potential of every configuration: log tables and log evidence of every variable added."""
    values = np.zeros(num_states)
    parts = [*zip(scopes, log_tables, strict=True), *(((i,), e) for i, e in enumerate(evidence))]
    for scope, table in parts:
        order = np.argsort(scope).astype(int)
        shape = [num_states[i] if i in scope else 1 for i in range(len(num_states))]
        values = values + np.asarray(table, float).transpose(order).reshape(shape)
    return values


def log_sum(values):
    """Log of a sum of exponentials, minus infinity if all are zero."""
    top = values.max(initial=-np.inf)
    return top if top == -np.inf else float(np.log(np.exp(values - top).sum()) + top)


def marginal(values, scope):
    """Joint distribution of some variables, axes in the order of the scope; zero if impossible."""
    top = values.max(initial=-np.inf)
    weights = np.exp(values - (0 if top == -np.inf else top))
    total = weights.sum()
    summed = weights.sum(axis=tuple(i for i in range(values.ndim) if i not in scope))
    ranks = np.argsort(np.argsort(scope)).astype(int)
    return summed.transpose(ranks) / (total if total > 0 else 1)
