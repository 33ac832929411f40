r"""Which block of a composite owns which site, and what that means for the fields' normalisers.

A block may own parents of a field's parameters :math:`\theta` if its kernel cancels
:math:`\log Z(\theta)`, or if :math:`\log Z` is exact. For all other blocks it is a constant.
"""

from typing import NamedTuple

from numpyro.infer.gibbs import latent_sample_sites
from numpyro.infer.mcmc import MCMCKernel

from jaxmrf.distributions import base_distribution
from jaxmrf.infer._block import abstract_sites
from jaxmrf.infer.unnormalized import mrf_parents, mrf_sites

__all__ = ["FieldFacts", "Owners", "compensates", "find_owners", "has_model", "plan_text"]


class FieldFacts(NamedTuple):
    """Static facts of one random field of the model."""

    kind: str
    num_nodes: int
    is_latent: bool
    is_tractable: bool


class Owners(NamedTuple):
    """Who owns what.

    Attributes:
        sites: Names of the sites of every block.
        parents: Latent sites behind the parameters of every field.
        fields: Facts of every field.
        stripped: Fields whose normaliser is constant for all blocks that cannot cancel it.
    """

    sites: tuple[tuple[str, ...], ...]
    parents: dict[str, frozenset[str]]
    fields: dict[str, FieldFacts]
    stripped: tuple[str, ...]


def find_owners(model, blocks, model_args: tuple, model_kwargs: dict) -> Owners:
    """The owners of all sites, checked against what the fields depend on."""

    def describe(trace):
        facts = {}
        for name in mrf_sites(trace):
            field = base_distribution(trace[name]["fn"])
            is_latent = not trace[name]["is_observed"]
            kind = type(field).__name__
            facts[name] = FieldFacts(kind, field.graph.num_nodes, is_latent, field.is_tractable)
        return _sites(blocks, trace), facts

    (sites, fields), _ = abstract_sites(model, model_args, model_kwargs, describe)
    parents = mrf_parents(model, model_args, model_kwargs)
    kept = set()
    for (kernel, _), names in zip(blocks, sites, strict=True):
        if compensates(kernel) or not has_model(kernel):
            continue
        for field, found in parents.items():
            own = sorted(found & set(names))
            if own and not fields[field].is_tractable:
                raise ValueError(
                    f"MRFGibbs: expected the parameters of the intractable field '{field}' in a "
                    f"block that cancels its normaliser, got {own} owned by "
                    f"{type(kernel).__name__}; give them to ExchangeMH or GroupGibbs"
                )
            kept |= {field} if own else set()
    return Owners(sites, parents, fields, tuple(name for name in fields if name not in kept))


def plan_text(blocks, owners: Owners) -> str:
    """One line for every block and every field."""
    lines = [f"MRFGibbs: {len(blocks)} blocks"]
    for (kernel, _), names in zip(blocks, owners.sites, strict=True):
        why = _reason(kernel, names, owners)
        lines.append(f"  {', '.join(names) or 'no site'} -> {type(kernel).__name__}: {why}")
    for name, field in owners.fields.items():
        log_z = "exact" if field.is_tractable else "out of reach"
        use = "left out where constant" if name in owners.stripped else "kept"
        lines.append(
            f"  field {name}: {'latent' if field.is_latent else 'observed'} {field.kind} of "
            f"{field.num_nodes} nodes, log Z {log_z}, {use}"
        )
    return "\n".join(lines)


def has_model(kernel: MCMCKernel) -> bool:
    """Whether the kernel is built on a model, as opposed to a function of values."""
    return getattr(kernel, "model", None) is not None


def compensates(kernel: MCMCKernel) -> bool:
    """Whether the kernel may own parents of an intractable field."""
    return getattr(kernel, "handles_intractable", False)


def _sites(blocks, trace) -> tuple[tuple[str, ...], ...]:
    """The sites of every block."""
    latent = [
        name
        for name in latent_sample_sites(trace)
        if trace[name]["infer"].get("enumerate") != "parallel"
    ]
    owned = [
        None if spec is None else tuple(spec(trace) if callable(spec) else spec)
        for _, spec in blocks
    ]
    named = [name for names in owned if names for name in names]
    unknown = [name for name in named if name not in latent]
    if unknown:
        raise ValueError(
            f"MRFGibbs: expected blocks of latent sites, got {unknown}; name some of {latent}"
        )
    twice = sorted({name for name in named if named.count(name) > 1})
    if twice:
        raise ValueError(
            f"MRFGibbs: expected every site in one block, got {twice} in two; name them once"
        )
    rest = tuple(name for name in latent if name not in named)
    if rest and None not in owned:
        raise ValueError(
            f"MRFGibbs: expected a block for every latent site, got none for {list(rest)}; add a "
            "block, or pass None as the sites of one"
        )
    return tuple(rest if names is None else names for names in owned)


def _reason(kernel: MCMCKernel, names: tuple[str, ...], owners: Owners) -> str:
    """Why a block may own its sites."""
    fed = [field for field, found in owners.parents.items() if found & set(names)]
    latent = [name for name in names if name in owners.fields]
    reasons = [f"updates the field {', '.join(latent)}"] if latent else []
    if fed:
        how = "log Z is summed"
        if not has_model(kernel):
            how = "by an update of its own"
        elif compensates(kernel):
            how = "the kernel cancels log Z"
        verb = "parametrises" if len(names) == 1 else "parametrise"
        reasons.append(f"{verb} {', '.join(fed)}, {how}")
    return "; ".join(reasons) or "no field depends on it"
