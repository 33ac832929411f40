r"""The exchange algorithm for potentials tied in groups: any field, atoms of any shape.

Item i, an edge or a node, has the potential :math:`\phi_{c_i}`. A label is proposed from its prior
given the others, a group g with weight :math:`m_{-i,g}` and a new one, its atom from
:math:`G_0`, with weight :math:`\alpha`. With :math:`y \sim p(y \mid c', \phi')` it is accepted with

.. math:: \min\Big(1, \frac{q_{c',\phi'}(x)\, q_{c,\phi}(y)}{q_{c,\phi}(x)\, q_{c',\phi'}(y)}\Big),
          \qquad p(x \mid c, \phi) = q_{c,\phi}(x) / Z(c, \phi),

and an atom in use moves by a random walk, where the ratio of its priors enters as well.
Reference: Neal, "Markov chain sampling methods for Dirichlet process mixture models", JCGS 9
(2000), Algorithm 5; Murray, Ghahramani & MacKay, "MCMC for doubly-intractable distributions",
UAI 2006. Groups of whole potentials are what Liu & Page, NIPS 2013, leave open first.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import MaskedDistribution, biject_to
from numpyro.infer.gibbs import (
    conditioned,
    latent_sample_sites,
    prototype_trace,
    with_conditioning,
)
from numpyro.infer.util import compute_log_probs

from jaxmrf.distributions import ChineseRestaurantProcess, base_distribution
from jaxmrf.infer._auxiliary import draw_auxiliary, log_auxiliary_ratio
from jaxmrf.infer._block import BlockKernel, abstract_sites, is_composite
from jaxmrf.infer._evidence import dependant_sites
from jaxmrf.infer.unnormalized import UnnormalizedModel, mrf_parents
from jaxmrf.nonparametric.dirichlet_process import group_sizes, propose_label
from jaxmrf.nonparametric.parameter_groups import sort_groups

__all__ = ["GroupExchange", "GroupExchangeState"]


class GroupExchangeState(NamedTuple):
    """Position of the chain.

    Attributes:
        z: Labels and atoms, by the names of their sites.
        num_groups: Number of groups in use.
        accept_prob: Acceptance probability, mean over the last step's random walks of atoms.
        accept_labels: The same over the label proposals that name another group.
        is_truncated: Whether the buffer of atoms has ever been too small.
        rng_key: Key of the next step.
    """

    z: dict[str, jax.Array]
    num_groups: jax.Array
    accept_prob: jax.Array
    accept_labels: jax.Array
    is_truncated: jax.Array
    rng_key: jax.Array


class GroupExchange(BlockKernel):
    """Updates which potentials of a random field are equal, and what they are.

    Owns one ``ChineseRestaurantProcess`` and one plate of continuous atoms. How fields are computed
    from them is up to the model; other sites that depend on them count too. Every move draws an
    auxiliary realisation of each field behind which they stand, exact for small fields; for others
    the field's ``num_sweeps`` of Gibbs sampling, whose error reaches the posterior.

    Labels are proposed from their prior, so fewer proposals are accepted the more observations and
    the more numbers an atom has. Watch ``accept_labels``: where it is near zero, the groups stay
    those of the start; then run several chains and start them by ``init_params``.

    Args:
        model: A model with one latent ``ChineseRestaurantProcess`` over edges, nodes or other
            items, and one latent site of atoms, continuous, "groups ...", in one plate.
        num_proposals: Proposals to every label a step.
        num_value_moves: Random-walk moves of every atom in use a step.
        step_size: Standard deviation of such a move, in unconstrained space.

    Raises:
        ValueError: If an option is out of range.

    >>> import jax
    >>> import numpyro
    >>> import numpyro.distributions as dist
    >>> from numpyro.infer import MCMC
    >>> from jaxmrf.distributions import ChineseRestaurantProcess, PairwiseMRF
    >>> from jaxmrf.graphs import grid
    >>> def model(x):
    ...     groups = numpyro.sample("groups", ChineseRestaurantProcess(1.0, 4))
    ...     with numpyro.plate("atoms", 4):
    ...         tables = numpyro.sample("tables", dist.Normal().expand([3, 3]).to_event(2))
    ...     numpyro.sample("x", PairwiseMRF(grid((2, 2)), tables[groups]), obs=x)
    >>> mcmc = MCMC(GroupExchange(model), num_warmup=5, num_samples=5, progress_bar=False)
    >>> mcmc.run(jax.random.key(0), jax.numpy.array([0, 1, 2, 0]))
    >>> mcmc.get_samples()["tables"].shape
    (5, 4, 3, 3)
    """

    handles_intractable = True

    def __init__(
        self, model, *, num_proposals: int = 2, num_value_moves: int = 4, step_size: float = 0.3
    ):
        options = {"num_proposals": num_proposals, "num_value_moves": num_value_moves}
        for name, value in options.items():
            if int(value) != value or value < 1:
                raise ValueError(
                    f"GroupExchange: expected {name} to be a positive integer, got {value}; pass 2"
                )
        if not 0 < step_size < np.inf:
            raise ValueError(
                f"GroupExchange: expected step_size to be positive, got {step_size}; pass 0.3"
            )
        self._num_proposals, self._num_value_moves = int(num_proposals), int(num_value_moves)
        self._step_size = float(step_size)
        super().__init__(model)

    @property
    def default_fields(self) -> tuple[str, ...]:
        """The values, and sample statistics."""
        return ("z", "num_groups", "accept_prob", "accept_labels", "is_truncated")

    def get_diagnostics_str(self, state: GroupExchangeState) -> str:
        """Number of groups and acceptance rate, for the progress bar."""
        return f"groups={int(state.num_groups)}, acc. prob={state.accept_prob:.2f}"

    def truncation_message(self) -> str:
        """What to do when the buffer of atoms was too small."""
        return (
            f"GroupExchange: all {self._max_groups} atoms of '{self._atoms}' were in use when a "
            f"new group was proposed, and the draws are biased to fewer groups; raise the plate "
            f"to {2 * self._max_groups}"
        )

    def _reset(self) -> None:
        super()._reset()
        self._labels, self._atoms, self._max_groups = None, None, 0
        self._compensated, self._constant = (), ()

    def _prepare(self, model_args, model_kwargs):
        facts, shapes = abstract_sites(self._model, model_args, model_kwargs, _describe)
        self._labels, self._atoms, self._max_groups = facts
        own = {self._labels, self._atoms}
        parents = mrf_parents(self._model, model_args, model_kwargs)
        # one list is both stripped and compensated; the others' normalisers do not move
        self._compensated = tuple(name for name, found in parents.items() if found & own)
        self._constant = tuple(name for name in parents if name not in self._compensated)
        if not self._compensated:
            raise ValueError(
                f"GroupExchange: expected a random field whose parameters depend on {sorted(own)}, "
                f"got none among {self._constant}; tie one by {self._atoms}[{self._labels}]"
            )
        for name, other in ((self._labels, self._atoms), (self._atoms, self._labels)):
            if other in dependant_sites(self._model, name, shapes, model_args, model_kwargs):
                raise ValueError(
                    f"GroupExchange: expected labels and atoms independent a priori, got '{other}' "
                    f"whose prior depends on '{name}'; let the field alone depend on both"
                )
        weighted = [*self._compensated, self._labels, self._atoms]

        def scaled(trace):
            return [name for name in weighted if trace[name]["scale"] is not None]

        found, _ = abstract_sites(self._model, model_args, model_kwargs, scaled)
        if found:
            raise ValueError(
                f"GroupExchange: expected sites with their own weight, got {found} inside "
                "handlers.scale; observe the field several times instead"
            )

    def _density_model(self):
        """The conditioned model without the normalisers that are constant or compensated."""
        return UnnormalizedModel(conditioned(self._model), (*self._compensated, *self._constant))

    def _init_one(self, rng_key, init_params, model_args, model_kwargs):
        key, key_trace = jax.random.split(rng_key)
        trace = prototype_trace(self._density_model(), key_trace, model_args, model_kwargs)
        labels, atoms = trace[self._labels]["value"], trace[self._atoms]["value"]
        init_params = init_params or {}
        labels = jnp.asarray(init_params.get(self._labels, labels), jnp.int32)
        if self._atoms in init_params:
            given = jnp.asarray(init_params[self._atoms], atoms.dtype)
            to_atoms = biject_to(trace[self._atoms]["fn"].support)
            atoms = given if is_composite(model_kwargs) else to_atoms(given)
        overflows = labels.max() >= self._max_groups
        labels, atoms = sort_groups(jnp.minimum(labels, self._max_groups - 1), atoms)
        zero = jnp.zeros((), jnp.result_type(float))
        return self._state(key, labels, atoms, zero, zero, overflows)

    def _state(self, key, labels, atoms, accept_prob, accept_labels, is_truncated):
        return GroupExchangeState(
            z={self._labels: labels, self._atoms: atoms},
            num_groups=labels.max() + 1,
            accept_prob=accept_prob,
            accept_labels=accept_labels,
            is_truncated=is_truncated,
            rng_key=key,
        )

    def _sample_one(self, state, model_args, model_kwargs):
        key, key_moves = jax.random.split(state.rng_key)
        model, own = self._density_model(), (self._labels, self._atoms)

        def evaluate(labels, atoms):
            kwargs = with_conditioning(model_kwargs, dict(zip(own, (labels, atoms), strict=True)))
            log_probs, trace = compute_log_probs(model, model_args, kwargs, {})
            # without the priors of labels and atoms, which proposals cancel
            log_rest = sum(value for name, value in log_probs.items() if name not in own)
            return log_rest, {name: trace[name]["fn"] for name in self._compensated}, trace

        _, _, trace = evaluate(*(state.z[name] for name in own))
        concentration = base_distribution(trace[self._labels]["fn"]).concentration
        prior = trace[self._atoms]["fn"]
        num_label_moves = state.z[self._labels].size * self._num_proposals

        def is_waiting(carry):
            index, labels, *_ = carry
            num_value_moves = (labels.max() + 1) * self._num_value_moves
            return index <= num_label_moves + num_value_moves  # one more, for the empty atoms

        # labels and values in one loop: what draws fields is compiled once
        def move(carry):
            index, labels, atoms, is_truncated, tallies = carry
            key_move = jax.random.fold_in(key_moves, index)
            key_label, key_walk, key_fresh, key_auxiliary, key_accept = jax.random.split(
                key_move, 5
            )
            item = index // self._num_proposals
            slot = (index - num_label_moves) // self._num_value_moves
            is_label = index < num_label_moves
            fresh = prior.sample(key_fresh)
            regrouped = _propose_label(key_label, labels, atoms, item, concentration, fresh)
            walked = _propose_atom(key_walk, labels, atoms, slot, self._step_size, prior, fresh)
            proposal = jax.tree.map(lambda a, b: jnp.where(is_label, a, b), regrouped, walked)
            log_current, current, _ = evaluate(labels, atoms)
            log_proposed, proposed, _ = evaluate(proposal.labels, proposal.atoms)
            draws = draw_auxiliary(key_auxiliary, current, proposed)
            log_ratio = log_proposed - log_current + log_auxiliary_ratio(draws, current, proposed)
            log_ratio = jnp.where(proposal.is_lost, -jnp.inf, log_ratio + proposal.log_prior_ratio)
            accept_prob = jnp.nan_to_num(jnp.exp(jnp.minimum(0.0, log_ratio)))
            is_accepted = jax.random.uniform(key_accept) < accept_prob
            labels = jnp.where(is_accepted, proposal.labels, labels)
            atoms = jnp.where(is_accepted, proposal.atoms, atoms)
            kind = jnp.stack([~is_label, is_label]) & proposal.is_counted
            tallies += kind * jnp.stack([accept_prob, jnp.ones_like(accept_prob)])[:, None]
            return index + 1, labels, atoms, is_truncated | proposal.is_lost, tallies

        start = (
            jnp.zeros((), jnp.int32),
            *(state.z[name] for name in own),
            state.is_truncated,
            jnp.zeros((2, 2), state.accept_prob.dtype),
        )
        _, labels, atoms, is_truncated, (sums, counts) = jax.lax.while_loop(is_waiting, move, start)
        rates = sums / jnp.maximum(counts, 1.0)
        return self._state(key, labels, atoms, rates[0], rates[1], is_truncated)


class _Proposal(NamedTuple):
    """Where a move leads; a lost one would need an atom more than there are."""

    labels: jax.Array
    atoms: jax.Array
    log_prior_ratio: jax.Array
    is_lost: jax.Array
    is_counted: jax.Array


def _propose_label(key, labels, atoms, item, concentration, fresh) -> _Proposal:
    """The label of an item from its prior given the others, all atoms they leave free fresh.

    New free atoms with every proposal make it reversible whatever the model does with them.
    """
    num_groups = atoms.shape[0]
    sizes = group_sizes(labels, num_groups).at[labels[item]].add(-1)
    slot, is_new = propose_label(jax.random.uniform(key), sizes, concentration)
    filled = _where_group(sizes > 0, atoms, fresh)
    grouping = sort_groups(labels.at[item].set(slot.astype(labels.dtype)), filled)
    is_lost = is_new & (sizes > 0).all()
    zero = jnp.zeros((), jnp.result_type(float))
    return _Proposal(*grouping, zero, is_lost, is_new | (slot != labels[item]))


def _propose_atom(key, labels, atoms, slot, step_size, prior, fresh) -> _Proposal:
    """A step of one atom in use; for a slot past them, all empty atoms fresh."""
    num_groups = atoms.shape[0]
    is_used = group_sizes(labels, num_groups) > 0
    transform = biject_to(prior.support)
    place = transform.inv(atoms)
    moved_place = place + step_size * jax.random.normal(key, place.shape, place.dtype)
    moved = transform(moved_place)

    def log_density(place, atoms):
        log_jacobian = transform.log_abs_det_jacobian(place, atoms)
        return prior.log_prob(atoms) + log_jacobian.reshape((num_groups, -1)).sum(axis=1)

    is_step = slot <= labels.max()
    is_moving = is_step & (jnp.arange(num_groups) == slot)
    change = log_density(moved_place, moved) - log_density(place, atoms)
    log_ratio = jnp.where(is_moving, change, 0.0).sum().astype(jnp.result_type(float))
    atoms = _where_group(is_moving, moved, atoms)
    atoms = _where_group(is_used | is_step, atoms, fresh)
    return _Proposal(labels, atoms, log_ratio, jnp.array(False), is_step)


def _where_group(is_first, first, second):
    """Whole atoms of one buffer where the condition holds, of another elsewhere."""
    return jnp.where(is_first.reshape((-1, *(1,) * (first.ndim - 1))), first, second)


def _describe(trace) -> tuple[str, str, int]:
    """Names of labels and atoms, and the number of atoms, checked."""
    latent = latent_sample_sites(trace)
    bases = {name: base_distribution(trace[name]["fn"]) for name in latent}
    labels = [name for name, fn in bases.items() if isinstance(fn, ChineseRestaurantProcess)]
    atoms = [name for name in latent if name not in labels]
    if len(labels) != 1 or len(atoms) != 1 or trace[labels[0]]["fn"].batch_shape:
        raise ValueError(
            "GroupExchange: expected one latent ChineseRestaurantProcess, outside of plates, and "
            f"one latent site of atoms, got {labels} and {atoms}; give other latent sites to other "
            "blocks of MRFGibbs"
        )
    fn = trace[atoms[0]]["fn"]
    own = bases[atoms[0]].batch_shape
    num_event = len(fn.event_shape) - len(bases[atoms[0]].event_shape)
    if len(fn.batch_shape) != 1 or np.prod(own[: len(own) - num_event]) != 1 or _is_masked(fn):
        raise ValueError(
            f"GroupExchange: expected independent atoms of one distribution in one plate, got "
            f"'{atoms[0]}' of batch shape {fn.batch_shape} from parameters of shape {own}"
            f"{', masked' if _is_masked(fn) else ''}; declare an atom's own axes by to_event"
        )
    if fn.support.is_discrete:
        raise ValueError(
            f"GroupExchange: expected continuous atoms, got discrete '{atoms[0]}'; their walk "
            "needs densities"
        )
    return labels[0], atoms[0], fn.batch_shape[0]


def _is_masked(fn) -> bool:
    """Whether a mask takes part of the atoms' prior away."""
    while hasattr(fn, "base_dist") and not isinstance(fn, MaskedDistribution):
        fn = fn.base_dist
    return isinstance(fn, MaskedDistribution)
