r"""Models whose discrete sites are summed out exactly, and those sites given the others.

.. math:: p(x) = \sum_z p(z, x) = \exp\big(\log Z(x)\big)

The sum is one elimination of the variables of a factor graph, so it does not need a dimension for
each site, and NUTS or variational inference run on what is left. Reference: Obermeyer et al.,
"Tensor variable elimination for plated factor graphs", ICML 2019.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from numpyro.primitives import _PYRO_STACK, Messenger

from jaxmrf.exact import draws, junction_tree
from jaxmrf.infer._factor_tables import CompiledSites, compile_sites

__all__ = ["MarginalizedModel", "marginalize", "marginals", "sample_marginalized"]

MAX_MEMORY = 2**30
"""Largest table, in bytes of double precision."""
_BATCH = 128


def marginalize(model, sites=None, *, max_memory: float = MAX_MEMORY) -> "MarginalizedModel":
    """The model without its discrete latent sites, which are summed out exactly.

    What is left is an ordinary NumPyro model with one ``numpyro.factor`` more. Every element of a
    discrete site is a variable of a factor graph; found by tracing, which terms it enters, so that
    chains, trees, mixtures and narrow grids cost what their treewidth says, however the model is
    written (loops, plates, indexing, ``scan``). Latent random fields and factor graphs of
    ``jaxmrf.distributions`` are taken apart as well. Sites that depend on the discrete ones stay,
    with log-probability 0, as it is in the factor; deterministic sites that do are left out.
    Pointwise log-likelihoods and predictions given data are those of the model itself at the draws
    of ``sample_marginalized``.

    Args:
        model: The model.
        sites: Names of the sites to sum out; by default all discrete latent sites. Name them where
            data are discrete and the model is also run without data.
        max_memory: Largest table, in bytes of double precision.

    Raises:
        ValueError: When the model runs: if a site has no finite support, control flow needs a
            value, or a table would be too large.

    >>> import numpyro.distributions as dist
    >>> def model(x):
    ...     mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event())
    ...     with numpyro.plate("items", 3):
    ...         label = numpyro.sample("label", dist.Bernoulli(0.5))
    ...         numpyro.sample("x", dist.Normal(mean[label], 1.0), obs=x)
    >>> data, values = jnp.array([0.0, 0.1, 3.0]), {"mean": jnp.array([0.0, 3.0])}
    >>> round(float(numpyro.infer.util.log_density(marginalize(model), (data,), {}, values)[0]), 3)
    -11.142
    """
    return MarginalizedModel(model, sites, max_memory)


class MarginalizedModel:
    """What ``marginalize`` returns: a model, as a value that pickles.

    Args:
        model: The model.
        sites: Names of the sites to sum out; None for all discrete latent sites.
        max_memory: Largest table, in bytes of double precision.
    """

    def __init__(self, model, sites=None, max_memory: float = MAX_MEMORY):
        self.model = model
        self.sites = None if sites is None else tuple(sites)
        self.max_memory = max_memory

    def __call__(self, *args, **kwargs):
        """Run the model; the discrete sites are drawn and hidden, or at their first value."""
        compiled = self.compile(*args, **kwargs)
        _check_surroundings(compiled)
        model, key = self.model, numpyro.prng_key() if _PYRO_STACK else None
        if key is None:
            states = jnp.asarray(compiled.layout.states[0])
            data = {site.name: site.values(states) for site in compiled.sites}
            model = handlers.substitute(model, data=data)
        hiding = _Hiding(compiled)
        with hiding:
            result = model(*args, **kwargs)
        factor_graph, constant = compiled.factor_graph(hiding.values)
        log_z = junction_tree.log_z(factor_graph, compiled.plan)
        numpyro.factor(f"{compiled.sites[0].name}_summed_out", log_z + constant)
        return result

    def compile(self, *args, **kwargs) -> CompiledSites:
        """The factor graph of the discrete sites, for the model's arguments."""
        return compile_sites(self.model, self.sites, args, kwargs, max_memory=self.max_memory)


def sample_marginalized(
    key, model, posterior_samples: dict, model_args: tuple = (), model_kwargs: dict | None = None
) -> dict[str, jax.Array]:
    """Exact draws of the sites that were summed out, one for each posterior sample.

    Args:
        key: Random key.
        model: What ``marginalize`` returned, or a model, of which all discrete sites are meant.
        posterior_samples: Samples of all other latent sites by name, on a leading axis; without
            any, one draw.
        model_args: Arguments of the model, its data among them.
        model_kwargs: Its keyword arguments.

    Raises:
        ValueError: As the model does, or if samples of a site are missing.
    """

    def draw(key, compiled, factor_graph):
        states = draws.sample(key, factor_graph, compiled.plan, num_samples=1)[0]
        return {site.name: site.values(states) for site in compiled.sites}

    return _for_each(
        "sample_marginalized", draw, key, model, posterior_samples, model_args, model_kwargs
    )


def marginals(
    model, posterior_samples: dict, model_args: tuple = (), model_kwargs: dict | None = None
) -> dict[str, jax.Array]:
    """Exact probabilities of every value of every element of the sites that were summed out.

    Args:
        model: As for ``sample_marginalized``.
        posterior_samples: As for ``sample_marginalized``.
        model_args: Arguments of the model, its data among them.
        model_kwargs: Its keyword arguments.

    Returns:
        For every site, the leading axis, the axes of its value, and one axis of its values (with
        probability 0 where an element has fewer).

    Raises:
        ValueError: As for ``sample_marginalized``.
    """

    def solve(_, compiled, factor_graph):
        flat = junction_tree.solve(factor_graph, compiled.plan).nodes.flat
        starts = compiled.layout.hypergraph.node_starts
        found = {}
        for site in compiled.sites:
            states, counts = np.arange(len(site.support)), np.array(site.num_states, int)[:, None]
            own = starts[site.start : site.start + site.size][:, None]
            places = own + np.minimum(states, counts - 1)
            probs = jnp.where(states < counts, flat[places], 0)
            found[site.name] = probs.reshape((*site.shape, len(states)))
        return found

    key = jax.random.key(0)  # not used
    return _for_each("marginals", solve, key, model, posterior_samples, model_args, model_kwargs)


def _for_each(caller, function, key, model, samples, model_args, model_kwargs):
    """A function of the factor graph at every posterior sample."""
    if not isinstance(model, MarginalizedModel):
        model = marginalize(model)
    compiled = model.compile(*model_args, **(model_kwargs or {}))
    missing = [name for name in compiled.rest if name not in samples]
    if missing:
        raise ValueError(
            f"{caller}: expected samples of every other latent site, got none of "
            f"{', '.join(map(repr, missing[:8]))}; pass mcmc.get_samples()"
        )
    rest = {name: jnp.asarray(samples[name]) for name in compiled.rest}

    def one(inputs):
        key, values = inputs
        return function(key, compiled, compiled.factor_graph(values)[0])

    if not rest:
        return jax.jit(one)((key, rest))
    count = len(next(iter(rest.values())))
    num_batches = -(-count // _BATCH)
    size = -(-count // num_batches)
    # the first samples once more, so that all batches are of one size and run one program
    places = np.arange(num_batches * size) % count
    batches = jax.tree.map(
        lambda x: x[places].reshape((num_batches, size, *x.shape[1:])),
        (jax.random.split(key, count), rest),
    )
    found = jax.jit(partial(jax.lax.map, jax.vmap(one)))(batches)
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:]))[:count], found)


class _Hiding(Messenger):
    """Hides the discrete sites, and moves what depends on them into the factor."""

    def __init__(self, compiled: CompiledSites):
        self.compiled = compiled
        self.hidden = {site.name for site in compiled.sites} | compiled.deterministic
        self.values: dict[str, Any] = {}
        super().__init__(None)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Stop hidden sites here; take the log-probability of moved ones."""
        name = msg.get("name")
        if msg["type"] in ("sample", "deterministic") and name in self.hidden:
            msg["stop"] = True
            is_drawn = msg["type"] == "sample" and msg["value"] is None
            if is_drawn and msg["kwargs"]["rng_key"] is None:
                msg["kwargs"]["rng_key"] = numpyro.prng_key()
        elif msg["type"] == "sample" and name in self.compiled.moved:
            msg["fn"] = msg["fn"].mask(False)

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        """Keep the values of which the factor is a function."""
        if msg.get("name") in self.compiled.rest:
            self.values[msg["name"]] = msg["value"]


def _check_surroundings(compiled: CompiledSites) -> None:
    """Raise for handlers around the model that the sum would not see."""
    names = {site.name for site in compiled.sites}
    for handler in _PYRO_STACK:
        if isinstance(handler, numpyro.plate):
            raise ValueError(
                "marginalize: expected the model outside of plates, got it in "
                f"{handler.name!r}; write the plate inside the model"
            )
        data = getattr(handler, "data", None)
        given = sorted(names & set(data)) if isinstance(data, dict) else []
        if given:
            raise ValueError(
                f"marginalize: expected no value for a site that is summed out, got one for "
                f"{given[0]!r}; condition the model before, or use the model itself"
            )
