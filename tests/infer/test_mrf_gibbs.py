import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from kernel_models import SQUARE, field_and_mixture, hidden_field, mixture
from numpyro.infer import HMC, MCMC, NUTS, CustomGibbs, Gibbs
from numpyro.infer.gibbs import discrete_latent_sites

from jaxmrf.distributions import Ising
from jaxmrf.graphs import Graph, grid
from jaxmrf.infer import ExchangeMH, LatentFieldGibbs, MRFGibbs, PlateGibbs, mrf_gibbs
from jaxmrf.infer._block import BlockKernel
from jaxmrf.testing import prior_invariance

MODEL = field_and_mixture
X, Y = jnp.array([1, 1, 0, 1]), jnp.array([0.3, 2.1])


def short_hmc(model):
    return HMC(model, step_size=0.4, num_steps=3, trajectory_length=None, adapt_step_size=False)


def three_blocks(model=MODEL):
    return MRFGibbs(
        [
            (ExchangeMH(model, num_moves=2, step_size=0.7), ["coupling"]),
            (PlateGibbs(model), discrete_latent_sites),
            (short_hmc(model), None),
        ]
    )


def hidden_blocks(model=hidden_field):
    return MRFGibbs(
        [
            (ExchangeMH(model, num_moves=2, step_size=0.7), ["coupling"]),
            (LatentFieldGibbs(model), ["z"]),
            (short_hmc(model), ["height"]),
        ]
    )


def two_blocks(model=hidden_field):
    return MRFGibbs([(short_hmc(model), ["coupling", "height"]), (LatentFieldGibbs(model), ["z"])])


def run(kernel, *args, key=None, steps=4, **options):
    options = {"num_warmup": steps, "num_samples": steps, "progress_bar": False} | options
    mcmc = MCMC(kernel, **options)
    mcmc.run(jax.random.key(0) if key is None else key, *args)
    return mcmc


def test_plan_says_who_updates_what_and_why():
    assert three_blocks().plan(X, Y) == "\n".join(
        [
            "MRFGibbs: 3 blocks",
            "  coupling -> ExchangeMH: parametrises x, the kernel cancels log Z",
            "  z -> PlateGibbs: no field depends on it",
            "  scale -> HMC: no field depends on it",
            "  field x: observed Ising of 4 nodes, log Z out of reach, left out where constant",
        ]
    )
    assert "z -> LatentFieldGibbs: updates the field z" in hidden_blocks().plan(jnp.zeros(4))


@pytest.mark.slow
def test_posterior_of_all_blocks_is_invariant():
    p_values = prior_invariance(
        three_blocks(),
        MODEL,
        ["x", "y"],
        num_replicates=2000,
        num_steps=4,
        seed=3,
        statistics={"z in y": lambda values: jnp.sum(values["z"] * values["y"])},
    )
    assert p_values.keys() == {"coupling", "scale", "z", "z in y"}
    assert min(p_values.values()) > 1e-3 / 4


def test_posterior_with_a_latent_field_is_invariant():
    p_values = prior_invariance(
        hidden_blocks(),
        hidden_field,
        "y",
        num_replicates=2000,
        num_steps=4,
        seed=4,
        statistics={"z in y": lambda values: jnp.sum(values["z"] * values["y"])},
    )
    assert p_values.keys() == {"coupling", "height", "z", "z in y"}
    assert min(p_values.values()) > 1e-3 / 4


@pytest.mark.slow
def test_normaliser_left_out_where_it_matters_is_caught(monkeypatch):
    """Every normaliser stripped, none compensated: the error that the owners' check prevents."""
    monkeypatch.setattr(mrf_gibbs, "compensates", lambda kernel: False)
    find = mrf_gibbs.find_owners
    monkeypatch.setattr(
        mrf_gibbs, "find_owners", lambda *args: find(*args)._replace(stripped=("z",))
    )
    kernel = two_blocks()
    p_values = prior_invariance(kernel, hidden_field, "y", num_replicates=2000, num_steps=4)
    assert p_values["coupling"] < 1e-6


def test_tractable_field_keeps_its_normaliser_under_nuts():
    kernel = two_blocks()
    plan = kernel.plan(jnp.zeros(4))
    assert "coupling, height -> HMC: parametrise z, log Z is summed" in plan
    assert "field z: latent Ising of 4 nodes, log Z exact, kept" in plan


@pytest.mark.slow
def test_posterior_of_a_tractable_field_under_hmc_is_invariant():
    kernel = two_blocks()
    p_values = prior_invariance(kernel, hidden_field, "y", num_replicates=2000, num_steps=4)
    assert min(p_values.values()) > 1e-3 / 3


def test_blocks_that_compensate_see_the_normaliser_and_others_do_not(key):
    kernel = three_blocks()
    jax.eval_shape(lambda key: kernel.init(key, 0, None, (X, Y), {}), key)
    exchange, plate, hmc = (block for block, _ in kernel._inner.blocks)
    assert exchange.model.args == (MODEL,)
    for block in (plate, hmc):
        assert block.model.args[0].sites == ("x",)
        assert block.model.args[0].model is MODEL


@pytest.mark.slow
def test_statistics_reach_arviz_and_the_summary(capsys):
    arviz = pytest.importorskip("arviz")
    kernel = three_blocks()
    assert kernel.default_fields == ("z", "accept_prob", "diverging")
    mcmc = run(kernel, X, Y, num_chains=2, chain_method="vectorized")
    data = arviz.from_numpyro(mcmc, log_likelihood=False)
    assert data.sample_stats["acceptance_rate"].shape == (2, 4, 2)  # two blocks have one
    assert data.sample_stats["diverging"].dtype == bool
    assert data.posterior["z"].dims == ("chain", "draw", "items")
    with np.errstate(invalid="ignore"):  # a site may not move in four draws
        mcmc.print_summary()
    assert "Number of divergences: 0" in capsys.readouterr().out


def test_state_names_statistics_of_its_blocks_only(key):
    kernel = three_blocks()
    state = kernel.init(key, 0, None, (X, Y), {})
    assert state.diverging.shape == ()
    assert state.accept_prob.shape == (2,)
    assert state.factor.shape == (1, 1)
    with pytest.raises(AttributeError, match="MRFGibbsState has no statistic 'energies'"):
        _ = state.energies


@pytest.mark.slow
def test_progress_bar_shows_every_block(key, monkeypatch, capsys):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    kernel = three_blocks()
    mcmc = run(kernel, X, Y, progress_bar=True)
    assert mcmc.progress_bar
    text = kernel.get_diagnostics_str(mcmc.last_state)
    assert text.startswith("exchange acc. prob=0.")
    assert "| 3 steps of size 4.00e-01. acc. prob=" in text
    assert "exchange acc. prob=" in capsys.readouterr().err


@pytest.mark.slow
def test_runs_as_a_block_of_numpyros_composite(key):
    inner = MRFGibbs([(ExchangeMH(MODEL), ["coupling"]), (PlateGibbs(MODEL), None)])
    outer = Gibbs([(inner, ["coupling", "z"]), (short_hmc(MODEL), ["scale"])])
    with pytest.raises(NotImplementedError, match="MRFGibbs"):  # numpyro strips no normaliser
        run(outer, X, Y, steps=1)
    outer = MRFGibbs([(inner, ["coupling", "z"]), (short_hmc(MODEL), ["scale"])])
    mcmc = run(outer, X, Y)
    assert mcmc.get_samples().keys() == {"coupling", "scale", "z"}
    assert len(np.unique(mcmc.get_samples()["scale"])) > 1
    assert mcmc.last_state.accept_prob.shape == (2,)


@pytest.mark.parametrize("is_block", [False, True])
def test_init_params_are_unconstrained_alone_and_constrained_in_a_composite(is_block, key):
    values = {"coupling": jnp.array(0.5), "scale": jnp.array(2.0), "z": jnp.array([1, 0])}
    kernel = three_blocks()
    kwargs = {"_gibbs_sites": {}} if is_block else {}
    state = kernel.init(key, 0, values, (X, Y), kwargs)
    found = kernel.get_constrain_fn((X, Y), {})(state.z)
    np.testing.assert_allclose(found["scale"], 2.0 if is_block else np.exp(2.0), rtol=1e-5)
    np.testing.assert_allclose(found["coupling"], 0.5, rtol=1e-5)
    np.testing.assert_array_equal(found["z"], [1, 0])


def on_graph(graph, x):
    coupling = numpyro.sample("coupling", dist.Normal(0, 1))
    numpyro.sample("x", Ising(graph, coupling), obs=x)


def test_graph_that_changed_between_init_and_sample_is_refused(key):
    for kernel in (ExchangeMH(on_graph), MRFGibbs([(ExchangeMH(on_graph), None)])):
        state = kernel.init(key, 0, None, (SQUARE, X), {})
        kernel.sample(state, (grid((2, 2)), X), {})  # an equal graph is the same graph
        name = type(kernel).__name__
        other = Graph(4, [(0, 1), (1, 2), (2, 3), (0, 3)])
        with pytest.raises(
            ValueError,
            match=rf"{name}.sample: expected the static arguments of init, Graph\(num_nodes=4, "
            r"num_edges=4\), got another Graph\(num_nodes=4, num_edges=4\) as argument \[0\]; run",
        ):
            kernel.sample(state, (other, X), {})
        with pytest.raises(ValueError, match=r"expected the static arguments of init, PyTreeDef"):
            kernel.sample(state, (SQUARE, X), {"x": X})


def gibbs_fn(rng_key, gibbs_sites, hmc_sites):
    return {"coupling": jax.random.normal(rng_key)}


def test_update_without_a_model_may_own_parameters(key):
    kernel = MRFGibbs(
        [
            (CustomGibbs(gibbs_fn), ["coupling"]),
            (short_hmc(MODEL), ["scale"]),
            (PlateGibbs(MODEL), ["z"]),
        ]
    )
    assert "coupling -> CustomGibbs: parametrises x, by an update of its own" in kernel.plan(X, Y)
    assert len(np.unique(run(kernel, X, Y).get_samples()["coupling"])) == 4


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            [
                (NUTS(MODEL), ["coupling", "scale"]),
                (PlateGibbs(MODEL), None),
            ],
            r"expected the parameters of the intractable field 'x' in a block that cancels its "
            r"normaliser, got \['coupling'\] owned by NUTS; give them to ExchangeMH or GroupGibbs",
        ),
        (
            [
                (ExchangeMH(MODEL), ["coupling", "mean"]),
                (NUTS(MODEL), None),
            ],
            r"expected blocks of latent sites, got \['mean'\]; name some of \['coupling', 'scale'",
        ),
        (
            [
                (ExchangeMH(MODEL), ["coupling"]),
                (NUTS(MODEL), ["coupling"]),
            ],
            r"expected every site in one block, got \['coupling'\] in two; name them once",
        ),
        (
            [(ExchangeMH(MODEL), ["coupling"]), (NUTS(MODEL), ["scale"])],
            r"expected a block for every latent site, got none for \['z'\]; add a block, or pass",
        ),
    ],
)
def test_wrong_blocks_are_refused(blocks, message, key):
    kernel = MRFGibbs(blocks)
    with pytest.raises(ValueError, match=f"MRFGibbs: {message}"):
        kernel.init(key, 0, None, (X, Y), {})
    with pytest.raises(ValueError, match=f"MRFGibbs: {message}"):
        kernel.plan(X, Y)


def test_blocks_of_different_models_are_refused():
    with pytest.raises(ValueError, match="MRFGibbs: expected kernels built on one model, got"):
        MRFGibbs([(ExchangeMH(MODEL), None), (PlateGibbs(mixture), ["z"])])
    with pytest.raises(ValueError, match=r"expected kernels built on one model, got \[\]; build"):
        MRFGibbs([])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"mean": 0.0}, r"of latent sites, got \['mean'\]; drop them"),
        ({"height": 0.0}, r"for all or none of \['coupling', 'height'\], which NUTS owns, got"),
    ],
)
def test_wrong_init_params_are_refused(params, message, key):
    kernel = MRFGibbs([(LatentFieldGibbs(hidden_field), ["z"]), (NUTS(hidden_field), None)])
    with pytest.raises(ValueError, match=f"MRFGibbs.init: expected init_params {message}"):
        kernel.init(key, 0, params, (jnp.zeros(4),), {})


class FullState(NamedTuple):
    z: dict
    is_truncated: jax.Array
    rng_key: jax.Array


class FullBuffer(BlockKernel):
    """A kernel whose buffer is full from its third step on."""

    def truncation_message(self):
        return "FullBuffer: all 2 slots in use; raise the plate to 4"

    def _prepare(self, model_args, model_kwargs):
        pass

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        return FullState({"a": jnp.zeros(())}, jnp.array(False), rng_key)

    def _sample_one(self, state, model_args, model_kwargs):
        z = {"a": state.z["a"] + 1}
        return FullState(z, z["a"] > 2, jax.random.split(state.rng_key)[0])


def one_site():
    numpyro.sample("a", dist.Normal(0, 1))


@pytest.mark.parametrize("method", ["sequential", "vectorized", jax.vmap])
@pytest.mark.parametrize("make", [FullBuffer, lambda model: MRFGibbs([(FullBuffer(model), None)])])
def test_full_buffer_warns_whatever_the_chain_method(make, method):
    kernel = make(one_site)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(kernel, steps=1, num_chains=2, chain_method=method)
        jax.effects_barrier()
    with pytest.warns(UserWarning, match="FullBuffer: all 2 slots in use; raise the plate to 4"):
        run(kernel, steps=2, num_chains=2, chain_method=method)
        jax.effects_barrier()
