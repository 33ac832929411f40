"""Groups of whole potentials: invariance, the exact posterior, planted bugs, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from grouped_oracle import partition_p_value, posterior
from kernel_models import SQUARE, grouped_tables, mixture
from numpyro import handlers
from numpyro.infer import MCMC
from numpyro.infer.gibbs import with_conditioning

from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.graphs import grid
from jaxmrf.infer import ConcentrationGibbs, ExchangeMH, GroupExchange, MRFGibbs, group_exchange
from jaxmrf.testing import prior_invariance

CHAIN = grid((1, 3))
VOTES = jnp.array([[1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]])


def energy(values):
    """Log potential of all items: what labels, atoms and data have in common."""
    first, second = SQUARE.edges.T
    x = values["x"]
    edges = jnp.arange(SQUARE.num_edges)
    return values["tables"][values["groups"]][edges, x[:, first], x[:, second]].sum()


STATISTICS = {
    "energy": energy,
    "num_groups": lambda values: values["groups"].max() + 1,
    "agreement": lambda values: (
        values["tables"][0, 0, 0] + 1.0 * (values["x"][:, 0] == values["x"][:, 1]).sum()
    ),
}


def table_p_values(num_replicates=1000):
    kernel = GroupExchange(grouped_tables, num_proposals=1, num_value_moves=1, step_size=0.5)
    return prior_invariance(
        kernel,
        grouped_tables,
        "x",
        num_replicates=num_replicates,
        num_steps=4,
        statistics=STATISTICS,
    )


@pytest.mark.slow
def test_prior_of_grouped_tables_is_invariant():
    found = table_p_values()
    assert min(found.values()) > 1e-3 / len(found), found


def no_auxiliary(draws, current, proposed):
    return jnp.zeros(())


def no_new_group(
    key, labels, atoms, item, concentration, fresh, right=group_exchange._propose_label
):
    """A proposal that forgets the new group."""
    return right(key, labels, atoms, item, 0.0 * concentration, fresh)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bug"), [("log_auxiliary_ratio", no_auxiliary), ("_propose_label", no_new_group)]
)
def test_planted_bug_is_caught(name, bug, monkeypatch):
    monkeypatch.setattr(group_exchange, name, bug)
    found = table_p_values()
    assert min(found.values()) < 1e-6, found


def node_fields(x=None, y=None):
    """Fields of nodes in groups, behind a field and behind a number that sees empty atoms too."""
    groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, CHAIN.num_nodes))
    with numpyro.plate("atoms", 3):
        pull = numpyro.sample("pull", dist.Exponential(1.0))
    numpyro.sample("y", dist.Normal(pull[groups[1]] + pull.sum(), 1.0), obs=y)
    with numpyro.plate("items", 3):
        numpyro.sample("x", Ising(CHAIN, 0.4, pull[groups] - 1.0), obs=x)


@pytest.mark.slow
def test_prior_of_grouped_node_fields_is_invariant():
    found = prior_invariance(
        GroupExchange(node_fields, num_proposals=1, num_value_moves=1, step_size=0.7),
        node_fields,
        ["x", "y"],
        num_replicates=1000,
        num_steps=4,
        statistics={
            "total": lambda values: values["y"] - values["pull"].sum(),
            "energy": lambda values: (values["pull"][values["groups"]] * values["x"]).sum(),
            "num_groups": lambda values: values["groups"].max() + 1,
        },
    )
    assert min(found.values()) > 1e-3 / len(found), found


def tied(x, *, concentration=1.0, max_groups=4):
    groups = numpyro.sample("groups", ChineseRestaurantProcess(concentration, SQUARE.num_edges))
    with numpyro.plate("atoms", max_groups):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    numpyro.deterministic("theta", phi[groups])
    with numpyro.plate("items", len(x)):
        numpyro.sample("x", Ising.from_agreement(SQUARE, phi[groups]), obs=x)


@pytest.mark.slow
def test_posterior_equals_the_exact_one_on_a_cycle(key):
    truth = Ising.from_agreement(SQUARE, jnp.array([0.85, 0.3, 0.85, 0.3]))
    data = truth.sample(key, (10,))
    first, second = SQUARE.edges.T
    agreements = np.asarray(data[:, first] == data[:, second]).sum(0)
    table, probabilities, means = posterior(SQUARE.edges, 4, agreements, 10, 1.0, 10**6)
    mcmc = MCMC(
        GroupExchange(tied, num_proposals=2, num_value_moves=2, step_size=1.0),
        num_warmup=30,
        num_samples=1,
        num_chains=1000,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, data)
    draws = mcmc.get_samples()
    assert partition_p_value(draws["groups"], table, probabilities) > 1e-3
    error = draws["theta"].std(0) / np.sqrt(1000)
    assert (abs(draws["theta"].mean(0) - means) < 4 * error).all()
    extra = mcmc.last_state
    assert 0.05 < extra.accept_prob.mean() < 1 and 0.05 < extra.accept_labels.mean() < 1
    assert not extra.is_truncated.any()


@pytest.mark.slow
def test_capacity_reached_warns_with_the_capacity_to_ask_for(key):
    def crowded(x):
        tied(x, concentration=50.0, max_groups=2)

    mcmc = MCMC(GroupExchange(crowded), num_warmup=0, num_samples=2, progress_bar=False)
    with pytest.warns(UserWarning, match="raise the plate to 4"):
        mcmc.run(key, VOTES)
        jax.effects_barrier()
    assert bool(mcmc.last_state.is_truncated)
    assert mcmc.get_samples()["groups"].max() < 2


def test_walk_of_an_atom_has_the_ratio_of_its_priors_and_the_jacobian(key):
    prior = dist.Exponential(1.0).expand([3, 2]).to_event(1)
    atoms, fresh = prior.sample(key), prior.sample(jax.random.key(1))
    labels = jnp.array([0, 1, 0], jnp.int32)
    move = group_exchange._propose_atom(key, labels, atoms, jnp.array(1), 0.5, prior, fresh)
    np.testing.assert_array_equal(move.atoms[::2], atoms[::2])
    old, new = atoms[1], move.atoms[1]
    assert (old != new).all()
    expected = (old - new + jnp.log(new / old)).sum()  # d exp(u) / du = exp(u)
    np.testing.assert_allclose(move.log_prior_ratio, expected, rtol=1e-4)
    empty = group_exchange._propose_atom(key, labels, atoms, jnp.array(2), 0.5, prior, fresh)
    np.testing.assert_array_equal(empty.atoms, jnp.stack([atoms[0], atoms[1], fresh[2]]))
    assert float(empty.log_prior_ratio) == 0.0


def test_new_label_moves_whole_atoms_to_canonical_places(key):
    atoms = jnp.arange(8.0).reshape(4, 2)
    labels = jnp.array([0, 1, 1], jnp.int32)
    move = group_exchange._propose_label(key, labels, atoms, 0, 0.0, -atoms)  # no new group
    assert move.labels.tolist() == [0, 0, 0] and bool(move.is_counted)
    np.testing.assert_array_equal(move.atoms[0], atoms[1])
    move = group_exchange._propose_label(key, labels, atoms, 1, 1e9, -1 - atoms)
    assert move.labels.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(
        move.atoms, jnp.stack([atoms[0], -1 - atoms[2], atoms[1], -1 - atoms[3]])
    )


def test_init_params_are_unconstrained_alone_and_constrained_in_a_composite(key):
    start = {"groups": jnp.array([0, 1, 0, 1]), "phi": jnp.array([0.2, 0.4, 0.6, 0.8])}
    kernel = GroupExchange(tied)
    block = kernel.init(key, 0, start, (VOTES,), with_conditioning({}, {}))
    np.testing.assert_array_equal(block.z["phi"], start["phi"])
    assert block.z["groups"].tolist() == [0, 1, 0, 1] and int(block.num_groups) == 2
    alone = kernel.init(key, 0, start, (VOTES,), {})
    np.testing.assert_allclose(alone.z["phi"], jax.nn.sigmoid(start["phi"]), rtol=1e-6)
    assert kernel.get_diagnostics_str(alone) == "groups=2, acc. prob=0.00"


def test_block_runs_beside_those_of_concentration_and_fields(key):
    def model(x):
        alpha = numpyro.sample("alpha", dist.Gamma(2.0, 2.0))
        groups = numpyro.sample("groups", ChineseRestaurantProcess(alpha, 4))
        with numpyro.plate("atoms", 5):
            pair = numpyro.sample("pair", dist.Normal().expand([2]).to_event(1))
        shift = numpyro.sample("shift", dist.Normal())
        coupling, pull = pair[groups].T
        fields = shift + jnp.zeros(4).at[SQUARE.edges].add(pull[:, None])
        numpyro.sample("x", Ising(SQUARE, coupling, fields, max_configurations=1), obs=x)

    kernel = MRFGibbs(
        [
            (GroupExchange(model), ["groups", "pair"]),
            (ConcentrationGibbs(model), ["alpha"]),
            (ExchangeMH(model), ["shift"]),
        ]
    )
    assert "groups, pair -> GroupExchange: parametrise x, the kernel cancels log Z" in kernel.plan(
        VOTES[0]
    )

    def run(key):
        mcmc = MCMC(kernel, num_warmup=1, num_samples=2, progress_bar=False)
        mcmc.run(key, VOTES[0])
        return mcmc.get_samples()

    shapes = {name: leaf.shape for name, leaf in jax.eval_shape(run, key).items()}
    assert shapes == {"alpha": (2,), "groups": (2, 4), "pair": (2, 5, 2), "shift": (2,)}


def general(x, *, atoms=None, tie=lambda phi, groups: phi[groups], prior=None, extra=None):
    groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, 4))
    with numpyro.plate("atoms", 4):
        fn = dist.Normal() if atoms is None else atoms
        phi = numpyro.sample("phi", fn if prior is None else prior(groups))
    if extra is not None:
        extra()
    numpyro.sample("x", Ising(SQUARE, tie(phi, groups)), obs=x)


def scaled(x):
    with handlers.scale(scale=2.0):
        general(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            lambda x: mixture(x[:2, :3] * 1.0),
            r"one latent ChineseRestaurantProcess, .* got \[\] and",
        ),
        (
            lambda x: general(x, extra=lambda: numpyro.sample("z", dist.Normal())),
            r"one latent site of atoms, got \['groups'\] and \['phi', 'z'\]",
        ),
        (lambda x: general(x, tie=lambda *_: 0.3), "a random field whose parameters depend on"),
        (
            lambda x: general(x, atoms=dist.Normal(jnp.arange(4.0), 1.0)),
            r"atoms of one distribution in one plate, .* from parameters of shape \(4,\)",
        ),
        (lambda x: general(x, atoms=dist.Normal().mask(False)), "one distribution .*, masked"),
        (lambda x: general(x, atoms=dist.Poisson(1.0)), "continuous atoms, got discrete 'phi'"),
        (
            lambda x: general(x, prior=lambda groups: dist.Normal(groups.mean(), 1.0)),
            "independent a priori, got 'phi' whose prior depends on 'groups'",
        ),
        (scaled, r"their own weight, got \['x', 'groups', 'phi'\] inside"),
    ],
)
def test_model_it_cannot_serve_is_refused(model, message, key):
    with pytest.raises(ValueError, match=f"GroupExchange: expected .*{message}"):
        GroupExchange(model).init(key, 0, None, (VOTES,), {})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_proposals": 0}, "expected num_proposals to be a positive integer, got 0; pass 2"),
        ({"num_value_moves": 1.5}, "expected num_value_moves to be a positive integer, got 1.5"),
        ({"step_size": np.nan}, "expected step_size to be positive, got nan; pass 0.3"),
    ],
)
def test_wrong_option_is_refused(option, message):
    with pytest.raises(ValueError, match=message):
        GroupExchange(tied, **option)
