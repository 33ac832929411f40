"""Models of others with known answers: log10 Z to 1e-9, marginals to 1e-9 of exact files.

Published numbers have 6 digits; those are met to half of the last one.
"""

import csv
import math

import jax
import numpy as np
import pytest
from random_factor_graphs import check_beliefs

from jaxmrf.exact import junction_tree, mode, solve
from jaxmrf.exact.host import sample
from jaxmrf.formats import read_fg, read_uai, read_uai_log10_z, read_uai_marginals
from jaxmrf.graphs import elimination_plan
from jaxmrf.models import log_potential_of

NETWORKS = (
    "asia", "cancer", "earthquake", "sachs", "child", "alarm", "insurance", "hailfinder", "win95pts"
)  # fmt: skip
LIBDAI = ("alarm", "testfast", "twofactors", "zeroes1")
GRIDS = [
    f"{kind}_{seed}"
    for kind in ("attractive_J0.5", "attractive_J1.0", "mixed_J0.5", "mixed_J1.0", "mixed_J2.0")
    for seed in ("s0", "s1", "s2", "s3")
]
COMPETITION = ("Promedus_24", "Promedus_15", "Promedus_22", "Grids_12")
COMPETITION_SLOW = (
    "Grids_11", "Grids_13", "Segmentation_11", "Segmentation_12", "Segmentation_13", "Pedigree_11",
    "Pedigree_12", "Promedus_11", "Promedus_27", "Promedus_34", "DBN_11", "DBN_12", "CSP_11",
    "CSP_12",
)  # fmt: skip


def rows(path):
    """Rows of a table by the name in its first column."""
    with open(path, encoding="utf-8") as file:
        return {next(iter(row.values())): row for row in csv.DictReader(file)}


def read_instance(shared_data, name):
    """A model of the competition with its evidence."""
    return read_uai(shared_data / f"uai/{name}.uai", shared_data / f"uai/{name}.uai.evid")


def check_instance(shared_data, name, log10_z, nodes, tolerance=1e-9):
    """Log10 Z and marginals against exact answers where there are any, and the published ones."""
    folder = shared_data / "uai"
    published = read_uai_log10_z(folder / f"{name}.uai.PR")
    assert log10_z == pytest.approx(published, rel=6e-6)
    wanted = np.concatenate(read_uai_marginals(folder / f"{name}.uai.MAR"))
    np.testing.assert_allclose(nodes, wanted, rtol=0, atol=5.1e-7)
    row = rows(folder / "index.csv").get(name)
    if row and row["log10Z_exact"]:
        assert log10_z == pytest.approx(float(row["log10Z_exact"]), rel=tolerance)
    if (folder / f"{name}.exact.MAR").exists():
        wanted = np.concatenate(read_uai_marginals(folder / f"{name}.exact.MAR"))
        np.testing.assert_allclose(nodes, wanted, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", NETWORKS)
def test_bayesian_networks_before_and_after_evidence(shared_data, name):
    folder = shared_data / "bnlearn"
    row = rows(folder / "reference.csv")[name]
    path, evidence = folder / f"{name}.uai", folder / f"{name}.uai.evid"
    for graph, wanted_log_z, kind in (
        (read_uai(path), float(row["lnZ_no_evidence"]), "prior"),
        (read_uai(path, evidence), float(row["ln_P_evidence"]), "post"),
    ):
        beliefs = solve(graph)
        assert beliefs.log_z == pytest.approx(wanted_log_z, rel=1e-9, abs=1e-11)
        wanted = read_uai_marginals(folder / f"{name}.{kind}.MAR")
        np.testing.assert_allclose(beliefs.nodes.flat, np.concatenate(wanted), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", LIBDAI)
def test_graphs_of_libdai(shared_data, name):
    folder = shared_data / "libdai"
    beliefs = solve(read_fg(folder / f"{name}.fg"))
    wanted = float(rows(folder / "reference.csv")[name]["lnZ"])
    assert beliefs.log_z == pytest.approx(wanted, rel=1e-9, abs=1e-12)
    wanted = read_uai_marginals(folder / f"{name}.exact.MAR")
    np.testing.assert_allclose(beliefs.nodes.flat, np.concatenate(wanted), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", GRIDS)
def test_ising_grids(shared_data, name):
    path = shared_data / f"ising10x10/{name}.uai"
    beliefs = solve(read_uai(path))
    wanted = read_uai_log10_z(f"{path}.PR")
    assert beliefs.log_z / math.log(10) == pytest.approx(wanted, rel=1e-9)
    wanted = np.concatenate(read_uai_marginals(f"{path}.MAR"))
    np.testing.assert_allclose(beliefs.nodes.flat, wanted, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "name", [*COMPETITION, *(pytest.param(one, marks=pytest.mark.slow) for one in COMPETITION_SLOW)]
)
def test_instances_of_the_competition(shared_data, name):
    beliefs = solve(read_instance(shared_data, name))
    check_instance(shared_data, name, beliefs.log_z / math.log(10), beliefs.nodes.flat)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Grids_15", "ObjectDetection_38", "linkage_16"])
def test_instances_with_published_answers_only(shared_data, name):
    beliefs = solve(read_instance(shared_data, name))
    check_instance(shared_data, name, beliefs.log_z / math.log(10), beliefs.nodes.flat)


def check_compiled(shared_data, name):
    """The compiled engine in double and in single precision."""
    graph = read_instance(shared_data, name)
    plan = elimination_plan(graph.hypergraph)
    beliefs = junction_tree.solve(graph, plan)
    flat = np.asarray(beliefs.nodes.flat)
    assert flat.dtype == np.float64 and not np.isnan(beliefs.factors.flat).any()
    check_instance(shared_data, name, float(beliefs.log_z) / math.log(10), flat)
    with jax.enable_x64(False):
        single = junction_tree.solve(graph, plan)
        assert single.log_z.dtype == np.float32
        np.testing.assert_allclose(single.log_z, beliefs.log_z, rtol=2e-6)
        np.testing.assert_allclose(single.nodes.flat, flat, atol=2e-5)


@pytest.mark.parametrize("name", ["Promedus_24", "Grids_12"])
def test_compiled_engine_on_instances_of_the_competition(x64, shared_data, name):
    check_compiled(shared_data, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Promedus_15", "Segmentation_12", "Pedigree_12", "DBN_11"])
def test_compiled_engine_on_large_instances(x64, shared_data, name):
    check_compiled(shared_data, name)


def check_mode(graph, number):
    """The mode's value is its log potential, and no draw has a larger one."""
    states, value = mode(graph)
    assert float(log_potential_of(graph, states)) == pytest.approx(value, abs=1e-8)
    draws = sample(np.random.default_rng(0), graph, num_samples=number)
    potentials = np.asarray(jax.jit(jax.vmap(lambda row: log_potential_of(graph, row)))(draws))
    assert potentials.max() <= value + 1e-9
    return value


def test_mode_has_its_value_and_beats_draws(x64, shared_data):
    check_mode(read_instance(shared_data, "Promedus_24"), 2_000)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*COMPETITION, "Segmentation_12", "Segmentation_13", "CSP_12"])
def test_mode_has_its_value_and_beats_many_draws(x64, shared_data, name):
    check_mode(read_instance(shared_data, name), 100_000)


@pytest.mark.parametrize("name", LIBDAI[1:])
def test_small_graphs_of_libdai_equal_brute_force(shared_data, name):
    check_beliefs(
        solve(read_fg(shared_data / f"libdai/{name}.fg")),
        read_fg(shared_data / f"libdai/{name}.fg"),
    )
