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
# # Ask a Bayesian network
#
# A patient is short of breath and has been to Asia. Tuberculosis, cancer or bronchitis? The network
# of Lauritzen & Spiegelhalter (1988) has eight variables; the questions are those one asks of any
# network, and so is the code. `jaxmrf.read_bif` and `jaxmrf.read_uai` read others from a file.

# %%
import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

from jaxmrf import exact
from jaxmrf.exact import host, junction_tree
from jaxmrf.graphs import elimination_plan
from jaxmrf.learning import fit_by_em
from jaxmrf.models import FactorGraph, Labels
from jaxmrf.variational import belief_propagation

is_small = os.environ.get("JAXMRF_NOTEBOOK_SIZE") == "small"
num_patients = 500 if is_small else 5000

# %% [markdown]
# ## The network
#
# One table a variable, p(no), p(yes) given its parents, the last axis its own.

# %%
parents = {
    "Asia": [],
    "smoker": [],
    "tuberculosis": ["Asia"],
    "cancer": ["smoker"],
    "bronchitis": ["smoker"],
    "either": ["tuberculosis", "cancer"],
    "x-ray": ["either"],
    "breathless": ["bronchitis", "either"],
}
yes = {
    "Asia": 0.01,
    "smoker": 0.5,
    "tuberculosis": [0.01, 0.05],
    "cancer": [0.01, 0.1],
    "bronchitis": [0.3, 0.6],
    "either": [[0.0, 1.0], [1.0, 1.0]],
    "x-ray": [0.05, 0.98],
    "breathless": [[0.1, 0.7], [0.8, 0.9]],
}
names = list(parents)
with np.errstate(divide="ignore"):
    tables = [np.log(np.stack([1 - np.array(p), np.array(p)], axis=-1)) for p in yes.values()]
network = FactorGraph.from_conditionals(
    [2] * 8,
    [[names.index(parent) for parent in own] for own in parents.values()],
    tables,
    labels=Labels(tuple(names), (("no", "yes"),) * 8),
)
print(elimination_plan(network.hypergraph))

# %% [markdown]
# ## One patient
#
# All marginals, exactly, and the likeliest explanation.

# %%
patient = network.observe({"Asia": "yes", "breathless": "yes"})
before, after = exact.solve(network), exact.solve(patient)
for node, name in enumerate(names):
    print(f"{name:13} {before.nodes[node][1]:.3f} -> {after.nodes[node][1]:.3f}")
best = exact.mode(patient)
explanation = [name for name, state in zip(names, best.states, strict=True) if state]
print("likeliest together:", explanation, f"{np.exp(best.log_potential - after.log_z):.3f}")

# %% [markdown]
# ## Which number matters?
#
# The derivative of log p(evidence) by the log of a table entry is how often that entry is used.

# %%
with_x_ray = patient.observe({"x-ray": "yes"})


def log_odds(log_tables):
    """Log odds of cancer for the patient with a positive x-ray."""
    model = replace(with_x_ray, log_tables=log_tables)
    sides = [model.observe({"cancer": state}) for state in ("yes", "no")]
    return junction_tree.log_z(sides[0]) - junction_tree.log_z(sides[1])


slope = jax.grad(log_odds)(jnp.asarray(network.log_tables))
sensitivity = replace(network, log_tables=slope)
for name in ("cancer", "tuberculosis", "x-ray"):
    print(name, np.round(sensitivity.log_table(names.index(name)), 3).tolist())

# %% [markdown]
# ## A thousand patients at once, and what they teach
#
# Records with gaps: nobody looks for the disease in everybody. EM fills them in.

# %%
rng = np.random.default_rng(0)
records = host.sample(rng, network, num_samples=num_patients)
seen = np.where(rng.random(records.shape) < 0.7, records, -1)
evidence = jax.vmap(lambda states: network.observe_states(states).log_evidence)(seen)
beliefs = junction_tree.solve_batch(network, evidence)
place = int(network.hypergraph.node_starts[names.index("cancer")]) + 1
is_hidden = seen[:, names.index("cancer")] < 0
told, true = beliefs.nodes.flat[is_hidden, place], records[is_hidden, names.index("cancer")]
print(f"cancer where it is hidden: expected {told.mean():.3f}, true {true.mean():.3f}")

start = FactorGraph.from_conditionals(
    network.num_states,
    [scope[:-1] for scope in network.scopes],
    [np.where(np.isfinite(t), np.log(0.5 * np.exp(t) + 0.25), t) for t in tables],
)
fit = fit_by_em(seen, start, prior_count=1.0)
print(f"{fit.num_iters} iterations, p(bronchitis | smoker):", np.exp(fit.model.log_table(4))[1, 1])

# %% [markdown]
# ## Belief propagation, which also runs where exact answers are out of reach
#
# On this network, which has a loop, it is off by a little.

# %%
loopy = belief_propagation.solve(patient)
figure, axes = plt.subplots(figsize=(7, 3.2), layout="tight")
place = np.arange(8)
kinds = {"before": before, "given Asia and breathless": after, "belief propagation": loopy}
for shift, (label, answer) in enumerate(kinds.items()):
    chances = [float(answer.nodes[node][1]) for node in range(8)]
    axes.bar(place + 0.27 * (shift - 1), chances, 0.25, label=label)
axes.set_xticks(place, names, rotation=30, ha="right")
axes.set_ylabel("p(yes)")
axes.legend()
