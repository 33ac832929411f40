r"""Gibbs sampling of the grouped agreement parameters of an observed Ising field.

The kernel owns two sites of an ordinary model: integer labels from a
``ChineseRestaurantProcess`` over edges, and a plate of atoms on (0, 1). The field's agreement
parameters must be ``atoms[labels]``; how the labels see the data is the ``likelihood`` argument.
A third site, one ``Bernoulli`` per edge, learns the graph with the groups: agreements are then
``where(present, atoms[labels], 1/2)``, and an edge that is absent is one of independence.
Reference: Liu & Page, "Bayesian estimation of latently-grouped parameters in undirected graphical
models", NIPS 2013, section 3.
"""

from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.gibbs import conditioned, prototype_trace, with_conditioning

from jaxmrf.distributions import ChineseRestaurantProcess, Ising, base_distribution
from jaxmrf.graphs import Graph
from jaxmrf.infer._block import BlockKernel, abstract_sites, is_composite
from jaxmrf.infer._evidence import dependant_sites
from jaxmrf.infer.unnormalized import UnnormalizedModel, mrf_parents, mrf_sites
from jaxmrf.models import as_states, couplings_from_agreements
from jaxmrf.nonparametric.base_measures import BaseMeasure, BetaBase, GeneralBase
from jaxmrf.nonparametric.parameter_groups import cluster

__all__ = ["GroupGibbs", "GroupGibbsState", "GroupLikelihood"]

_BERNOULLI = (dist.BernoulliProbs, dist.BernoulliLogits)


class GroupLikelihood(Protocol):
    """How labels see the data; exchange the object, keep the model.

    Its ``start_clusters`` is the number of k-means clusters of a start at the estimate, or None for
    the paper's ``floor(alpha log(edges))``.

    One with ``handles_inclusion = True`` learns which edges are in: its ``init`` takes
    ``is_present``, its ``step`` takes ``inclusion``, their prior probability, and its state has
    ``is_present``.
    """

    start_clusters: int | None

    def prepare(self, states: jax.Array, graph: Graph) -> tuple[Any, jax.Array]:
        """What the sampler keeps of the data, and the untied estimate of every agreement."""

    def init(self, rng_key, labels, values, data: Any, graph: Graph, num_warmup: int) -> Any:
        """State of the core sampler at a grouping; has ``labels``, ``values``, ``is_truncated``."""

    def step(self, rng_key, state: Any, data: Any, graph: Graph, concentration, base: BaseMeasure):
        """Next state of the core sampler and its info; the info has ``num_groups``."""


class GroupGibbsState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Labels, atoms and presence, if it is sampled, by the names of their sites.
        sampler: State of the core sampler.
        data: What the sampler keeps of the data.
        num_groups: Number of groups in use.
        is_truncated: Whether the buffer of atoms has ever been too small.
        rng_key: Key of the next step.
    """

    z: dict[str, jax.Array]
    sampler: Any
    data: Any
    num_groups: jax.Array
    is_truncated: jax.Array
    rng_key: jax.Array

    @property
    def is_inexact(self) -> jax.Array | None:
        """Whether draws the sampler takes for exact were not; None where it takes none."""
        return getattr(self.sampler, "is_inexact", None)


class _Sites(NamedTuple):
    """Names and static facts of the sites a kernel works on."""

    labels: str
    atoms: str
    field: str
    graph: Graph
    max_groups: int
    present: str | None

    @property
    def own(self) -> set[str]:
        """The sites the kernel updates."""
        return {self.labels, self.atoms} | ({self.present} - {None})

    @property
    def agreements(self) -> str:
        """What the field's agreements have to be."""
        tied = f"{self.atoms}[{self.labels}]"
        return tied if self.present is None else f"where({self.present}, {tied}, 0.5)"


class GroupGibbs(BlockKernel):
    """Updates which agreement parameters are equal, and their values.

    Runs alone on a model without other latent sites, or as a block of ``MRFGibbs``. Resume on the
    data of the first run: what the sampler keeps of them is part of its state.

    Args:
        model: A model with one observed ``Ising.from_agreement(graph, atoms[labels])``, or
            ``where(present, atoms[labels], 0.5)`` with one Bernoulli per edge.
        likelihood: How the labels see the data, for example ``StrippedBeta()``; with presence
            ``ExactLikelihood()`` or ``LinearResponse()``.
        start: "estimate" starts from a k-means clustering of the untied estimate, the number of
            clusters the likelihood's, and all edges; "params" starts from
            ``init_params``, or, without them, from a prior draw.
    """

    handles_intractable = True

    def __init__(
        self,
        model,
        likelihood: GroupLikelihood,
        *,
        start: Literal["estimate", "params"] = "estimate",
    ):
        if start not in ("estimate", "params"):
            raise ValueError(
                f"GroupGibbs: expected start to be 'estimate' or 'params', got {start!r}; name one"
            )
        self._likelihood, self._start = likelihood, start
        super().__init__(model)

    def _reset(self) -> None:
        super()._reset()
        self._sites = None

    @property
    def default_fields(self) -> tuple[str, ...]:
        """The values, and the number of groups as a sample statistic."""
        return ("z", "num_groups", "is_truncated")

    def get_diagnostics_str(self, state: GroupGibbsState) -> str:
        """Number of groups, for the progress bar."""
        return f"groups={int(state.num_groups)}"

    def truncation_message(self) -> str:
        """What to do when the buffer of atoms was too small."""
        return (
            f"GroupGibbs: all {self._sites.max_groups} atoms of '{self._sites.atoms}' were in use "
            f"when a new group was proposed, and the draws are biased to fewer groups; raise the "
            f"plate to {2 * self._sites.max_groups}"
        )

    def inexactness_message(self) -> str | None:
        """What to do when draws were not exact, if the likelihood was asked for exact ones."""
        return getattr(self._likelihood, "inexactness_message", None)

    def _prepare(self, model_args, model_kwargs):
        self._sites, shapes = abstract_sites(self._model, model_args, model_kwargs, _describe)
        sites = self._sites
        own = sites.own
        if sites.present is not None and not getattr(self._likelihood, "handles_inclusion", False):
            raise ValueError(
                f"GroupGibbs: expected a likelihood that learns which edges are in, as "
                f"'{sites.present}' asks for, got {type(self._likelihood).__name__}; take "
                "ExactLikelihood or LinearResponse"
            )
        parents = mrf_parents(self._model, model_args, model_kwargs)[sites.field]
        if parents != own:
            raise ValueError(
                f"GroupGibbs: expected the parameters of '{sites.field}' to depend on "
                f"{sorted(own)} alone, got {sorted(parents)}; fix the others, or use ExchangeMH"
            )
        # the density of the field itself may be out of reach; its other factors are constant here
        model = UnnormalizedModel(conditioned(self._model), (sites.field,))
        for name in sorted(own):
            found = dependant_sites(model, name, shapes, model_args, model_kwargs)
            others = sorted(set(found) - own - {sites.field})
            if others:
                raise ValueError(
                    f"GroupGibbs: expected only '{sites.field}' to depend on '{name}', got "
                    f"{others} too; give '{name}' to a kernel that evaluates them"
                )
        self._check_tied(model_args, model_kwargs)

    def _check_tied(self, model_args, model_kwargs) -> None:
        """Raise unless the couplings of the field are those of atoms[labels], where present."""
        sites = self._sites
        rng = np.random.default_rng(0)
        labels = rng.integers(min(3, sites.max_groups), size=sites.graph.num_edges)
        values = rng.uniform(0.2, 0.8, size=sites.max_groups)
        present = (np.arange(labels.size) + 1) % 2
        agreements = values[labels]
        if sites.present is not None:
            agreements = np.where(present, agreements, 0.5)
        with jax.ensure_compile_time_eval():
            expected = couplings_from_agreements(jnp.asarray(agreements))
            values = {
                sites.labels: jnp.asarray(labels, jnp.int32),
                sites.atoms: jnp.asarray(values),
            }
            if sites.present is not None:
                values[sites.present] = jnp.asarray(present)
            kwargs = with_conditioning(model_kwargs, values)
            trace = prototype_trace(conditioned(self._model), jax.random.key(0), model_args, kwargs)
            field = base_distribution(trace[sites.field]["fn"])
            couplings, fields = jax.device_get((field.couplings, field.fields))
        if np.any(fields != 0):
            raise ValueError(
                f"GroupGibbs: expected '{sites.field}' without fields, got fields up to "
                f"{np.abs(fields).max():.4g}; leave them out, or use ExchangeMH"
            )
        if not np.allclose(couplings, expected, atol=1e-5):
            edge = int(np.argmax(np.abs(couplings - expected)))
            raise ValueError(
                f"GroupGibbs: expected '{sites.field}' to have agreements "
                f"{sites.agreements}, got coupling {couplings[edge]:.4g} where "
                f"{expected[edge]:.4g} is theirs, at edge {edge}; write "
                f"Ising.from_agreement(graph, {sites.agreements})"
            )

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        sites = self._sites
        key, key_trace, key_sampler = jax.random.split(rng_key, 3)
        trace = prototype_trace(conditioned(self._model), key_trace, model_args, model_kwargs)
        states = _checked_states(trace[sites.field]["value"], sites.graph)
        data, estimate = self._likelihood.prepare(states, sites.graph)

        labels, values = trace[sites.labels]["value"], trace[sites.atoms]["value"]
        present = None
        if self._start == "estimate":
            num_clusters = self._likelihood.start_clusters
            if num_clusters is None:
                concentration = base_distribution(trace[sites.labels]["fn"]).concentration
                num_clusters = jnp.floor(concentration * np.log(sites.graph.num_edges))
            # room for new groups
            num_clusters = jnp.clip(num_clusters, 1, max(1, sites.max_groups // 2))
            labels, values = cluster(estimate, num_clusters, values)
        else:
            init_params = init_params or {}
            if sites.present is not None:
                present = init_params.get(sites.present, trace[sites.present]["value"])
            labels = jnp.asarray(init_params.get(sites.labels, labels))
            if sites.atoms in init_params:
                values = jnp.asarray(init_params[sites.atoms])
                if not is_composite(model_kwargs):
                    values = biject_to(trace[sites.atoms]["fn"].support)(values)
        overflows = labels.max() >= sites.max_groups
        labels = jnp.minimum(labels, sites.max_groups - 1)
        # likelihoods of a given graph know no presence; None starts from all edges
        presence = {} if present is None else {"is_present": jnp.asarray(present) > 0}
        sampler = self._likelihood.init(
            key_sampler, labels, values, data, sites.graph, self._num_warmup, **presence
        )
        return self._state(key, sampler, data, overflows | sampler.is_truncated)

    def _sample_one(self, state, model_args, model_kwargs):
        sites = self._sites
        key, key_step = jax.random.split(state.rng_key)
        kwargs = with_conditioning(model_kwargs, state.z)
        trace = handlers.trace(conditioned(self._model)).get_trace(*model_args, **kwargs)
        concentration = base_distribution(trace[sites.labels]["fn"]).concentration
        base = _base_measure(trace[sites.atoms]["fn"])
        presence = {}
        if sites.present is not None:
            presence = {"inclusion": base_distribution(trace[sites.present]["fn"]).probs}
        sampler, _ = self._likelihood.step(
            key_step, state.sampler, state.data, sites.graph, concentration, base, **presence
        )
        return self._state(key, sampler, state.data, state.is_truncated | sampler.is_truncated)

    def _state(self, key, sampler, data, is_truncated) -> GroupGibbsState:
        z = {self._sites.labels: sampler.labels, self._sites.atoms: sampler.values}
        if self._sites.present is not None:
            z[self._sites.present] = sampler.is_present.astype(jnp.result_type(int))
        return GroupGibbsState(
            z=z,
            sampler=sampler,
            data=data,
            num_groups=sampler.labels.max() + 1,
            is_truncated=is_truncated,
            rng_key=key,
        )


def _describe(trace) -> _Sites:
    """The sites of a grouped field in a trace, checked."""
    latent = {
        name: base_distribution(site["fn"])
        for name, site in trace.items()
        if site["type"] == "sample" and not site["is_observed"]
    }
    labels = [name for name, fn in latent.items() if isinstance(fn, ChineseRestaurantProcess)]
    present = [name for name, fn in latent.items() if isinstance(fn, _BERNOULLI)]
    atoms = [name for name in latent if name not in labels + present]
    observed = [name for name in mrf_sites(trace) if trace[name]["is_observed"]]
    is_ising = [isinstance(base_distribution(trace[name]["fn"]), Ising) for name in observed]
    if len(labels) != 1 or len(atoms) != 1 or len(present) > 1 or is_ising != [True]:
        raise ValueError(
            "GroupGibbs: expected one latent ChineseRestaurantProcess, one latent site of atoms "
            f"and one observed Ising field, got {labels}, {atoms} and {observed}"
            + (f" beside the presence of edges {present}" if present else "")
            + "; give other latent sites to other blocks of MRFGibbs"
        )
    graph = base_distribution(trace[observed[0]]["fn"]).graph
    shape = jnp.shape(trace[atoms[0]]["value"])
    if len(shape) != 1 or latent[labels[0]].size != graph.num_edges:
        raise ValueError(
            f"GroupGibbs: expected atoms of shape [groups] and one label per edge "
            f"({graph.num_edges}), got shape {shape} and {latent[labels[0]].size} labels; put the "
            "atoms in one plate and pass size=graph.num_edges"
        )
    for name in present:
        if jnp.shape(trace[name]["value"]) != (graph.num_edges,):
            raise ValueError(
                f"GroupGibbs: expected one presence per edge, '{name}' of shape "
                f"({graph.num_edges},), got {jnp.shape(trace[name]['value'])}; expand the "
                "Bernoulli to [graph.num_edges]"
            )
    _base_measure(trace[atoms[0]]["fn"])
    _checked_states(trace[observed[0]]["value"], graph)
    site = present[0] if present else None
    return _Sites(labels[0], atoms[0], observed[0], graph, shape[0], site)


def _base_measure(fn) -> BaseMeasure:
    """G0 of the atoms: in closed form for uniform and Beta atoms, else by its density."""
    atom = base_distribution(fn)
    if atom.batch_shape or atom.event_shape:
        raise ValueError(
            f"GroupGibbs: expected independent atoms of one distribution, got batch shape "
            f"{atom.batch_shape} and event shape {atom.event_shape}; draw them from a scalar "
            "distribution in a plate"
        )
    if isinstance(atom, dist.Beta):
        return BetaBase(atom.concentration1, atom.concentration0)
    if isinstance(atom, dist.Uniform) and _is_unit(atom):
        return BetaBase(1.0, 1.0)
    return GeneralBase(log_density=atom.log_prob, sample=atom.sample)


def _is_unit(atom: dist.Uniform) -> bool:
    bounds = (atom.low, atom.high)
    return all(np.ndim(b) == 0 and not isinstance(b, jax.core.Tracer) for b in bounds) and (
        float(atom.low),
        float(atom.high),
    ) == (0.0, 1.0)


def _checked_states(value, graph: Graph) -> jax.Array | np.ndarray:
    """Observations as integers 0, 1; data that are being traced are taken as they are."""
    if isinstance(value, jax.core.Tracer):
        return (jnp.atleast_2d(value) > 0).astype(jnp.int8)
    return as_states(np.atleast_2d(value), 2, graph.num_nodes, caller="GroupGibbs")
