import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.graphs import Hypergraph
from jaxmrf.models import Beliefs, Tables

STRUCTURE = Hypergraph([2, 3], [(0, 1), (1,), (), (1,)])


def test_tables_are_read_at_their_places():
    nodes = Tables(np.arange(5), STRUCTURE, is_of_factors=False)
    assert [part.tolist() for part in nodes] == [[0, 1], [2, 3, 4]]
    factors = Tables(np.arange(13), STRUCTURE, is_of_factors=True)
    assert [part.shape for part in factors] == [(2, 3), (3,), (), (3,)]
    for index, part in enumerate(factors):
        start = STRUCTURE.table_starts[index]
        np.testing.assert_array_equal(part.ravel(), np.arange(start, start + part.size))
    np.testing.assert_array_equal(np.sort(np.concatenate([p.ravel() for p in factors])), range(13))
    np.testing.assert_array_equal(factors[-4], factors[0])


def test_leading_axes_of_tables_are_a_batch():
    flat = np.arange(2 * 13).reshape(2, 13)
    factors = Tables(flat, STRUCTURE, is_of_factors=True)
    assert factors[0].shape == (2, 2, 3) and factors[2].shape == (2,)
    single = Tables(flat[1], STRUCTURE, is_of_factors=True)
    np.testing.assert_array_equal(factors[0][1], single[0])


@pytest.mark.parametrize("index", [2, -3])
def test_index_beyond_the_tables_raises(index):
    nodes = Tables(np.arange(5), STRUCTURE, is_of_factors=False)
    with pytest.raises(IndexError, match=f"Tables: expected an index below 2, got {index}"):
        nodes[index]


def test_beliefs_are_a_pytree_whose_tables_are_one_leaf_each():
    nodes = Tables(jnp.arange(5.0), STRUCTURE, is_of_factors=False)
    factors = Tables(jnp.arange(13.0), STRUCTURE, is_of_factors=True)
    beliefs = Beliefs(jnp.zeros(()), nodes, factors, jnp.array(True), jnp.array(0))
    assert len(jax.tree.leaves(beliefs)) == 5
    doubled = jax.jit(lambda b: b._replace(nodes=jax.tree.map(lambda x: 2 * x, b.nodes)))(beliefs)
    assert doubled.nodes.hypergraph == STRUCTURE and not doubled.nodes.is_of_factors
    np.testing.assert_array_equal(doubled.nodes[1], [4, 6, 8])
