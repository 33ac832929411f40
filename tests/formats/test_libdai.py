import csv
import math

import numpy as np
import pytest
from table_oracle import joint, marginals, sum_product

from jaxmrf.formats import read_fg, read_uai_marginals, write_fg
from jaxmrf.models import FactorGraph

SMALL = """# two factors
2

2   # scope
3 0
2 3
3
0 1.5
1 0.5
5 2
\n0\n\n1
0 0.25
"""


def written(tmp_path, text):
    path = tmp_path / "model.fg"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def tables_of(graph):
    return [np.exp(graph.log_table(factor)) for factor in range(len(graph.scopes))]


def test_first_variable_runs_fastest_and_unwritten_entries_are_zero(tmp_path):
    graph = read_fg(written(tmp_path, SMALL))
    assert graph.num_states == (3, 1, 1, 2)
    assert graph.scopes == ((3, 0), ())
    assert isinstance(graph.log_tables, np.ndarray) and graph.log_tables.dtype == np.float64
    first, second = tables_of(graph)
    np.testing.assert_allclose(first, [[1.5, 0, 0], [0.5, 0, 2]], rtol=1e-15)
    np.testing.assert_allclose(second, 0.25, rtol=1e-15)
    assert read_fg(written(tmp_path, "0")).num_nodes == 0


def test_model_is_read_back_to_the_same_bits(tmp_path):
    graph = read_fg(written(tmp_path, SMALL))
    write_fg(graph, tmp_path / "out.fg")
    again = read_fg(tmp_path / "out.fg")
    assert again.num_states == graph.num_states
    assert again.scopes == (*graph.scopes, (1,), (2,))  # variables in no scope keep their number
    for factor in range(2):
        np.testing.assert_array_equal(again.log_table(factor), graph.log_table(factor))
    seen = graph.observe({0: [0.5, 1.0, 2.0]})
    write_fg(seen, tmp_path / "out.fg")
    again = read_fg(tmp_path / "out.fg")
    evidence = np.array([0.5, 1.0, 2.0])
    expected = joint(graph.num_states, [*graph.scopes, (0,)], [*tables_of(graph), evidence])
    found = joint(again.num_states, again.scopes, tables_of(again))
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    with pytest.raises(ValueError, match="write_fg: expected potentials within the range of fl"):
        write_fg(FactorGraph.from_tables([1], [(0,)], [np.array([1e4])]), tmp_path / "out.fg")


BAD = [
    (
        "",
        "the number of factors, .* got the end of the file at FILE, line 1 .token 1.; the file is",
    ),
    ("x", "the number of factors, .* got 'x' at FILE, line 1 .token 1.; begin with the number"),
    ("5\n", "the number of factors, .* got '5' at FILE, line 1 .token 1.; begin with the number"),
    ("1\n7\n0", "the number of variables of factor 0, got '7' at FILE, line 2 .token 2.; give a"),
    ("1\n1\n-1\n2\n0", "1 variables in the scope of factor 0, got '-1' at FILE, line 3 .token 3"),
    (
        "1\n1\n99999999\n2\n0",
        "1 variables in the scope of factor 0, got '99999999' at FILE, line 3",
    ),
    (
        "1\n2\n0 0\n2 2\n0",
        "different variables in the scope of factor 0, got .0, 0. at FILE, line 2",
    ),
    (
        "1\n1\n0\n0\n0",
        "a positive number of states of variable 0, got '0' at FILE, line 4 .token 4",
    ),
    ("1\n1\n0\n2e0\n0", "a positive number of states of variable 0, got '2e0' at FILE, line 4"),
    ("2\n1\n0\n2\n0\n\n1\n0\n3\n0", "2 states of variable 0 as before, got '3' at FILE, line 9"),
    ("1\n1\n0\n2\n3\n0 1", "non-zero entries of factor 0, at most 2, got '3' at FILE, line 5"),
    (
        "1\n1\n0\n2\n2\n0 1\n",
        "2 pairs of a place in 0..1, .* got the end of the file at FILE, line 6",
    ),
    ("1\n1\n0\n2\n2\n0 1\n2 1", "2 pairs of a place in 0..1, .* got '2' at FILE, line 7 .token 8"),
    ("1\n1\n0\n2\n2\n0 1\n0 1", "2 pairs of a place .*, each once, .* got '0' at FILE, line 7"),
    ("1\n1\n0\n2\n2\n0 1\n1.0 1", "2 pairs of a place in 0..1, .* got '1.0' at FILE, line 7"),
    ("1\n1\n0\n2\n2\n0 1\n1 -1", "non-negative entry in the table of factor 0, got '-1' .* line 7"),
    (
        "1\n1\n0\n2\n2\n0 nan\n1 1",
        "non-negative entry in the table of factor 0, got 'nan' .* line 6",
    ),
    (
        "1\n1\n0\n2\n2\n0 1\n1 1e999",
        "non-negative entry in the table .* got '1e999' at FILE, line 7",
    ),
    ("1\n1\n0\n2\n2\n0 1\n1 x", "non-negative entry in the table .* got 'x' at FILE, line 7"),
    ("1\n1\n0\n2\n0\n5", "the end of the file after the last factor, got '5' at FILE, line 6"),
    (
        "1\n2\n0 1\n4000000 4000000\n0",
        "entries in the tables .* got a table of shape 4000000 x 4000000",
    ),
    ("1\n1\n4194303\n2\n0", "at most 4194304 states of all variables, got 4194305 at FILE, line 5"),
    (b"1\n\xff", "UTF-8 text, got byte 0xff at FILE, line 2 .token 2.; save the file as UTF-8"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_bad_model_is_refused_with_its_place(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(
        ValueError, match="^read_fg: expected .*" + message.replace("FILE", str(path))
    ):
        read_fg(path)


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_fg(tmp_path / "none.fg")


@pytest.mark.parametrize("name", ["alarm", "testfast", "twofactors", "zeroes1"])
def test_shared_model_has_the_published_answers(shared_data, tmp_path, name):
    path = shared_data / "libdai" / f"{name}.fg"
    graph = read_fg(path)
    write_fg(graph, tmp_path / "out.fg")
    again = read_fg(tmp_path / "out.fg")
    assert again.hypergraph == graph.hypergraph
    np.testing.assert_array_equal(again.log_tables, graph.log_tables)
    with open(shared_data / "libdai" / "reference.csv") as file:
        log_z = {row["net"]: float(row["lnZ"]) for row in csv.DictReader(file)}[name]
    tables = tables_of(graph)
    published = read_uai_marginals(path.with_suffix(".exact.MAR"))
    assert tuple(map(len, published)) == graph.num_states
    if graph.num_nodes < 10:
        values = joint(graph.num_states, graph.scopes, tables)
        total, found = values.sum(), marginals(values)
    else:
        total = sum_product(graph.scopes, tables)
        found = [sum_product(graph.scopes, tables, (n,)) / total for n in range(graph.num_nodes)]
    assert math.log(total) == pytest.approx(log_z, abs=1e-10)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(published), atol=1e-11)
