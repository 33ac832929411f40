import csv
import math
from dataclasses import replace

import numpy as np
import pytest
from table_oracle import joint, marginals, sum_product

from jaxmrf.formats import (
    read_uai,
    read_uai_log10_z,
    read_uai_marginals,
    write_uai,
    write_uai_evidence,
)
from jaxmrf.models import FactorGraph

MARKOV = """MARKOV
3
2 3 2
3
2 0 1
2 2 1
0

6
 1.5 0 2
 0.25 4 1
6
 1 2 3 4 5 6
1
 0.5
"""
BAYES = "BAYES\n2\n2 2\n2\n1 0\n2 0 1\n2\n0.3 0.7\n4\n0.1 0.9 0.6 0.4\n"


def parts(graph):
    """Numbers of states, scopes and tables of a graph, evidence among the tables."""
    evidence = np.split(np.exp(graph.log_evidence), graph.hypergraph.node_starts[1:])
    tables = [np.exp(graph.log_table(factor)) for factor in range(len(graph.scopes))]
    nodes = [(node,) for node in range(graph.num_nodes)]
    return graph.num_states, [*graph.scopes, *nodes], [*tables, *evidence]


def written(tmp_path, text, name="model.uai"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def assert_same(graph, other):
    assert graph.hypergraph == other.hypergraph
    np.testing.assert_array_equal(graph.log_tables, other.log_tables)


def test_markov_model_is_read_in_the_order_of_the_file(tmp_path):
    graph = read_uai(written(tmp_path, MARKOV))
    assert graph.num_states == (2, 3, 2)
    assert graph.scopes == ((0, 1), (2, 1), ())
    assert isinstance(graph.log_tables, np.ndarray) and graph.log_tables.dtype == np.float64
    with np.errstate(divide="ignore"):
        first = np.log([[1.5, 0, 2], [0.25, 4, 1]])
    np.testing.assert_array_equal(graph.log_table(0), first)
    np.testing.assert_array_equal(graph.log_table(1), np.log([[1.0, 2, 3], [4, 5, 6]]))
    np.testing.assert_array_equal(graph.log_table(2), np.log(0.5))
    by_hand = sum(
        [[1.5, 0, 2], [0.25, 4, 1]][a][b] * [[1, 2, 3], [4, 5, 6]][c][b] * 0.5
        for a in range(2)
        for b in range(3)
        for c in range(2)
    )
    assert joint(*parts(graph)).sum() == pytest.approx(by_hand, rel=1e-14)


def test_blanks_windows_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path):
    text = "\ufeff" + MARKOV.replace("\n", "\r\n").replace(" ", "\t ")
    graph = read_uai(written(tmp_path, MARKOV))
    assert_same(read_uai(written(tmp_path, text, "other.uai")), graph)
    assert_same(read_uai(str(written(tmp_path, " ".join(MARKOV.split()), "line.uai"))), graph)


def test_impossible_and_empty_models_are_legal(tmp_path):
    graph = read_uai(written(tmp_path, "MARKOV 1 2 1 1 0 2 0 0"))
    np.testing.assert_array_equal(graph.log_tables, [-np.inf, -np.inf])
    assert read_uai(written(tmp_path, "MARKOV 0 0")).num_nodes == 0
    assert read_uai(written(tmp_path, "MARKOV 2 3 2 0")).num_states == (3, 2)


@pytest.mark.parametrize("text", ["2 0 1 2 0", "1\n2 0 1 2 0", "2\n0 1\n2 0\n", {0: 1, 2: 0}])
def test_evidence_leaves_the_conditional_distribution(tmp_path, text):
    evidence = text if isinstance(text, dict) else written(tmp_path, text, "model.evid")
    graph = read_uai(written(tmp_path, MARKOV), evidence)
    assert graph.observed() == {0: 1, 2: 0}
    np.testing.assert_allclose(marginals(joint(*parts(graph)))[1], np.array([0.25, 8, 3]) / 11.25)


@pytest.mark.parametrize("text", ["", "0", "0\n\n", "1\n0\n", "\n"])
def test_file_without_evidence_changes_nothing(tmp_path, text):
    graph = read_uai(written(tmp_path, MARKOV), written(tmp_path, text, "model.evid"))
    assert graph.observed() == {}


def test_written_model_is_read_back_to_the_same_bits(tmp_path):
    path = tmp_path / "out.uai"
    for kind, text in (("MARKOV", MARKOV), ("BAYES", BAYES)):
        graph = read_uai(written(tmp_path, text))
        write_uai(graph, path, kind=kind)
        assert path.read_text().startswith(kind)
        assert_same(read_uai(path), graph)
    rng = np.random.default_rng(0)
    table = np.log(np.concatenate([rng.random(2000), np.exp(rng.normal(scale=100, size=2000))]))
    graph = FactorGraph.from_tables([4000], [(0,)], [table])
    write_uai(graph, path)
    assert_same(read_uai(path), graph)
    text = MARKOV.split()
    write_uai(read_uai(written(tmp_path, MARKOV)), path)
    assert path.read_text().split() == text


def test_potentials_that_no_float_has_come_back_to_the_last_digits(tmp_path):
    table = np.random.default_rng(1).normal(scale=0.1, size=1000)
    assert (np.log(np.exp(table)) != table).any()
    write_uai(FactorGraph.from_tables([1000], [(0,)], [table]), tmp_path / "out.uai")
    np.testing.assert_allclose(read_uai(tmp_path / "out.uai").log_tables, table, atol=3e-16)


def test_written_evidence_is_part_of_the_distribution(tmp_path):
    graph = read_uai(written(tmp_path, MARKOV)).observe({1: [0.5, 0.0, 2.0], 0: 1})
    write_uai(graph, tmp_path / "out.uai")
    again = read_uai(tmp_path / "out.uai")
    assert again.scopes == (*graph.scopes, (0,), (1,))
    np.testing.assert_allclose(joint(*parts(again)), joint(*parts(graph)), rtol=1e-15)
    write_uai_evidence(graph.observed(), tmp_path / "out.evid")
    assert (tmp_path / "out.evid").read_text() == "1 0 1\n"


def test_model_that_cannot_be_written_is_refused(tmp_path):
    path = tmp_path / "out.uai"
    graph = read_uai(written(tmp_path, BAYES))
    with pytest.raises(ValueError, match="expected kind MARKOV or BAYES, got 'TREE'; choose"):
        write_uai(graph, path, kind="TREE")
    with pytest.raises(ValueError, match="network without evidence, got some on variables .1.;"):
        write_uai(graph.observe({1: 0}), path, kind="BAYES")
    pair = FactorGraph.from_tables([2, 2], [(0, 1)], [np.zeros((2, 2))])
    with pytest.raises(ValueError, match="last of exactly one scope, got .1. at the ends"):
        write_uai(pair, path, kind="BAYES")
    loop = FactorGraph.from_tables([2, 2], [(0, 1), (1, 0)], [np.zeros((2, 2))] * 2)
    with pytest.raises(ValueError, match="arrows without a cycle, got .*; write the model as"):
        write_uai(loop, path, kind="BAYES")
    for value in (800.0, -800.0):
        huge = FactorGraph.from_tables([2], [(0,)], [np.array([0.0, value])])
        with pytest.raises(ValueError, match=f"range of float64, got the log potential {value};"):
            write_uai(huge, path)
    assert not path.exists()


BAD = [
    ("", "MARKOV or BAYES, got the end of the file at FILE, line 1 .token 1.; begin with"),
    ("MARKOW\n1", "MARKOV or BAYES, got 'MARKOW' at FILE, line 1 .token 1.; begin with"),
    ("MARKOV", "number of variables, no more than .* got the end of the file .* line 1 .token 2."),
    ("MARKOV\n9\n2 2", "number of variables, no more than .* got '9' at FILE, line 2 .token 2.;"),
    ("MARKOV\n-1", "the number of variables, .* got '-1' at FILE, line 2 .token 2.; give a whole"),
    ("MARKOV\n2\n2 0\n0", "2 numbers of states, each a positive .* got '0' at FILE, line 3"),
    ("MARKOV\n1\n2.5\n0", "1 numbers of states, .* got '2.5' at FILE, line 3 .token 3.;"),
    ("MARKOV\n1\n²\n0", "1 numbers of states, .* got '²' at FILE, line 3 .token 3.;"),
    ("MARKOV 1 " + "9" * 60 + " 0", "1 numbers of states, .* got '9{37}...' at FILE, line 1"),
    (
        "MARKOV\n2\n2 99999999\n0",
        "at most 4194304 states .* got 100000001 at FILE, line 3 .token 4",
    ),
    ("MARKOV\n1\n2\n7\n1 0", "number of functions, .* got '7' at FILE, line 4 .token 4.;"),
    ("MARKOV\n1\n2\n1\n2 0 0\n4\n1 1 1 1", "variables of function 0, at most 1, got '2' .* line 5"),
    (
        "MARKOV\n2\n2 2\n1\n2 0 0\n4\n1 1 1 1",
        "different variables in .* 0, got .0, 0. at .* line 5",
    ),
    ("MARKOV\n1\n2\n1\n1 1\n2\n1 1", "1 variables in 0..0 in the scope of .* got '1' .* line 5"),
    (
        "MARKOV\n1\n2\n1\n1 0\n3\n1 1 1",
        "2 entries in table 0, on variables 0 with 2 .* '3' .* line 6",
    ),
    (
        "MARKOV\n1\n2\n1\n1 0\n\n2\n1",
        "2 finite, non-negative .* the end of the file .* line 8 .*short",
    ),
    ("MARKOV\n1\n2\n1\n1 0\n2\n1 1\n5", "end of the file after the last table, got '5' .* line 8"),
    ("MARKOV\n1\n2\n1\n1 0\n2\n1 -1", "2 finite, non-negative entries .* got '-1' at FILE, line 7"),
    (
        "MARKOV\n1\n2\n1\n1 0\n2\n1 nan",
        "2 finite, non-negative entries .* got 'nan' at FILE, line 7",
    ),
    ("MARKOV\n1\n2\n1\n1 0\n2\n1\n1e999", "non-negative entries .* got '1e999' at FILE, line 8"),
    ("MARKOV\n1\n2\n1\n1 0\n2\n1\n1_0", "non-negative entries .* got '1_0' at FILE, line 8"),
    (
        "MARKOV\n1\n2\n1\n1 0\n2\n1\none",
        "non-negative entries .* got 'one' at FILE, line 8 .token 9",
    ),
    (BAYES.replace("2 0 1\n", "2 1 0\n"), "variable without a table yet .* function 1, got .1, 0."),
    (
        "BAYES 2 2 2 1 1 0 2 1 1",
        "one table per variable .* got none for variable 1 at FILE, line 1",
    ),
    (
        "BAYES 2 2 2 2 2 1 0\n2 0 1 4 1 1 1 1 4 1 1 1 1",
        "without a cycle, got the cycle . - . - . of",
    ),
    (b"MARKOV\n1\n2 \xff", "UTF-8 text, got byte 0xff at FILE, line 3 .token 4.; save the file"),
    (
        "MARKOV 65 " + "1 " * 65 + "1 65 " + " ".join(map(str, range(65))) + " 1 1",
        "at most 64 vari",
    ),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_bad_model_is_refused_with_its_place(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(
        ValueError, match="^read_uai: expected .*" + message.replace("FILE", str(path))
    ):
        read_uai(path)


BAD_EVIDENCE = [
    ("1 3 0", "an observed variable in 0..2, 1 in all, got '3' at FILE, line 1 .token 2.; correct"),
    ("1 0 2", "a state in 0..1 of variable 0, got '2' at FILE, line 1 .token 3.; states are"),
    (
        "2 0 1\n0 0",
        "one state of variable 0, got 1 and 0 at FILE, line 2 .token 4.; observe it once",
    ),
    ("2 0 1", "an observed variable in 0..2, 2 in all, got the end of the file at FILE, line 1"),
    ("1 0 1 1 1", "the end of the file after 1 observed variables, got '1' at FILE, line 1"),
    ("2\n1 0 0\n1 1", "1 sample of evidence, got '2' at FILE, line 1 .token 1.; put every sample"),
    ("x", "the number of observed variables, got 'x' at FILE, line 1 .token 1.; give a whole"),
]


@pytest.mark.parametrize(("text", "message"), BAD_EVIDENCE, ids=range(len(BAD_EVIDENCE)))
def test_bad_evidence_is_refused_with_its_place(tmp_path, text, message):
    path = written(tmp_path, text, "bad.evid")
    with pytest.raises(
        ValueError, match="^read_uai: expected " + message.replace("FILE", str(path))
    ):
        read_uai(written(tmp_path, MARKOV), path)


def test_evidence_of_a_mapping_is_checked_by_the_model(tmp_path):
    with pytest.raises(ValueError, match="a variable in 0..2, got 7; variables are numbered"):
        read_uai(written(tmp_path, MARKOV), {7: 0})


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_uai(tmp_path / "none.uai")
    with pytest.raises(FileNotFoundError):
        read_uai(written(tmp_path, MARKOV), tmp_path / "none.evid")


def test_every_shared_model_is_read_and_written_back(shared_data, tmp_path):
    paths = [
        p
        for folder in ("uai", "bnlearn", "ising10x10")
        for p in (shared_data / folder).glob("*.uai")
    ]
    assert len(paths) > 40
    for path in paths:
        graph = read_uai(path, f"{path}.evid")
        evidence = (shared_data / f"{path}.evid").read_text().split()
        observed = {int(n): int(s) for n, s in zip(evidence[1::2], evidence[2::2], strict=True)}
        assert {node: graph.observed()[node] for node in observed} == observed
        plain = replace(graph, log_evidence=np.zeros_like(graph.log_evidence))
        write_uai(plain, tmp_path / "out.uai", kind=path.read_text().split()[0])
        assert_same(read_uai(tmp_path / "out.uai"), plain)
        for answer in path.parent.glob(f"{path.stem}*.MAR"):
            shape = tuple(map(len, read_uai_marginals(answer)))
            assert shape == graph.num_states


@pytest.mark.parametrize("name", ["Promedus_24", "Promedus_15", "Grids_12", "Pedigree_12"])
def test_normaliser_of_a_competition_model_is_the_published_one(shared_data, name):
    path = shared_data / "uai" / f"{name}.uai"
    _, scopes, tables = parts(read_uai(path, f"{path}.evid"))
    value = math.log10(sum_product(scopes, tables))
    assert value == pytest.approx(read_uai_log10_z(f"{path}.PR"), rel=5e-6)
    with open(shared_data / "uai" / "index.csv") as file:
        exact = {
            row["instance"]: float(row["log10Z_exact"] or "nan") for row in csv.DictReader(file)
        }
    assert value == pytest.approx(exact[name], rel=1e-12)


@pytest.mark.parametrize("name", ["asia", "sachs", "child", "alarm", "win95pts"])
def test_posterior_of_a_network_is_the_published_one(shared_data, name):
    path = shared_data / "bnlearn" / f"{name}.uai"
    num_states, scopes, tables = parts(read_uai(path, f"{path}.evid"))
    published = read_uai_marginals(path.with_suffix(".post.MAR"))
    for node in range(0, len(num_states), 3):
        values = sum_product(scopes, tables, (node,))
        np.testing.assert_allclose(values / values.sum(), published[node], atol=1e-11)
