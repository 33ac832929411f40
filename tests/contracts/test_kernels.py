"""Every public kernel keeps every check of the kernel contract."""

import pytest
from kernel_models import MIXTURE_DATA, mixture

from jaxmrf.infer import PlateGibbs
from jaxmrf.testing import KERNEL_CHECKS, KernelCase

CASES = {"plate_gibbs": KernelCase(lambda: PlateGibbs(mixture), (MIXTURE_DATA,))}


@pytest.mark.parametrize("check", KERNEL_CHECKS)
@pytest.mark.parametrize("case", CASES)
def test_kernel_keeps_the_contract(case, check):
    KERNEL_CHECKS[check](CASES[case])
