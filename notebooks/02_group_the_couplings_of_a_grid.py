# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Group the couplings of a grid
#
# Sixty couplings of a 6x6 Ising field take eight different values, and a few hundred observations
# are all we have. Estimated one by one the couplings are noisy. How much better is it to learn at
# the same time which of them are equal, and how much depends on the likelihood that tells us?
# One model, four likelihoods: only one argument changes.

# %%
import os

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC

from jaxmrf import diagnostics, plots
from jaxmrf.datasets import grouped_agreements
from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.exact import transfer
from jaxmrf.graphs import grid
from jaxmrf.infer import (
    ConcentrationGibbs,
    ExactLikelihood,
    GroupGibbs,
    LinearResponse,
    MRFGibbs,
    StrippedBeta,
)
from jaxmrf.learning import fit_likelihood, no_fields
from jaxmrf.models import Ising as IsingModel
from jaxmrf.models import agreements_from_couplings, couplings_from_agreements

is_small = os.environ.get("JAXMRF_NOTEBOOK_SIZE") == "small"
side, num_items = (3, 200) if is_small else (6, 500)
num_warmup, num_samples = (8, 10) if is_small else (150, 600)

# %% [markdown]
# ## The field and its data
#
# Every edge joins one of eight groups at random; a group's agreement parameter is uniform: 0 is
# opposition, 1/2 independence, 1 lockstep. On a grid this narrow draws are exact.

# %%
graph = grid((side, side))
theta, groups = grouped_agreements(np.random.default_rng(7), graph.num_edges, num_groups=8)
truth = IsingModel(couplings_from_agreements(jnp.asarray(theta)), jnp.zeros(graph.num_nodes))
data = np.asarray(transfer.sample(jax.random.key(0), truth, graph, num_samples=num_items))

# %% [markdown]
# ## One by one: the exact maximum likelihood estimate

# %%
fit = fit_likelihood(data, graph, parameters=jnp.zeros(graph.num_edges), build=no_fields(graph))
estimates = {"truth": theta}
estimates["one by one"] = np.asarray(agreements_from_couplings(fit.model.couplings))


# %% [markdown]
# ## In groups: one model


# %%
def grouped(x):
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    labels = numpyro.sample("groups", ChineseRestaurantProcess(alpha, graph.num_edges))
    with numpyro.plate("atoms", 32):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    agreements = numpyro.deterministic("theta", phi[labels])
    with numpyro.plate("items", len(x)):
        numpyro.sample("x", Ising.from_agreement(graph, agreements), obs=x)


# %% [markdown]
# and three likelihoods: the approximation of Liu & Page (2013), which lets every edge see its own
# estimate alone; the same with the pull of the neighbourhood put right by linear response, on a
# graph of any size; and the exact one, on narrow graphs.

# %%
likelihoods = {
    "stripped Beta": StrippedBeta(),
    "linear response": LinearResponse(num_chains=150),
    "exact": ExactLikelihood(),
}
counts = {}
for name, likelihood in likelihoods.items():
    blocks = [
        (GroupGibbs(grouped, likelihood=likelihood), ["groups", "phi"]),
        (ConcentrationGibbs(grouped), ["alpha"]),
    ]
    mcmc = MCMC(
        MRFGibbs(blocks), num_warmup=num_warmup, num_samples=num_samples, progress_bar=False
    )
    mcmc.run(jax.random.key(1), data)
    samples = mcmc.get_samples()
    estimates[name] = np.asarray(samples["theta"].mean(axis=0))
    counts[name] = diagnostics.num_groups(np.asarray(samples["groups"]))

# %% [markdown]
# ## The picture
#
# Blue edges agree, red ones disagree. The error is the mean distance of an agreement parameter
# from the truth.

# %%
figure, axes = plt.subplots(1, len(estimates), figsize=(15, 3.4), layout="constrained")
for ax, (name, values) in zip(axes, estimates.items(), strict=True):
    plots.lattice_agreements(graph.edges, (side, side), values, ax=ax)
    error = np.abs(values - theta).mean()
    ax.set_title(name if name == "truth" else f"{name}\nerror {error:.4f}")

# %% [markdown]
# And how many groups each of them sees; there are eight, of which

# %%
print(len(np.unique(groups)), "are in use")
figure, axes = plt.subplots(1, 3, figsize=(11, 2.6), sharex=True, layout="constrained")
for ax, (name, values) in zip(axes, counts.items(), strict=True):
    plots.groups_histogram(values, ax=ax).set_title(name)
