"""Grouping as an ordinary NumPyro model: invariance on a tree, checks, starts, capacity."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import PATH, SQUARE, VOTES, grouped, grouped_square
from numpyro.infer import MCMC, NUTS, Predictive

from jaxmrf.diagnostics import to_arviz
from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.infer import ConcentrationGibbs, GroupGibbs, MRFGibbs, StrippedBeta
from jaxmrf.nonparametric import group_gibbs
from jaxmrf.nonparametric.base_measures import BetaBase
from jaxmrf.testing import prior_invariance

OWN = ["groups", "phi"]
FEW = StrippedBeta(num_particles=20, num_steps=20, num_refits=1)


def blocks(model, **options):
    return MRFGibbs(
        [
            (GroupGibbs(model, likelihood=StrippedBeta(), start="params", **options), OWN),
            (ConcentrationGibbs(model), ["alpha"]),
        ]
    )


STATISTICS = {
    "num_groups": lambda v: v["groups"].max() + 1,
    "agreement": lambda v: (v["x"][:, 0] == v["x"][:, 1]).sum() * 1.0 + 2 * v["phi"][0],
    "first_pair": lambda v: (v["groups"][0] == v["groups"][1]).astype(int),
}


def p_values(kernel, model, num_replicates=2000):
    return prior_invariance(
        kernel,
        model,
        "x",
        num_replicates=num_replicates,
        num_steps=4,
        statistics=STATISTICS,
    )


@pytest.mark.slow
def test_prior_is_invariant_on_a_tree():
    found = p_values(blocks(grouped), grouped)
    assert min(found.values()) > 1e-3 / len(found), found


def logit_normal_model(x=None):
    base = dist.TransformedDistribution(dist.Normal(0.5, 1.0), dist.transforms.SigmoidTransform())
    grouped(x, base=base)


@pytest.mark.slow
def test_prior_is_invariant_for_a_base_by_its_density():
    found = p_values(blocks(logit_normal_model), logit_normal_model, num_replicates=1000)
    assert min(found.values()) > 1e-3 / len(found), found


@pytest.mark.slow
def test_planted_bug_in_the_values_is_caught(monkeypatch):
    right = group_gibbs.update

    def wrong(key, values, successes, failures, base):
        return right(key, values, failures, successes, base)

    monkeypatch.setattr(group_gibbs, "update", wrong)
    assert min(p_values(blocks(grouped), grouped).values()) < 1e-9


@pytest.mark.slow
def test_planted_bug_in_the_concentration_is_caught(monkeypatch):
    from jaxmrf.infer import concentration

    right = concentration.draw_concentration
    monkeypatch.setattr(
        concentration,
        "draw_concentration",
        lambda key, value, num_groups, *args, **kw: right(key, value, num_groups + 1, *args, **kw),
    )
    assert p_values(blocks(grouped), grouped)["alpha"] < 1e-9


@pytest.mark.slow
def test_adapter_equals_the_core_under_the_same_key(key):
    """The kernel's draws are the core's, bit for bit."""
    estimate = (0.3, 0.6, 0.7, 0.2)

    def model(x):
        groups = numpyro.sample("groups", ChineseRestaurantProcess(1.5, 4))
        with numpyro.plate("atoms", 5):
            phi = numpyro.sample("phi", dist.Beta(2.0, 1.0))
        with numpyro.plate("items", len(x)):
            numpyro.sample("x", Ising.from_agreement(SQUARE, phi[groups]), obs=x)

    likelihood = StrippedBeta(estimate=estimate, num_particles=10)
    kernel = GroupGibbs(model, likelihood=likelihood)
    state = kernel.init(key, 0, None, (VOTES,), {})
    after = kernel.sample(state, (VOTES,), {})
    _, key_step = jax.random.split(state.rng_key)
    core, _ = likelihood.step(key_step, state.sampler, state.data, SQUARE, 1.5, BetaBase(2.0, 1.0))
    np.testing.assert_array_equal(after.z["groups"], core.labels)
    np.testing.assert_array_equal(after.z["phi"], core.values)
    np.testing.assert_array_equal(state.data.counts, [0, 1, 2, 0])
    assert isinstance(core, group_gibbs.GroupState)


def test_start_from_the_estimate_clusters_it(key):
    def model(x):
        groups = numpyro.sample("groups", ChineseRestaurantProcess(2.0, 4))
        with numpyro.plate("atoms", 5):
            phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
        with numpyro.plate("items", len(x)):
            numpyro.sample("x", Ising.from_agreement(SQUARE, phi[groups]), obs=x)

    # floor(2 log 4) = 2 clusters
    likelihood = StrippedBeta(estimate=(0.9, 0.2, 0.88, 0.22), num_particles=4)
    state = GroupGibbs(model, likelihood=likelihood).init(key, 0, None, (VOTES,), {})
    assert state.z["groups"].tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(state.z["phi"][:2], [0.89, 0.21], rtol=1e-5)


@pytest.mark.slow
def test_votes_coded_as_spins_give_the_same_state(key):
    kernel = GroupGibbs(grouped_square, likelihood=FEW)
    kwargs = {"_gibbs_sites": {"alpha": jnp.array(1.0)}}
    plain = kernel.init(key, 0, None, (VOTES,), kwargs)
    spins = kernel.init(key, 0, None, (2 * VOTES - 1,), kwargs)
    np.testing.assert_array_equal(plain.data.agreements, spins.data.agreements)


def run(model, *args, num_samples=4, **options):
    group = GroupGibbs(model, likelihood=FEW, **options)
    mcmc = MCMC(
        MRFGibbs([(group, OWN), (NUTS(model), ["alpha"])]),
        num_warmup=2,
        num_samples=num_samples,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(0), *args)
    return mcmc


@pytest.mark.slow
def test_composite_with_nuts_collects_labels_atoms_and_theta():
    mcmc = run(grouped_square, VOTES)
    samples = mcmc.get_samples()
    theta = np.take_along_axis(samples["phi"], samples["groups"], axis=1)
    np.testing.assert_array_equal(samples["theta"], theta)
    assert (samples["alpha"] > 0).all()
    posterior = to_arviz(mcmc)
    assert posterior.posterior["phi"].dims == ("chain", "draw", "atoms")
    assert "num_groups" in posterior.sample_stats
    predicted = Predictive(grouped_square, samples)(jax.random.key(1), None, num_items=3)
    assert predicted["x"].shape == (4, 3, 4)


@pytest.mark.slow
def test_capacity_reached_warns_with_the_capacity_to_ask_for():
    def crowded(x):
        grouped(x, graph=SQUARE, num_items=len(x), max_groups=2)

    with pytest.warns(UserWarning, match="raise the plate to 4"):
        mcmc = run(crowded, VOTES, num_samples=20)
        jax.effects_barrier()
    assert bool(mcmc.last_state.block_states[0].is_truncated)


@pytest.mark.parametrize(
    ("votes", "message"),
    [
        (np.array([[0, 1, -1, 1]]), "expected values all in 0..1 or all in"),
        (np.array([[0.0, np.nan, 1.0, 1.0]]), "expected data without gaps, got 1 NaN"),
        (np.zeros((3, 5), int), "expected data of shape .* 4"),
    ],
)
def test_bad_votes_are_refused(key, votes, message):
    with pytest.raises(ValueError, match=message):
        kernel = GroupGibbs(grouped_square, likelihood=FEW)
        kernel.init(key, 0, None, (votes,), {"_gibbs_sites": {"alpha": jnp.array(1.0)}})


def test_maximum_likelihood_refuses_empty_data():
    with pytest.raises(ValueError, match="maximum_likelihood: expected at least one observation"):
        StrippedBeta().maximum_likelihood(np.zeros((0, 4), int), SQUARE)


def refused(model, message, *args, **options):
    kernel = GroupGibbs(model, likelihood=FEW, **options)
    with pytest.raises(ValueError, match=message):
        kernel.init(jax.random.key(0), 0, None, args, {"_gibbs_sites": {"alpha": jnp.array(1.0)}})


def one_field(
    x, *, tie=lambda phi, groups: phi[groups], size=4, atoms=None, fields=0.0, extra=None
):
    groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, size))
    with numpyro.plate("atoms", 5):
        phi = numpyro.sample("phi", dist.Uniform(0.1, 0.9) if atoms is None else atoms)
    if extra is not None:
        extra(phi)
    with numpyro.plate("items", len(x)):
        theta = tie(phi, groups)
        numpyro.sample("x", Ising.from_agreement(SQUARE, theta, fields), obs=x)


def test_agreements_that_are_not_atoms_of_labels_are_refused():
    refused(
        lambda x: one_field(x, tie=lambda phi, groups: 0.5 * phi[groups]),
        r"agreements phi\[groups\], got coupling",
        VOTES,
    )


def test_fields_are_refused():
    refused(lambda x: one_field(x, fields=0.3), "without fields, got fields up to 0.3", VOTES)


def test_another_site_that_depends_on_the_atoms_is_refused():
    def extra(phi):
        numpyro.sample("y", dist.Normal(phi[0], 1.0), obs=0.3)

    refused(lambda x: one_field(x, extra=extra), r"got \['y'\] too", VOTES)


def test_wrong_number_of_labels_is_refused():
    refused(
        lambda x: one_field(x, size=3, tie=lambda phi, groups: jnp.full(4, 0.5) * phi[groups[0]]),
        "one label per edge",
        VOTES,
    )


def test_atoms_of_different_distributions_are_refused():
    atoms = dist.Beta(jnp.arange(1.0, 6.0), 1.0)
    refused(lambda x: one_field(x, atoms=atoms), "atoms of one distribution", VOTES)


def test_model_without_a_field_is_refused():
    refused(lambda: numpyro.sample("z", dist.Normal()), "one latent ChineseRestaurantProcess")


def test_unknown_start_and_bad_estimates_are_refused():
    with pytest.raises(ValueError, match="start to be 'estimate' or 'params', got 'random'"):
        GroupGibbs(grouped, likelihood=FEW, start="random")
    with pytest.raises(ValueError, match=r"expected estimate to be a vector in \(0, 1\)"):
        StrippedBeta(estimate=(0.5, 1.0))
    with pytest.raises(ValueError, match=r"one estimate per edge \(4\), got 2"):
        StrippedBeta(estimate=(0.5, 0.5)).prepare(jnp.zeros((2, 5), jnp.int8), PATH)


def test_graph_changed_between_init_and_sample_is_refused(key):
    def model(graph, x):
        grouped(x, graph=graph, num_items=len(x))

    kernel = GroupGibbs(model, likelihood=FEW)
    kwargs = {"_gibbs_sites": {"alpha": jnp.array(1.0)}}
    state = kernel.init(key, 0, None, (SQUARE, VOTES), kwargs)
    with pytest.raises(ValueError, match="expected the static arguments of init"):
        kernel.sample(state, (PATH, jnp.zeros((3, 5), int)), kwargs)
