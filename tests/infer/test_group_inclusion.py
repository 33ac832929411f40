"""Learning the graph with the groups as an ordinary NumPyro model: separation, law, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, VOTES
from numpyro.infer import MCMC, NUTS

from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.graphs import grid
from jaxmrf.infer import ExactLikelihood, GroupGibbs, LinearResponse, MRFGibbs, StrippedBeta
from jaxmrf.nonparametric import group_exact
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.testing import prior_invariance

OWN = ["groups", "phi", "present"]
BOARD = grid((3, 3))


def learned(x=None, *, graph=SQUARE, num_items=6, rho=None, agreements=None, prior=None):
    """Edges in or out, and groups of those that are in."""
    rho = numpyro.sample("rho", dist.Beta(2.0, 2.0)) if rho is None else rho
    if prior is None:
        prior = dist.Bernoulli(rho).expand([graph.num_edges]).to_event(1)
    present = numpyro.sample("present", prior)
    groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, graph.num_edges))
    with numpyro.plate("atoms", graph.num_edges + 1):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    if agreements is None:
        theta = jnp.where(present, phi[groups], 0.5)
    else:
        theta = agreements(present, phi, groups)
    with numpyro.plate("items", num_items if x is None else len(x)):
        numpyro.sample("x", Ising.from_agreement(graph, theta), obs=x)


def board(x):
    learned(x, graph=BOARD)


def blocks(model, likelihood, **options):
    group = GroupGibbs(model, likelihood=likelihood, **options)
    return MRFGibbs([(group, OWN), (NUTS(model), ["rho"])])


def board_data(key, num_items=400):
    """Observations of a board on which four of the twelve edges are absent."""
    is_present = np.ones(12, bool)
    is_present[[1, 4, 6, 11]] = False
    strong = np.where(np.arange(12) % 3 == 0, 0.22, 0.8)
    field = Ising.from_agreement(BOARD, jnp.asarray(np.where(is_present, strong, 0.5)))
    return is_present, field.sample(key, (num_items,))


@pytest.mark.slow
@pytest.mark.parametrize(
    "likelihood",
    [
        ExactLikelihood(),
        LinearResponse(max_exact_width=4),
        LinearResponse(num_chains=100),
    ],
)
def test_posterior_presence_separates_edges_from_independence(key, likelihood):
    is_present, x = board_data(key)
    mcmc = MCMC(blocks(board, likelihood), num_warmup=60, num_samples=200, progress_bar=False)
    mcmc.run(jax.random.key(1), x)
    samples = mcmc.get_samples()
    presence = np.asarray(samples["present"]).mean(axis=0)
    assert presence[is_present].min() > 0.95
    assert presence[~is_present].max() < 0.5
    assert 0.4 < samples["rho"].mean() < 0.9


@pytest.mark.slow
def test_prior_is_invariant_with_presence():
    model = lambda x=None: learned(x)  # noqa: E731
    found = prior_invariance(
        blocks(model, ExactLikelihood(), start="params"), model, "x", num_replicates=1000,
        num_steps=4,
        statistics={
            "num_present": lambda v: v["present"].sum(),
            "first_pair": lambda v: (v["groups"][0] == v["groups"][1]).astype(int),
            "agreement": lambda v: (v["x"][:, 0] == v["x"][:, 1]).sum()
            + 2 * jnp.where(v["present"][0], v["phi"][0], 0.5),
        },
    )  # fmt: skip
    assert min(found.values()) > 1e-3 / len(found), found


@pytest.mark.slow
def test_adapter_equals_the_core_under_the_same_key(key):
    rho = jnp.array([0.2, 0.4, 0.6, 0.8])
    model = lambda x: learned(x, rho=rho, prior=dist.Bernoulli(rho).to_event(1))  # noqa: E731
    likelihood = ExactLikelihood()
    kernel = GroupGibbs(model, likelihood=likelihood)
    state = kernel.init(key, 0, None, (VOTES,), {})
    assert state.z["present"].tolist() == [1, 1, 1, 1]
    after = kernel.sample(state, (VOTES,), {})
    _, key_step = jax.random.split(state.rng_key)
    core, _ = group_exact.step(
        key_step, state.sampler, state.data, SQUARE, likelihood._plan(SQUARE), concentration=1.0,
        base=BetaBase(), inclusion=rho,
    )  # fmt: skip
    np.testing.assert_array_equal(after.z["groups"], core.labels)
    np.testing.assert_array_equal(after.z["phi"], core.values)
    np.testing.assert_array_equal(after.z["present"], core.is_present)
    assert after.z["present"].dtype == state.z["present"].dtype


def test_start_from_params_keeps_their_presence(key):
    kernel = GroupGibbs(learned, likelihood=ExactLikelihood(), start="params")
    present = jnp.array([1, 0, 0, 1])
    kwargs = {"_gibbs_sites": {"rho": jnp.array(0.5)}}
    state = kernel.init(key, 0, {"present": present}, (VOTES,), kwargs)
    np.testing.assert_array_equal(state.z["present"], present)


def refused(message, *, likelihood=ExactLikelihood(), **options):  # noqa: B008
    kernel = GroupGibbs(lambda x: learned(x, **options), likelihood=likelihood)
    with pytest.raises(ValueError, match=message):
        kernel.init(jax.random.key(0), 0, None, (VOTES,), {"_gibbs_sites": {"rho": jnp.array(0.5)}})


def test_likelihood_of_a_given_graph_is_refused():
    refused("'present' asks for, got StrippedBeta; take ExactLikelihood", likelihood=StrippedBeta())


def test_agreements_of_absent_edges_other_than_a_half_are_refused():
    refused(
        r"agreements where\(present, phi\[groups\], 0.5\), got coupling",
        agreements=lambda present, phi, groups: jnp.where(present, phi[groups], 0.4),
    )


def test_presence_that_the_field_does_not_read_is_refused():
    refused(
        r"depend on \['groups', 'phi', 'present'\] alone, got \['groups', 'phi'\]",
        agreements=lambda present, phi, groups: phi[groups],
    )


def test_presence_of_another_shape_is_refused():
    refused(
        r"one presence per edge, 'present' of shape \(4,\), got \(\)",
        prior=dist.Bernoulli(0.5),
    )


def test_two_presences_are_refused():
    def agreements(present, phi, groups):
        other = numpyro.sample("other", dist.Bernoulli(0.5).expand([4]).to_event(1))
        return jnp.where(present * other, phi[groups], 0.5)

    refused(r"beside the presence of edges \['present', 'other'\]", agreements=agreements)
