"""Which form of the Gibbs sweep a field is sampled in, chosen from what it is and where it runs.

=========  ====================================================================================
form       states while sweeps run, and what they need
=========  ====================================================================================
lattice    32 spins of one chain in a word: a torus with one coupling per direction and one field
tables     32 chains in a word, thresholds by table: two states, at most five neighbours
sums       32 chains in a word, sums over neighbours: two states
plain      one integer per variable and chain: any pairwise model; the oracle of the others
=========  ====================================================================================
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxmrf.graphs import CheckerboardPlan, Graph, SweepPlan, checkerboard_plan, sweep_plan
from jaxmrf.models import Ising, PairwiseModel

__all__ = ["FORMS", "SamplerPlan", "check_model", "sampler_plan"]

FORMS = ("lattice", "tables", "sums", "plain")
"""Names of the forms, the fastest first."""

MAX_DEGREE_TABLES = 5
# words in a vector register
NUM_LANES = 16
# numbers of chains from which a form is faster than the next one
MIN_CHAINS_TABLES, MIN_CHAINS_SUMS = 256, 8
# updates of a variable from which a faster sweep is worth the seconds more to compile it
MIN_UPDATES = 1e9


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SamplerPlan:
    """A form of the sweep, its layout, and why it was chosen.

    Attributes:
        layout: Tiles of a coloured sweep, or the checkerboard of a torus.
        form: One of ``FORMS``.
        num_chains: Number of chains.
        num_bits: Bits of a random number that is compared with a threshold; 32 for independence.
        num_rounds: Rounds of the Philox generator.
        backend: Kind of device, as in ``jax.default_backend()``.
        reasons: Why this form, and why not those above it in ``FORMS``.
    """

    layout: SweepPlan | CheckerboardPlan
    form: str = field(metadata={"static": True})
    num_chains: int = field(metadata={"static": True})
    num_bits: int = field(metadata={"static": True})
    num_rounds: int = field(metadata={"static": True})
    backend: str = field(metadata={"static": True})
    reasons: tuple[str, ...] = field(metadata={"static": True})

    @property
    def num_words(self) -> int:
        """Words of 32 chains; in the form "tables" many enough to fill vectors."""
        num_words = -(-self.num_chains // 32)
        if self.form == "tables" and num_words > NUM_LANES // 2:
            return -(-num_words // NUM_LANES) * NUM_LANES
        return num_words

    @property
    def compiler_options(self) -> dict[str, int] | None:
        """Options for the outermost ``jax.jit`` around the sweeps: up to twice faster on a CPU."""
        return {"xla_cpu_prefer_vector_width": 512} if self.backend == "cpu" else None

    def __str__(self) -> str:
        bits = f"{self.num_bits} random bits"
        if self.form == "sums":
            bits = "24 random bits" + ", 8 of them shared" * (self.num_bits < 32)
        words = f"; {bits}, Philox with {self.num_rounds} rounds" * (self.form != "plain")
        lines = [
            f"SamplerPlan: {self.form}, {self.num_chains} chains, {self.backend}{words}",
            *(f"  {reason}" for reason in self.reasons),
            *(f"  {line}" for line in str(self.layout).splitlines()),
        ]
        return "\n".join(lines)


def sampler_plan(
    graph: Graph,
    model: PairwiseModel,
    *,
    num_chains: int,
    form: str | None = None,
    num_sweeps: int = 100_000,
    clamped: Iterable[int] = (),
    colors: Sequence[int] | np.ndarray | None = None,
    num_bits: int = 12,
    num_rounds: int = 10,
    backend: str | None = None,
) -> SamplerPlan:
    """The plan that samples a pairwise field fastest, or the one of the form that is named.

    Args:
        graph: The graph.
        model: The model, or one like it: read are its number of states and, if it is an Ising
            model of known numbers on a torus, whether the couplings of a direction, and the
            fields, are all alike. A plan of the form "lattice" is for models of which this is
            true. Where the numbers will change pass a model without them, such as
            ``jax.eval_shape`` of one, or ``Ising(None, None)``.
        num_chains: Number of chains.
        form: One of ``FORMS``; by default the fastest that can sample the model.
        num_sweeps: About how many sweeps the plan is for. Faster forms take some seconds longer to
            compile, which a short run does not get back.
        clamped: Nodes that keep their state.
        colors: A proper colouring, as for ``graphs.sweep_plan``.
        num_bits: Bits of a random number in the forms "lattice" and "tables", 1 to 32. Every chain
            has its exact conditional probabilities whatever the number (`thresholds`); two draws
            that share the rounding of a threshold have a covariance of at most 4^-num_bits / 4.
            With 32 nothing is shared, also in the form "sums".
        num_rounds: Rounds of the Philox generator, 10 (its authors' default) or 7 (faster; the
            fewest that pass BigCrush).
        backend: Kind of device; by default the one JAX uses.

    Raises:
        ValueError: If an option is out of range, or the form cannot sample the model.

    >>> import jax.numpy as jnp
    >>> from jaxmrf.graphs import torus
    >>> plan = sampler_plan(torus((4, 4)), Ising(jnp.ones(32), jnp.ones(16)), num_chains=5000)
    >>> plan.form
    'tables'
    """
    _check_options(num_chains, num_sweeps, form, num_bits, num_rounds)
    clamped = tuple(clamped)
    board = checkerboard_plan(graph) if form in (None, "lattice") else None
    degree = int(graph.degrees.max(initial=0))
    is_binary = model.num_states == 2
    obstacles = {
        "lattice": "clamped nodes or colours were given"
        if clamped or colors is not None
        else _obstacle_to_lattice(model, board),
        "tables": None
        if is_binary and degree <= MAX_DEGREE_TABLES
        else f"{model.num_states} states, up to {degree} neighbours",
        "sums": None if is_binary else f"{model.num_states} states",
        "plain": None,
    }
    if form is None:
        for name, least in (("tables", MIN_CHAINS_TABLES), ("sums", MIN_CHAINS_SUMS)):
            if num_chains < least:
                obstacles[name] = obstacles[name] or f"fewer than {least} chains ({num_chains})"
        if graph.num_nodes * num_chains * num_sweeps < MIN_UPDATES:
            short = f"{num_sweeps} sweeps of {graph.num_nodes} nodes x {num_chains} chains are few"
            obstacles |= {name: obstacles[name] or short for name in FORMS[:-1]}
        form = next(name for name in FORMS if obstacles[name] is None)
        reasons = [f"not {name}: {obstacles[name]}" for name in FORMS[: FORMS.index(form)]]
    elif obstacles[form] is not None:
        raise ValueError(
            f"sampler_plan: expected a model and graph that the form {form!r} can sample, got "
            f"{obstacles[form]}; leave the form out, or take 'plain', which samples any"
        )
    else:
        reasons = ["the form was given"]
    if form == "lattice":
        layout = board
    else:
        multiple = NUM_LANES if form == "sums" else 1
        layout = sweep_plan(graph, colors=colors, clamped=clamped, multiple=multiple)
    return SamplerPlan(
        layout=layout,
        form=form,
        num_chains=num_chains,
        num_bits=num_bits,
        num_rounds=num_rounds,
        backend=jax.default_backend() if backend is None else backend,
        reasons=tuple(reasons),
    )


def check_model(model: PairwiseModel, plan: SamplerPlan) -> None:
    """Raise if the form of a plan cannot sample a model, as far as that is known.

    Args:
        model: Pairwise model.
        plan: Sampler plan.

    Raises:
        ValueError: If it cannot.
    """
    obstacle = None
    if plan.form != "plain" and model.num_states != 2:
        obstacle = f"{model.num_states} states"
    elif plan.form == "lattice" and _is_known(model):
        obstacle = _obstacle_to_lattice(model, plan.layout)
    if obstacle is not None:
        raise ValueError(
            f"run: expected a model that the form {plan.form!r} can sample, got {obstacle}; make a "
            "sampler_plan for this model"
        )


def _obstacle_to_lattice(model: PairwiseModel, board: CheckerboardPlan | None) -> str | None:
    """Why the words of a lattice cannot hold the model, if they cannot."""
    if board is None:
        return "not a torus of 64 n x 2 m nodes"
    if not isinstance(model, Ising):
        return "not an Ising model"
    if not _is_known(model):
        return "the numbers of the model are not known when the plan is made"
    couplings, fields = np.asarray(model.couplings), np.asarray(model.fields)
    if any(np.ptp(part) for part in (*np.split(couplings, 2), fields)):
        return "couplings or fields differ from place to place"
    return None


def _is_known(model: PairwiseModel) -> bool:
    """Whether the numbers of a model are there, not traced and not only their shapes."""
    leaves = jax.tree.leaves(model)
    return bool(leaves) and all(
        isinstance(leaf, np.ndarray | jax.Array) and not isinstance(leaf, jax.core.Tracer)
        for leaf in leaves
    )


def _check_options(
    num_chains: int, num_sweeps: int, form: str | None, num_bits: int, num_rounds: int
) -> None:
    """Raise for the first option out of range."""
    for name, number in (("num_chains", num_chains), ("num_sweeps", num_sweeps)):
        if number < 1:
            raise ValueError(
                f"sampler_plan: expected {name} to be at least 1, got {number}; raise it"
            )
    if form is not None and form not in FORMS:
        raise ValueError(
            f"sampler_plan: expected form to be one of {FORMS}, got {form!r}; name one of them"
        )
    if not 1 <= num_bits <= 32:
        raise ValueError(
            f"sampler_plan: expected num_bits to be in 1..32, got {num_bits}; 12 shares almost "
            "nothing between chains, 32 nothing"
        )
    if num_rounds < 7:
        raise ValueError(
            f"sampler_plan: expected num_rounds to be at least 7, got {num_rounds}; fewer rounds "
            "of Philox fail statistical tests"
        )
