"""Runs split over devices equal runs on one: eight virtual devices, two processes; refusals."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from sharded_runs import PARTS, RING, ising

from jaxmrf.graphs import sweep_plan, torus
from jaxmrf.sampling import packed, sampler_plan
from jaxmrf.sharding import device_mesh, gather, place, split

SCRIPT = Path(__file__).with_name("sharded_runs.py")


def start(num_devices, *arguments):
    """A process of so many virtual devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={num_devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def found(process):
    """What a process printed, once it has ended well."""
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0
    return json.loads(output.splitlines()[-1])


def wrong(tree):
    """Names of the comparisons that failed."""
    return [
        (name, check)
        for name, checks in tree.items()
        for check, holds in checks.items()
        if not holds
    ]


def test_packed_chains_and_particles_over_eight_devices_equal_one_device():
    results = found(start(8, "tables,learner"))
    assert results.pop("num_devices") == 8
    assert wrong(results) == []


@pytest.mark.slow
def test_runs_over_eight_devices_equal_one_device():
    results = found(start(8, ",".join(PARTS)))
    assert results.pop("num_devices") == 8
    assert list(results) == list(PARTS)
    assert wrong(results) == []


@pytest.mark.slow
def test_runs_over_two_processes_equal_one_device():
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        address = f"localhost:{listener.getsockname()[1]}"
    children = [start(2, "tables,learner,replicates,rows", address, 2, index) for index in (0, 1)]
    for results in map(found, children):
        assert results.pop("num_devices") == 4
        assert wrong(results) == []


def mesh_of(num_devices):
    """A mesh on which nothing runs."""
    return Mesh(np.array(jax.devices() * num_devices), ("devices",))


@pytest.mark.parametrize(
    ("form", "num_chains", "num_devices", "enough"),
    [
        ("tables", 33, 3, 96),
        ("tables", 500, 3, 32 * 16 * 3),  # more than eight words come in sixteens
        ("sums", 33, 3, 96),
        ("plain", 10, 4, 12),
        ("lattice", 5, 2, 6),
    ],
)
def test_chains_that_cannot_be_cut_are_refused_with_a_number_that_can(
    form, num_chains, num_devices, enough
):
    graph = torus((64, 4))
    model = jax.tree.map(np.ones_like, ising(graph))
    plan = sampler_plan(graph, model, num_chains=num_chains, form=form)
    message = f"sharding: .* multiple of {num_devices}, .* make a sampler_plan of {enough} chains"
    with pytest.raises(ValueError, match=message):
        packed.sharding(plan, mesh_of(num_devices))
    enough_plan = replace(plan, num_chains=enough)
    fields = jax.eval_shape(lambda key: packed.init(key, model, enough_plan), jax.random.key(0))
    assert packed.sharding(enough_plan, mesh_of(num_devices)).shard_shape(fields.shape)


def test_arrays_that_cannot_be_cut_are_refused():
    layout = split(mesh_of(4), axis=1)
    for shape in ((4, 6), (8,)):
        with pytest.raises(
            ValueError, match="place: expected arrays that 4 devices can hold equal"
        ):
            place(np.zeros(shape), layout)


def test_arrays_are_laid_out_and_come_back_whole():
    mesh = device_mesh()
    arrays = {"rows": np.arange(6.0).reshape(2, 3), "chains": np.eye(2, dtype=np.int8)}
    for axis in (0, 1, None):
        placed = place(arrays, split(mesh, axis))
        jax.tree.map(np.testing.assert_array_equal, gather(placed), arrays)
    plan = sweep_plan(RING)
    assert packed.sharding(plan, mesh).spec == split(mesh, 1).spec
