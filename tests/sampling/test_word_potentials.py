import jax
import jax.numpy as jnp
import numpy as np
import pytest
from examples import GRAPHS, KINDS, potential_of, random_model, random_states

from jaxmrf.sampling import packed, sampler_plan


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["tables", "sums"])
def test_log_potentials_of_words_are_the_oracle_s(kind, form):
    log_potentials = jax.jit(packed.log_potentials, static_argnums=2)
    for name, graph in GRAPHS.items():
        if form == "tables" and name == "uneven":
            continue  # a node of six neighbours
        model = random_model(kind, graph, num_states=2)
        states = random_states(graph, 2, 37)
        plan = sampler_plan(graph, model, num_chains=37, form=form)
        found = log_potentials(packed.pack(jnp.asarray(states.T), plan), model, graph, plan)
        expected = [potential_of(model, graph)(row) for row in states]
        np.testing.assert_allclose(found, expected, atol=1e-5)
