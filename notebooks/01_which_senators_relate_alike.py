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
# # Which senators relate alike?
#
# Ninety-nine US senators voted on hundreds of questions in 2005 and 2006. Some pairs vote alike
# almost always, some hardly more often than chance. A Markov random field has one *agreement
# parameter* for each related pair, hundreds of numbers from a few hundred votes. Are they really
# hundreds of different numbers, or a handful of *kinds* of relation? Liu & Page (NIPS 2013) let a
# Dirichlet process decide. Here their model is an ordinary NumPyro model.

# %%
import os

import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from jaxmrf import diagnostics, plots
from jaxmrf.datasets import senate109
from jaxmrf.distributions import ChineseRestaurantProcess, Ising
from jaxmrf.infer import GroupGibbs, MRFGibbs, StrippedBeta
from jaxmrf.learning import sparse_graph
from jaxmrf.models import Ising as IsingModel
from jaxmrf.models import couplings_from_agreements, log_pseudolikelihood

is_small = os.environ.get("JAXMRF_NOTEBOOK_SIZE") == "small"

# %% [markdown]
# ## The votes, and who is related to whom
#
# A vote is a row of zeros (nay) and ones (yea). The graph joins the pairs that remain dependent
# when all others are known, by the log-determinant relaxation of Banerjee et al. (2008).

# %%
senate = senate109()
train, test = senate.session1, senate.session2
graph = sparse_graph(np.concatenate([train, test]), num_edges=279).graph
print(f"{train.shape[0]} votes of 2005, {test.shape[0]} of 2006, {graph}")

# %% [markdown]
# ## The model
#
# Every edge belongs to a group, every group has an agreement parameter: 0.5 is independence, 1 is
# lockstep. The number of groups is not given.


# %%
def grouped_field(graph, votes, max_groups=64):
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    groups = numpyro.sample("groups", ChineseRestaurantProcess(alpha, graph.num_edges))
    with numpyro.plate("atoms", max_groups):
        phi = numpyro.sample("phi", dist.Uniform(0.0, 1.0))
    theta = numpyro.deterministic("theta", phi[groups])
    with numpyro.plate("votes", len(votes)):
        numpyro.sample("x", Ising.from_agreement(graph, theta), obs=votes)


# %% [markdown]
# The normaliser of the field is out of reach (2^99 terms), so no gradient can move the groups. A
# `GroupGibbs` block updates groups and atoms, NUTS the concentration; the plan says who does what.

# %%
blocks = [
    (GroupGibbs(grouped_field, likelihood=StrippedBeta()), ["groups", "phi"]),
    (NUTS(grouped_field), ["alpha"]),
]
kernel = MRFGibbs(blocks)
print(kernel.plan(graph, train))

# %%
mcmc = MCMC(
    kernel,
    num_warmup=20 if is_small else 500,
    num_samples=40 if is_small else 1500,
    num_chains=2,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(0), graph, train)
samples = mcmc.get_samples()
counts = diagnostics.num_groups(np.asarray(samples["groups"]))
print(f"{graph.num_edges} relations are of {counts.mean():.0f} +- {counts.std():.0f} kinds")


# %% [markdown]
# ## Does it predict the next session better?
#
# The judge is the log pseudo-likelihood of the votes of 2006, which the sampler has not seen.


# %%
def score(agreements, votes):
    couplings = couplings_from_agreements(agreements)
    model = IsingModel(couplings, np.zeros(graph.num_nodes, np.float32))
    return float(log_pseudolikelihood(model, graph, votes).sum())


mle = StrippedBeta().maximum_likelihood(train, graph)
theta = samples["theta"].mean(axis=0)
print(f"            {'2005 (train)':>14} {'2006 (test)':>14}")
for name, agreements in [("one by one", mle), ("grouped", theta)]:
    print(f"{name:11} {score(agreements, train):14.1f} {score(agreements, test):14.1f}")

# %% [markdown]
# ## The picture
#
# Edges of one colour are of one kind.

# %%
labels = diagnostics.representative_grouping(np.asarray(samples["groups"][::10]))
figure, ax = plt.subplots(figsize=(9, 6), dpi=75)
plots.voting_network(graph, senate.senators, senate.parties, labels, np.asarray(theta), ax=ax)
plt.show()
