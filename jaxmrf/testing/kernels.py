r"""What every NumPyro kernel must do, as checks that pytest can run over a table of kernels.

``KERNEL_CHECKS`` is the contract of ``MCMCKernel``, method by method. ``prior_invariance`` tests
that a kernel targets the posterior: if :math:`(\theta_0, y) \sim p(\theta) p(y \mid \theta)` and
:math:`\theta_L` comes from L steps of a kernel that leaves :math:`p(\theta \mid y)` invariant, then

.. math:: (\theta_L, y) \sim p(\theta) \, p(y \mid \theta).

Replicates are independent, so textbook tests of two samples are exact. Reference: Geweke, "Getting
it right", JASA 99 (2004); in this form Gandy & Scott, arXiv:2001.06465 (2020).
"""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np
from numpyro import handlers
from numpyro.distributions import biject_to
from scipy import stats

from jaxmrf.testing.kernel_contract import KERNEL_CHECKS, KernelCase

__all__ = ["KERNEL_CHECKS", "KernelCase", "exact_stationarity", "prior_invariance"]

_REFERENCE_DRAWS = 4  # draws from the joint for each replicate of the kernel
_MIN_EXPECTED = 5.0  # smallest expected count of a chi-square cell


def prior_invariance(
    kernel,
    model: Callable,
    observed: str | Sequence[str] | Mapping[str, str],
    args: tuple = (),
    *,
    num_replicates: int = 1000,
    num_steps: int = 10,
    seed: int = 0,
    init: str | Callable = "prior",
    statistics: Mapping[str, Callable] | None = None,
    cdfs: Mapping[str, Callable] | None = None,
) -> dict[str, float]:
    """P-values of the hypothesis that a kernel leaves the posterior of a model invariant.

    Adaptation breaks invariance, so the kernel is initialised with ``num_warmup=0``. Floating
    values are compared by Kolmogorov-Smirnov, integers by chi-square; a site of several elements
    gets the smallest p-value of its elements times their number. The marginals of the latent sites
    alone do not see a kernel that ignores the data: add statistics of latent and observed values.

    Args:
        kernel: A kernel built on the model; each site of the model has to be owned.
        model: The model, which draws the observed sites if their keywords are not given.
        observed: Names of the observed sites, or these by the keyword that passes their value.
        args: Other arguments of the model.
        num_replicates: Number of independent replicates.
        num_steps: Steps of the kernel in each replicate.
        seed: Seed of everything.
        init: "prior" starts at the drawn parameters, handed over as ``init_params`` (continuous
            sites unconstrained); a function of the drawn sites may hand them over in other forms.
        statistics: Scalar functions of the dict of all values, latent and observed.
        cdfs: Exact prior cumulative distribution functions by latent site; by default the
            comparison is with independent draws.

    Returns:
        P-value by latent site and by statistic.

    Raises:
        ValueError: If an observed site is not in the model or ``init`` is of no known form.
    """
    observed = {observed: observed} if isinstance(observed, str) else observed
    keywords = dict(observed) if isinstance(observed, Mapping) else {n: n for n in observed}
    to_init = _unconstrained if init == "prior" else init
    if not callable(to_init):
        raise ValueError(f'prior_invariance: expected init "prior" or a function, got {init!r}')
    statistics = {} if statistics is None else statistics
    latent: list[str] = []

    def draw(key):
        trace = handlers.trace(handlers.seed(model, key)).get_trace(*args)
        sites = {
            name: site
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        if not keywords.keys() <= sites.keys():
            raise ValueError(
                f"prior_invariance: expected observed sites among {sorted(sites)}, got "
                f"{sorted(keywords)}; name sites that the model draws without data"
            )
        latent[:] = [name for name in sites if name not in keywords]
        return sites

    def summarize(values):
        return values | {name: function(values) for name, function in statistics.items()}

    def reference(key):
        return summarize({name: site["value"] for name, site in draw(key).items()})

    def replicate(key):
        key_draw, key_kernel = jax.random.split(key)
        sites = draw(key_draw)
        data = {name: sites[name]["value"] for name in keywords}
        kwargs = {keyword: data[name] for name, keyword in keywords.items()}
        start = to_init({name: sites[name] for name in latent})
        state = kernel.init(key_kernel, 0, start, args, kwargs)
        state = jax.lax.fori_loop(
            0, num_steps, lambda _, state: kernel.sample(state, args, kwargs), state
        )
        values = kernel.postprocess_fn(args, kwargs)(getattr(state, kernel.sample_field))
        return summarize({name: values[name] for name in latent} | data)

    key_reference, key_replicate = jax.random.split(jax.random.key(seed))
    keys = jax.random.split(key_replicate, num_replicates)
    result = jax.device_get(jax.jit(jax.vmap(replicate))(keys))
    keys = jax.random.split(key_reference, _REFERENCE_DRAWS * num_replicates)
    prior = jax.device_get(jax.jit(jax.vmap(reference))(keys))
    cdfs = {} if cdfs is None else cdfs
    return {
        name: _p_value(result[name], prior[name], cdfs.get(name)) for name in [*latent, *statistics]
    }


def exact_stationarity(transition, probabilities) -> float:
    """The largest entry of ``|pi P - pi|`` of a finite Markov chain; 0 if pi is stationary.

    Args:
        transition: Matrix P "states states", from a row to a column.
        probabilities: Distribution pi "states", normalised here.

    Raises:
        ValueError: If a row of the matrix is not a distribution.

    >>> exact_stationarity([[0.5, 0.5], [0.25, 0.75]], [1, 2])
    0.0
    """
    transition = np.asarray(transition, dtype=np.float64)
    sums = transition.sum(axis=1)
    if (transition < 0).any() or not np.allclose(sums, 1, atol=1e-5):
        raise ValueError(
            "exact_stationarity: expected rows that are distributions, got smallest entry "
            f"{transition.min()} and row sums {sums.min()}..{sums.max()}; normalise the rows"
        )
    probabilities = np.asarray(probabilities, dtype=np.float64)
    probabilities = probabilities / probabilities.sum()
    return float(np.abs(probabilities @ transition - probabilities).max())


def _unconstrained(sites: dict) -> dict:
    """Values as a kernel that runs alone takes them."""

    def convert(site):
        support = site["fn"].support
        return site["value"] if support.is_discrete else biject_to(support).inv(site["value"])

    return {name: convert(site) for name, site in sites.items()}


def _p_value(values, reference, cdf) -> float:
    """The smallest p-value over the elements of a site, times their number."""
    values = np.asarray(values).reshape(len(values), -1)
    reference = np.asarray(reference).reshape(len(reference), -1)
    if not np.isfinite(values).all():
        return 0.0
    if not np.issubdtype(values.dtype, np.floating):
        pairs = zip(values.T, reference.T, strict=True)
        p_values = [_chi_square(ours, theirs) for ours, theirs in pairs]
    elif cdf is not None:
        p_values = [stats.kstest(ours, cdf).pvalue for ours in values.T]
    else:
        pairs = zip(values.T, reference.T, strict=True)
        p_values = [stats.ks_2samp(*pair, method="asymp").pvalue for pair in pairs]
    return min(1.0, len(p_values) * float(np.min(p_values)))


def _chi_square(values: np.ndarray, reference: np.ndarray) -> float:
    """P-value of the chi-square test that two samples of integers are of one distribution."""
    levels, codes = np.unique(np.concatenate([values, reference]), return_inverse=True)
    first = np.bincount(codes[: len(values)], minlength=len(levels))
    second = np.bincount(codes[len(values) :], minlength=len(levels))
    share = len(values) / (len(values) + len(reference))
    is_rare = (first + second) * min(share, 1 - share) < _MIN_EXPECTED
    table = np.stack([first, second])
    pooled = np.concatenate([table[:, ~is_rare], table[:, is_rare].sum(1, keepdims=True)], axis=1)
    pooled = pooled[:, pooled.sum(0) > 0]
    if pooled.shape[1] < 2:
        return 1.0
    return float(stats.chi2_contingency(pooled, correction=False).pvalue)
