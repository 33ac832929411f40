r"""Which sites of a model make up an infinite factor hierarchy, found from their distributions.

.. math:: \text{sticks} \to y \to (\text{sticks}, V \to) z \to \dots \to \text{observations}
"""

from typing import Any, NamedTuple

import jax
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.infer.gibbs import conditioned, latent_sample_sites
from numpyro.ops.provenance import eval_provenance

from jaxmrf.distributions import IndianBuffetProcess, NoisyOr, NoisyOrWeights, base_distribution
from jaxmrf.infer._block import abstract_sites

__all__ = ["FeatureSites", "find_layers", "hierarchy_sites"]


class FeatureSites(NamedTuple):
    """Names of the sites of one layer.

    Attributes:
        sticks: Frequencies.
        weights: Noisy-or weights, None in the top layer.
        features: Features.
        concentration: The concentration, if the kernel is to draw it: a latent site with a gamma
            prior that feeds these sticks alone.
    """

    sticks: str
    weights: str | None
    features: str
    concentration: str | None

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return tuple(name for name in self if name is not None)


def hierarchy_sites(trace: dict[str, Any]) -> list[str]:
    """Names of the latent sites that a ``FactorHierarchyGibbs`` block has to own.

    A selector for ``Gibbs`` and ``MRFGibbs``: sticks, weights and features of all layers.

    Args:
        trace: A trace of the model.
    """
    latent = latent_sample_sites(trace)
    return [name for name in latent if _is_hierarchical(trace[name]["fn"], trace)]


def _is_hierarchical(fn, trace) -> bool:
    base = base_distribution(fn)
    if isinstance(base, IndianBuffetProcess | NoisyOrWeights | NoisyOr):
        return True
    probs = getattr(base, "probs", None)
    sticks = [
        site["value"]
        for site in trace.values()
        if site["type"] == "sample"
        and isinstance(base_distribution(site["fn"]), IndianBuffetProcess)
    ]
    return isinstance(base, dist.BernoulliProbs) and any(probs is value for value in sticks)


def find_layers(model, model_args: tuple, model_kwargs: dict) -> tuple[FeatureSites, ...]:
    """Sites of every layer, from the top down.

    Args:
        model: The model.
        model_args: Its arguments.
        model_kwargs: Its keyword arguments.

    Raises:
        ValueError: If the sites do not form a hierarchy.
    """

    def describe(trace):
        latent = latent_sample_sites(trace)
        return tuple((name, type(base_distribution(trace[name]["fn"]))) for name in latent)

    kinds, shapes = abstract_sites(model, model_args, model_kwargs, describe)
    kinds = dict(kinds)

    def parameters(**values):
        substituted = handlers.substitute(handlers.seed(conditioned(model), 0), data=values)
        trace = handlers.trace(substituted).get_trace(*model_args, **model_kwargs)
        found = {}
        for name in kinds:
            fn = base_distribution(trace[name]["fn"])
            fields = ("parents", "weights") if isinstance(fn, NoisyOr) else ()
            found[name] = {field: getattr(fn, field) for field in fields} or jax.tree.leaves(fn)
        return found

    sources = eval_provenance(parameters, **shapes)

    def feeding(name, field=None):
        tree = sources[name] if field is None else sources[name][field]
        return frozenset().union(*jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, frozenset)))

    sticks = [name for name, kind in kinds.items() if issubclass(kind, IndianBuffetProcess)]
    weights = [name for name, kind in kinds.items() if issubclass(kind, NoisyOrWeights)]
    noisy_ors = [name for name, kind in kinds.items() if issubclass(kind, NoisyOr)]
    tops = [
        name
        for name, kind in kinds.items()
        if issubclass(kind, dist.BernoulliProbs | dist.BernoulliLogits)
        and feeding(name) in [{stick} for stick in sticks]
    ]
    if len(tops) != 1:
        raise ValueError(
            "FactorHierarchyGibbs: expected one latent Bernoulli site whose probabilities are the "
            f"sticks of an IndianBuffetProcess, got {tops}; write it by infinite_features"
        )

    def concentration(stick):
        (name,) = feeding(stick) if len(feeding(stick)) == 1 else (None,)
        if name is None or not issubclass(kinds[name], dist.Gamma) or shapes[name].shape:
            return None
        fed = [other for other in kinds if other != stick and name in feeding(other)]
        return None if fed else name

    (top,) = tops
    (stick,) = feeding(top)
    layers = [FeatureSites(stick, None, top, concentration(stick))]
    while below := [
        name for name in noisy_ors if feeding(name, "parents") == {layers[-1].features}
    ]:
        if len(below) > 1:
            raise ValueError(
                f"FactorHierarchyGibbs: expected one layer below '{layers[-1].features}', got "
                f"{below}; stack layers instead"
            )
        (name,) = below
        weight = feeding(name, "weights")
        stick = frozenset().union(*(feeding(w) for w in weight if w in weights)) & set(sticks)
        if len(weight) != 1 or not weight <= set(weights) or len(stick) != 1:
            raise ValueError(
                f"FactorHierarchyGibbs: expected the weights of '{name}' to be a NoisyOrWeights "
                f"site over the sticks of an IndianBuffetProcess, got {sorted(weight)}; write the "
                "layer by noisy_or_layer"
            )
        layers.append(FeatureSites(*stick, *weight, name, concentration(*stick)))
    rest = {*sticks, *weights, *noisy_ors} - {name for layer in layers for name in layer.names}
    if rest:
        raise ValueError(
            f"FactorHierarchyGibbs: expected one chain of layers, got {sorted(rest)} outside it; "
            "give each layer the features of the layer above as parents"
        )
    return tuple(layers)
