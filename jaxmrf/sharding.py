r"""Arrays split over the devices of one process or of several.

.. math:: a = (a_1, \dots, a_D), \qquad \text{device } d \text{ holds } a_d
          \text{ and runs the same program}

Chains, particles, replicates and rows of data are independent of one another, so a program jitted
for one device runs on arrays split along their axis as it is: XLA lets every device compute its
part and adds up what is summed over the axis. Random numbers depend on a key and a place, not on a
device, so draws are those of one device bit for bit; sums of real numbers may differ by rounding.

With several processes each calls ``jax.distributed.initialize`` first and runs the same script.
Reference: Xu et al., "GSPMD: general and scalable parallelization for ML computation graphs",
arXiv:2105.04663 (2021).
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmrf.types import ArrayLike

__all__ = ["device_mesh", "gather", "place", "split"]


def device_mesh(devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh of one axis, "devices".

    Args:
        devices: The devices; by default all of all processes.
    """
    return Mesh(np.array(jax.devices() if devices is None else devices), ("devices",))


def split(mesh: Mesh, axis: int | None) -> NamedSharding:
    """The sharding of arrays with one axis split over all devices of a mesh.

    As ``out_shardings`` of ``jax.jit`` it makes a process compute its part only; rows of data that
    each process has read for itself become one array by ``jax.make_array_from_process_local_data``.

    Args:
        mesh: Mesh; the axes of a larger one count as one.
        axis: Number of the axis, 0 or more; None for arrays that every device holds whole.
    """
    if axis is None:
        return NamedSharding(mesh, PartitionSpec())
    return NamedSharding(mesh, PartitionSpec(*[None] * axis, mesh.axis_names))


def place(tree: Any, layout: NamedSharding) -> Any:
    """Arrays, keys included, laid out over devices.

    Args:
        tree: Pytree of arrays, whole and the same in every process, or laid out otherwise.
        layout: Sharding, such as ``split(mesh, axis=0)``.

    Raises:
        ValueError: If an array cannot be cut into equal parts.

    >>> placed = place(np.arange(6), split(device_mesh(jax.devices()[:1]), axis=0))
    >>> placed.sharding.num_devices
    1
    """
    for leaf in jax.tree.leaves(tree):
        try:
            layout.check_compatible_aval(np.shape(leaf))
            layout.shard_shape(np.shape(leaf))
        except ValueError as error:
            raise ValueError(
                f"place: expected arrays that {layout.num_devices} devices can hold equal parts "
                f"of, got shape {np.shape(leaf)} for {layout.spec}; add or leave out entries of "
                "that axis, or take fewer devices"
            ) from error
    return jax.tree.map(lambda leaf: _place(leaf, layout), tree)


def gather(tree: Any) -> Any:
    """Whole NumPy arrays in every process, from arrays split over devices; all processes call it.

    Args:
        tree: Pytree of arrays.
    """
    return jax.tree.map(_whole, tree)


def _place(array: ArrayLike, layout: NamedSharding) -> jax.Array:
    if layout.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        return jax.device_put(array, layout)
    # what JAX does not yet lay out over other processes' devices by itself
    if jax.dtypes.issubdtype(jax.numpy.result_type(array), jax.dtypes.prng_key):
        words = _place(jax.random.key_data(array), layout)
        return jax.random.wrap_key_data(words, impl=jax.random.key_impl(array))
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, layout, lambda index: host[index])


def _whole(array: ArrayLike) -> np.ndarray:
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
