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
# # Tags in two layers
#
# Listeners tag artists, and a tag is given more often the better it fits. Which causes are behind
# the tags, and which kinds of artists behind the causes? Neither number is known. The model of
# Courville, Eck & Bengio (2009) has infinitely many of both, joined by noisy-ors, and is written
# here as an ordinary NumPyro model.

# %%
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

from jaxmrf.datasets import artist_tags
from jaxmrf.distributions import NoisyOrBinomial, infinite_features, noisy_or_layer
from jaxmrf.infer import FactorHierarchyGibbs, MRFGibbs, hierarchy_sites

is_small = os.environ.get("JAXMRF_NOTEBOOK_SIZE") == "small"
num_artists, num_tags, total = (10, 6, 10) if is_small else (120, 24, 10)
num_warmup, num_samples = (3, 3) if is_small else (400, 400)
capacities = (24, 32) if is_small else (32, 96)

# %% [markdown]
# ## Data
#
# The most frequent tags of artists of the HetRec 2011 Last.fm data (for non-commercial use), as
# counts out of ten. Without the folder of data sets, three causes of our own take their place.

# %%
folder = Path(os.environ.get("JAXMRF_DATA", "../../shared/data"))
rng = np.random.default_rng(0)
if (folder / "lastfm").is_dir() and not is_small:
    found = artist_tags(folder)
    best = np.argsort(-found.train.sum(axis=0))[:num_tags]
    counts = np.round(found.train[:num_artists, best] / 100 * total).astype(int)
    names = [found.tags[index] for index in best]
else:
    causes = rng.beta(0.3, 1.0, (3, num_tags))
    has_cause = rng.random((num_artists, 3)) < 0.4
    chance = 1 - np.prod(1 - has_cause[..., None] * causes, axis=1)
    counts = rng.binomial(total, chance)
    names = [f"tag {index}" for index in range(num_tags)]
is_hidden = rng.random(counts.shape) < 0.1
print(f"{num_artists} artists, {num_tags} tags, {is_hidden.sum()} cells hidden")

# %% [markdown]
# ## The model
#
# `infinite_features` and `noisy_or_layer` write sites named `upper` and `lower`, their sticks and
# weights. A capacity is the size of a buffer: features without a slot are integrated out, and a
# chain that needs more slots stops and says how many.


# %%
def tags(counts, is_observed):
    upper, lower = capacities
    alpha = numpyro.sample("alpha", dist.Gamma(2.0, 2.0).expand([2]).to_event(1))
    kinds = infinite_features(
        "upper", num_objects=len(counts), capacity=upper, concentration=alpha[0]
    )
    causes, _ = noisy_or_layer(
        "lower", kinds, capacity=lower, concentration=alpha[1], has_leak=True
    )
    w = numpyro.sample("w", dist.Beta(0.5, 1.5).expand([lower, counts.shape[1]]).to_event(2))
    with numpyro.plate("artists", len(counts)):
        likelihood = NoisyOrBinomial(causes, w, total, is_observed=is_observed)
        numpyro.sample("x", likelihood, obs=counts)


kernel = MRFGibbs(
    [(FactorHierarchyGibbs(tags), hierarchy_sites), (NUTS(tags, max_tree_depth=5), None)]
)
arguments = jnp.asarray(counts), jnp.asarray(~is_hidden)
print(kernel.plan(*arguments))
mcmc = MCMC(kernel, num_warmup=num_warmup, num_samples=num_samples, progress_bar=False)
mcmc.run(jax.random.key(0), *arguments)
samples = mcmc.get_samples()
num_upper, num_lower = (samples[name].any(axis=1).sum(axis=-1) for name in ("upper", "lower"))
print(f"{num_upper.mean():.1f} kinds of artists, {num_lower.mean():.1f} causes")

# %% [markdown]
# ## Hidden cells
#
# The model predicts counts that it has not seen better than the average of their tag does.

# %%
p = jnp.stack([-jnp.expm1(NoisyOrBinomial(z, w).log_off) for z, w in
               zip(samples["lower"], samples["w"], strict=True)]).mean(axis=0)  # fmt: skip
share = (counts * ~is_hidden).sum(axis=0) / total / (~is_hidden).sum(axis=0)
for name, guess in {"average": np.broadcast_to(share, counts.shape), "model": p}.items():
    error = np.abs(np.asarray(guess) * total - counts)[is_hidden].mean()
    print(f"{name}: mean error {error:.2f} of {total}")

# %% [markdown]
# ## The picture
#
# The causes of the last draw that most artists have: how likely each makes every tag.

# %%
used = np.asarray(samples["lower"][-1].sum(axis=0))
most = np.argsort(-used)[: min(12, (used > 0).sum())]
fig, ax = plt.subplots(figsize=(10, 4))
image = ax.imshow(np.asarray(samples["w"][-1])[most], aspect="auto", cmap="viridis", vmin=0, vmax=1)
ax.set_xticks(range(num_tags), names, rotation=60, ha="right", fontsize=8)
ax.set_yticks(range(len(most)), [f"{used[k]} artists" for k in most])
fig.colorbar(image, label="probability that the cause gives the tag")
plt.tight_layout()
plt.show()
