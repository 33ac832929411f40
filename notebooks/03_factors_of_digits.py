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
# # Factors of digits
#
# Which strokes make a handwritten 3, and which go together? An Indian buffet process gives each
# picture some of infinitely many factors, each with a weight of its own. The infinite factor
# hierarchy of Courville, Eck & Bengio (2009) adds infinitely many factors of the factors.

# %%
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from jaxmrf.nonparametric import factor_hierarchy, gaussian_factors
from jaxmrf.nonparametric import factor_hierarchy_gibbs as hierarchy_gibbs
from jaxmrf.nonparametric.factor_hierarchy import LayerPrior

is_small = os.environ.get("JAXMRF_NOTEBOOK_SIZE") == "small"
num_steps, num_draws, num_test = (6, 2, 10) if is_small else (1000, 40, 33)
capacities = (16, 32) if is_small else (32, 128)

# %% [markdown]
# ## Data and start
#
# 183 threes of 8x8 pixels, less their mean; 33 are kept for the end. Start: random factors.

# %%
digits = load_digits()
pictures = digits.images[digits.target == 3].reshape(-1, 64) / 16
train, test = pictures[:-num_test], pictures[-num_test:]
mean = train.mean(axis=0)
rng = np.random.default_rng(0)
lower = rng.random((len(train), 10)) < 0.3
upper = np.concatenate([np.ones((len(train), 1)), rng.random((len(train), 4)) < 0.3], axis=1)
starts = {"one layer": [lower], "two layers": [upper, lower]}
prior = LayerPrior(strength=1.0, concentration_shape=1.0, concentration_rate=1.0)


def start(features):
    """State and priors of a hierarchy with these features at the start."""
    sizes = capacities[-len(features) :]
    layers = factor_hierarchy.start(features, sizes, [1.0] * len(features))
    variances = dict(noise_variance=0.05, loading_variance=0.1)
    priors = dict(noise_prior=(1.0, 0.1), loading_prior=(1.0, 0.1))
    likelihood = gaussian_factors.observe(
        train - mean, sizes[-1], **variances, **priors, has_weights=True
    )
    return hierarchy_gibbs.init(layers, likelihood), (prior,) * len(features)


def summarize(state, info):
    """Active factors, lower factors of a picture, variance of the noise."""
    used = state.layers[-1].features.sum(axis=0).mean()
    return info.num_active, used, state.likelihood.noise_variance


# %% [markdown]
# ## Sample: buffers that turn out too small grow by themselves

# %%
states, traces = {}, {}
for index, (name, features) in enumerate(starts.items()):
    state, priors = start(features)
    key = jax.random.key(index)
    states[name], traces[name] = hierarchy_gibbs.run(
        key, state, priors, num_steps, summarize=summarize
    )
    active, used, variance = (x[num_steps // 2 :].mean(axis=0) for x in traces[name])
    print(f"{name}: {active} active factors, {used:.1f} a picture, noise {variance**0.5:.3f}")

# %% [markdown]
# ## New pictures through noise
#
# Noise of standard deviation 0.25 is added to pictures the models have not seen. All that was
# learned is held fixed, and the clean pictures are averaged over draws of their factors.


# %%
def denoise(key, state, noisy, noise_variance):
    """Mean of what the factors explain of new pictures."""
    num = len(noisy)
    layers = tuple(
        layer._replace(features=jnp.repeat(layer.is_active[:, None], num, axis=1))
        for layer in state.layers
    )
    likelihood = replace(
        state.likelihood,
        data=jnp.asarray(noisy - mean),
        activations=jnp.ones((len(layers[-1].features), num)),
        noise_variance=state.likelihood.noise_variance + noise_variance,
    )

    def one(carry, key):
        layers, likelihood = hierarchy_gibbs.step_objects(key, *carry)
        on = jnp.where(layers[-1].features, likelihood.activations, 0)
        return (layers, likelihood), on.T @ likelihood.loadings

    _, draws = jax.lax.scan(one, (layers, likelihood), jax.random.split(key, 2 * num_draws))
    return np.asarray(draws[num_draws:].mean(axis=0)) + mean


noisy = test + rng.normal(0, 0.25, test.shape)
cleaned = {n: denoise(jax.random.key(5), s, noisy, 0.25**2) for n, s in states.items()}
for name, found in {"noisy": noisy, **cleaned}.items():
    print(f"{name}: mean squared error {((found - test) ** 2).mean():.4f}")

# %% [markdown]
# ## Active lower factors, sweep by sweep; the most used ones; new pictures

# %%
fig, axes = plt.subplots(1, 3, figsize=(12, 4), width_ratios=[1, 1, 1.2])
for name, trace in traces.items():
    axes[0].plot(trace[0][:, -1], label=name)
axes[0].set(xlabel="sweep", ylabel="active lower factors")
axes[0].legend(frameon=False)


def mosaic(rows):
    """Pictures of 8x8 pixels, one row of them above the other."""
    return np.block([[np.pad(x.reshape(8, 8), 1) for x in row] for row in rows])


state = states["two layers"]
used = np.argsort(-np.asarray(state.layers[-1].features.sum(axis=1)))[:24]
strokes = np.asarray(state.likelihood.loadings)[used].reshape(4, 6, 64)
limit = np.abs(strokes).max()
axes[1].imshow(mosaic(strokes), cmap="RdBu_r", vmin=-limit, vmax=limit)
axes[1].set_title("most used factors")
rows = [test[:6], noisy[:6], cleaned["two layers"][:6]]
axes[2].imshow(mosaic(rows), cmap="gray_r", vmin=0, vmax=1)
axes[2].set_title("new, noisy, denoised")
for ax in axes[1:]:
    ax.axis("off")
plt.show()
