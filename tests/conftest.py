"""What every test shares: fixed seeds, a compilation cache, a 64-bit switch and the shared data."""

import gc
import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Before jax is imported. Eight threads: with two, jaxlib's CPU client can deadlock on vmapped
# Cholesky and triangular solves. The cache makes a second run of the tests compile nothing, and
# plainer machine code halves the compilation of a first one, which takes most of its time.
os.environ.setdefault("NPROC", "8")
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("MPLBACKEND", "Agg")

import jax
import numpy as np
import pytest


@pytest.fixture
def key() -> jax.Array:
    """The same key for every test: a failure can be run again."""
    return jax.random.key(0)


@pytest.fixture
def rng() -> np.random.Generator:
    """The same NumPy generator for every test."""
    return np.random.default_rng(0)


@pytest.fixture
def x64():
    """Double precision inside one test."""
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of data sets beside the repository, too large or too many to ship with it."""
    path = ROOT.parent / "shared" / "data"
    if not path.is_dir():
        pytest.skip("needs the data folder ../shared/data beside the repository")
    return path


@pytest.fixture(autouse=True, scope="module")
def _few_memory_maps():
    """Forget compiled programs before there are too many of them.

    Each holds several memory maps, of which Linux allows a process 65,530; beyond, jaxlib crashes.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
        jax.clear_caches()
        gc.collect()
