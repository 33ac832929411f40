"""Fixed points that libDAI published or computed, on data beside the repository."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmrf.models import FactorGraph
from jaxmrf.variational.belief_propagation import appearance_probabilities, solve


def read_fg(path):
    """A libDAI factor graph: in every table the first variable of the scope runs fastest."""
    words = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    words = iter(" ".join(words).split())
    numbers, scopes, tables = {}, [], []
    for _ in range(int(next(words))):
        scope = [int(next(words)) for _ in range(int(next(words)))]
        shape = [int(next(words)) for _ in scope]
        numbers.update(zip(scope, shape, strict=True))
        table = np.zeros(int(np.prod(shape)))
        for _ in range(int(next(words))):
            entry = int(next(words))
            table[entry] = float(next(words))
        scopes.append(scope)
        with np.errstate(divide="ignore"):
            tables.append(np.log(table).reshape(shape, order="F"))
    return FactorGraph.from_tables([numbers[node] for node in sorted(numbers)], scopes, tables)


def read_uai(path):
    """A UAI Markov network of pairs and single variables."""
    words = iter(path.read_text().split())
    assert next(words) == "MARKOV"
    numbers = [int(next(words)) for _ in range(int(next(words)))]
    scopes = [[int(next(words)) for _ in range(int(next(words)))] for _ in range(int(next(words)))]
    tables = []
    for scope in scopes:
        entries = np.array([float(next(words)) for _ in range(int(next(words)))])
        tables.append(np.log(entries).reshape([numbers[node] for node in scope]))
    return FactorGraph.from_tables(numbers, scopes, tables)


def rows_of(path):
    """Every method of a libDAI test report: its six numbers and its beliefs of the variables."""
    rows = {}
    for line in path.read_text().splitlines():
        if found := re.match(r"# \(\{x\d+\}, \((.*), (.*)\)\)", line):
            rows[name][1].append([float(number) for number in found.groups()])
        elif not line.startswith("#"):
            name, *numbers = line.replace("N/A", "nan").split()
            rows[name] = ([float(number) for number in numbers], [])
    return rows


def exact_of(folder, name):
    """Exact marginals and log Z beside a libDAI factor graph."""
    numbers = (folder / f"{name}.exact.MAR").read_text().split()[2:]
    nodes = np.array(numbers, float).reshape(-1, 3)[:, 1:]
    table = (folder / "reference.csv").read_text().splitlines()
    return nodes, float(next(line for line in table if line.startswith(name)).split(",")[3])


@pytest.mark.parametrize("is_max", [False, True])
def test_fixed_point_of_the_test_grid_is_libdais(shared_data, x64, is_max):
    folder = shared_data / "libdai"
    found = solve(read_fg(folder / "testfast.fg"), is_max=is_max)
    assert found.is_converged
    nodes = np.asarray(found.nodes.flat).reshape(16, 2)
    rows = rows_of(folder / "testfast.out")
    (largest, average, *_, log_z_error, _), published = rows["MP_PARALL" if is_max else "BP"]
    np.testing.assert_allclose(nodes, published, rtol=2e-4)
    exact, log_z = exact_of(folder, "testfast")
    if not is_max:
        errors = np.abs(nodes - exact).max(axis=1)
        np.testing.assert_allclose(errors.max(), largest, rtol=2e-4)
        np.testing.assert_allclose(errors.mean(), average, rtol=2e-4)
        np.testing.assert_allclose(found.log_z - log_z, log_z_error, rtol=1e-3)


@pytest.mark.parametrize("name", ["twofactors", "zeroes1"])
def test_trees_of_libdai_are_exact(shared_data, x64, name):
    folder = shared_data / "libdai"
    found = solve(read_fg(folder / f"{name}.fg"))
    exact, log_z = exact_of(folder, name)
    np.testing.assert_allclose(found.log_z, log_z, rtol=1e-9)
    np.testing.assert_allclose(np.asarray(found.nodes.flat).reshape(-1, 2), exact, atol=1e-9)


def test_ising_grids_have_libdais_fixed_points_and_bounds(shared_data, x64):
    paths = sorted((shared_data / "ising10x10").glob("*.uai"))
    graphs = [read_uai(path) for path in paths]
    structure = graphs[0].hypergraph
    assert all(graph.hypergraph == structure for graph in graphs) and len(graphs) >= 20
    references = [json.loads(path.with_suffix(".libdai.json").read_text()) for path in paths]
    log_z = np.array(
        [float(path.with_suffix(".uai.PR").read_text().split()[1]) for path in paths]
    ) * np.log(10)
    tables = jnp.asarray(np.stack([graph.log_tables for graph in graphs]))

    def values(own, **options):
        return solve(FactorGraph(own, jnp.zeros(200), structure), damping=0.5, **options)

    bethe = jax.vmap(values)(tables)
    weights = appearance_probabilities(structure)
    tree = jax.vmap(lambda own: values(own, weights=weights, max_iters=4000))(tables)
    compared = 0
    for number, reference in enumerate(references):
        # libDAI's damped run, where it came to rest
        if reference["BPdamp"]["conv"] and bethe.is_converged[number]:
            found = np.asarray(bethe.nodes.flat[number]).reshape(100, 2)[:, 1]
            compared += 1
            np.testing.assert_allclose(found, reference["BPdamp"]["p1"], atol=1e-6)
            np.testing.assert_allclose(bethe.log_z[number], reference["BPdamp"]["logZ"], rtol=1e-7)
        is_attractive = paths[number].name.startswith("attractive")
        if is_attractive and bethe.is_converged[number]:
            assert bethe.log_z[number] < log_z[number]
        # its trees are drawn, ours are all: near each other, and both above log Z
        bound = float(tree.log_z[number])
        assert bound > log_z[number]
        if tree.is_converged[number] and reference["TRWBP"]["conv"]:
            np.testing.assert_allclose(bound, reference["TRWBP"]["logZ"], rtol=0.01)
    assert compared >= 12
