"""Every public kernel keeps every check of the kernel contract."""

from functools import partial

import jax.numpy as jnp
import pytest
from feature_models import one_layer
from kernel_models import (
    field_and_mixture,
    grouped_square,
    grouped_tables,
    latent_field,
    mixture_by_event,
    observed_field,
)
from numpyro.infer.mcmc import MCMCKernel

import jaxmrf.infer
from jaxmrf.infer import (
    AuxiliaryVariable,
    ConcentrationGibbs,
    ExactLikelihood,
    ExchangeMH,
    FactorHierarchyGibbs,
    GroupExchange,
    GroupGibbs,
    LatentFieldGibbs,
    LinearResponse,
    MRFGibbs,
    PlateGibbs,
    StrippedBeta,
)
from jaxmrf.testing import KERNEL_CHECKS, KernelCase

STATES = jnp.array([[1, 1, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]])
NUMBERS = jnp.array([0.3, -0.4, 1.2, 0.8])
GROUPED = {  # likelihoods of GroupGibbs by the name of their case
    "grouped": StrippedBeta(num_particles=20, num_steps=20, num_refits=1),
    "grouped_auxiliary": AuxiliaryVariable(num_proposals=1, num_value_steps=1),
    "grouped_exact": ExactLikelihood(),
    "grouped_linear_response": LinearResponse(num_chains=20, num_snapshots=10, first_expansion=2),
}


def two_blocks():
    return MRFGibbs(
        [
            (ExchangeMH(field_and_mixture, num_moves=2), ["coupling", "scale"]),
            (PlateGibbs(field_and_mixture), None),
        ]
    )


def grouped_blocks(likelihood):
    return MRFGibbs(
        [
            (GroupGibbs(grouped_square, likelihood), ["groups", "phi"]),
            (ConcentrationGibbs(grouped_square), ["alpha"]),
        ]
    )


CASES = {
    "exchange": KernelCase(lambda: ExchangeMH(observed_field), (STATES,)),
    "factor_hierarchy": KernelCase(lambda: FactorHierarchyGibbs(one_layer), (NUMBERS[:3],)),
    "group_exchange": KernelCase(lambda: GroupExchange(grouped_tables, num_proposals=1), (STATES,)),
    "latent_field": KernelCase(lambda: LatentFieldGibbs(latent_field), (NUMBERS,)),
    "mrf_gibbs": KernelCase(two_blocks, (STATES[0], NUMBERS[:2])),
    "plate_gibbs": KernelCase(
        lambda: PlateGibbs(mixture_by_event), (jnp.stack([NUMBERS, -NUMBERS], axis=1)[:3],)
    ),
}
CASES |= {
    name: KernelCase(partial(grouped_blocks, likelihood), (STATES,))
    for name, likelihood in GROUPED.items()
}
SLOW = {"factor_hierarchy", "group_exchange", *GROUPED}


@pytest.mark.parametrize("check", KERNEL_CHECKS)
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES]
)
def test_kernel_keeps_the_contract(case, check):
    KERNEL_CHECKS[check](CASES[case])


def test_every_public_kernel_has_a_case():
    public = {
        value
        for value in vars(jaxmrf.infer).values()
        if isinstance(value, type) and issubclass(value, MCMCKernel)
    }
    kernels = [case.make() for case in CASES.values()]
    blocks = [block for kernel in kernels for block, _ in getattr(kernel, "blocks", ())]
    assert public == {type(kernel) for kernel in [*kernels, *blocks]}
