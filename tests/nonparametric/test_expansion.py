"""Linear response against the derivatives of exact marginals, and sampled against exact moments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.exact import enumeration
from jaxmrf.graphs import binary_tree, frontier_plan, grid, sweep_plan
from jaxmrf.models import Ising
from jaxmrf.nonparametric import edge_messages, expansion

GRID = grid((3, 3))
CENTER = jnp.array(np.random.default_rng(3).normal(0.3, 0.8, GRID.num_edges), dtype=jnp.float32)


def exact_messages(graph, logits):
    """logit of every agreement probability, less the edge's own logit, by enumeration."""
    field = Ising(jnp.asarray(logits) / 2, jnp.zeros(graph.num_nodes))
    tables = enumeration.solve(field, graph).factors
    agree = tables[:, 0, 0] + tables[:, 1, 1]
    return jnp.log(agree) - jnp.log1p(-agree) - logits


@pytest.fixture(scope="module")
def exact():
    return expansion.by_transfer(CENTER, GRID, frontier_plan(GRID))


def test_messages_at_the_center_are_exact(exact):
    found = expansion.messages(exact, CENTER)
    np.testing.assert_allclose(found, exact_messages(GRID, CENTER), atol=2e-4)


def test_messages_are_right_to_first_order(exact):
    direction = jnp.asarray(np.random.default_rng(4).normal(size=GRID.num_edges), jnp.float32)
    errors = []
    for size in (0.2, 0.1):
        logits = CENTER + size * direction
        found = expansion.messages(exact, logits)
        errors.append(np.abs(found - exact_messages(GRID, logits)).max())
        constant = np.abs(exact.messages - exact_messages(GRID, logits)).max()
        assert errors[-1] < 0.4 * constant
    assert errors[1] < errors[0] / 2.5  # of second order


@pytest.mark.slow
def test_messages_on_a_tree_are_zero_and_do_not_respond():
    tree = binary_tree(3)
    logits = jnp.linspace(-1.0, 2.0, tree.num_edges)
    found = expansion.by_transfer(logits, tree, frontier_plan(tree))
    np.testing.assert_allclose(found.messages, 0, atol=1e-4)
    np.testing.assert_allclose(found.response, 0, atol=1e-4)


@pytest.mark.slow
def test_sampled_moments_agree_with_exact_ones(key, exact):
    num_chains, num_snapshots = 500, 40
    particles = jax.random.randint(key, (9, num_chains), 0, 2, dtype=jnp.int8)
    found, particles = expansion.by_sampling(
        key, CENTER, particles, GRID, sweep_plan(GRID), num_snapshots=num_snapshots, num_sweeps=3
    )
    assert particles.shape == (9, num_chains) and particles.dtype == jnp.int8
    means = jax.nn.sigmoid(CENTER + exact.messages)
    errors = jax.nn.sigmoid(CENTER + found.messages) - means
    # Rao-Blackwellised means are at least as good as counting; snapshots correlate a little
    standard = np.sqrt(means * (1 - means) / (num_chains * num_snapshots))
    assert (np.abs(errors) < 6 * standard).all()
    scale = np.sqrt(np.outer(means * (1 - means), means * (1 - means)))
    assert np.abs((found.covariance - exact.covariance) / scale).max() < 0.06


def test_too_few_snapshots_are_counted():
    assert expansion.num_snapshots_needed(1740, 300) == 87
    assert expansion.num_snapshots_needed(1741, 300) == 88


def test_messages_by_transfer_follow_moves_exactly():
    """The message to every edge, in the plan's order, while the edges before it move."""
    plan = frontier_plan(GRID)
    mail = edge_messages.by_transfer(CENTER, plan)
    logits, table = CENTER, mail.carry
    for position, edge in enumerate(np.asarray(mail.order)):
        inputs = jax.tree.map(lambda leaf, position=position: leaf[position], mail.inputs)
        expected = exact_messages(GRID, logits)[edge]
        np.testing.assert_allclose(mail.offset(table, inputs), expected, atol=1e-3)
        logits = logits.at[edge].add(0.7 if position % 2 else -1.1)
        table = mail.move(table, inputs, logits[edge], None)


def test_messages_by_linear_response_follow_moves_as_the_expansion_does(exact):
    order = jnp.arange(GRID.num_edges)[::-1]
    mail = edge_messages.by_linear_response(order, exact.messages, exact.response)
    logits = CENTER.at[7].add(0.3)
    messages = mail.move(mail.carry, 7, logits[7], 0.3)
    np.testing.assert_allclose(messages, expansion.messages(exact, logits), atol=1e-5)
    assert mail.offset(messages, 7) == pytest.approx(float(exact.messages[7]), abs=1e-6)
