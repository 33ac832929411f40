import numpy as np
import pytest
from table_oracle import joint, marginals

from jaxmrf.formats import read_bif, read_uai, write_bif
from jaxmrf.models import FactorGraph, Labels

SMALL = """// a comment: { ; "
network "light or dark" { property author = "a; b // c"; property version 1.0; }
/* more
   comment */ variable rain {
  type discrete [ 2 ] { yes, no };
  property position = (1, 2);
}
variable "wet grass" { type discrete[3]{ <5 5-12 "12 +" }; }
variable Asy/Patch { type discrete [ 2 ] { >=7.5, <7.5 }; }
probability ( rain ) { table 0.25, 0.75; }
probability ( "wet grass" | rain, Asy/Patch ) {
  property checked;
  (yes, >=7.5) 0.1, 0.2, 0.7;
  default 0.5 0.25 0.25;
  ("no", <7.5) 1.0, 0.0, 0.0; // the last row
}
probability ( Asy/Patch | rain ) { table 0.9 0.3 0.1 0.7; }
"""
NET = "network unknown {\n}\n"
A = "variable a {\n type discrete [ 2 ] { u, v };\n}\n"
B = "variable b {\n type discrete [ 2 ] { u, w };\n}\n"
PA = "probability ( a ) {\n table 0.5, 0.5;\n}\n"


def written(tmp_path, text):
    path = tmp_path / "net.bif"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_network_is_read_with_names_comments_and_defaults(tmp_path):
    graph = read_bif(written(tmp_path, SMALL))
    assert graph.labels == Labels(
        ("rain", "wet grass", "Asy/Patch"),
        (("yes", "no"), ("<5", "5-12", "12 +"), (">=7.5", "<7.5")),
    )
    assert graph.scopes == ((0,), (0, 2, 1), (0, 2))
    assert graph.log_tables.dtype == np.float64
    rows = [[[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]], [[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]]]
    np.testing.assert_allclose(np.exp(graph.log_table(1)), rows, rtol=1e-15)
    # after `table` the child, named first, runs slowest
    np.testing.assert_allclose(np.exp(graph.log_table(2)), [[0.9, 0.1], [0.3, 0.7]], rtol=1e-15)


def test_small_network_has_the_posterior_worked_by_hand(tmp_path):
    graph = read_bif(written(tmp_path, SMALL)).observe({"wet grass": "12 +"})
    evidence = np.split(np.exp(graph.log_evidence), graph.hypergraph.node_starts[1:])
    tables = [np.exp(graph.log_table(factor)) for factor in range(3)]
    values = joint(graph.num_states, [*graph.scopes, (0,), (1,), (2,)], [*tables, *evidence])
    rain = 0.25 * (0.9 * 0.7 + 0.1 * 0.25)
    dry = 0.75 * (0.3 * 0.25 + 0.7 * 0.0)
    np.testing.assert_allclose(marginals(values)[0], [rain / (rain + dry), dry / (rain + dry)])


def test_network_is_read_back_to_the_same_bits(tmp_path):
    graph = read_bif(written(tmp_path, SMALL))
    write_bif(graph, tmp_path / "out.bif")
    again = read_bif(tmp_path / "out.bif")
    assert (again.hypergraph, again.labels) == (graph.hypergraph, graph.labels)
    np.testing.assert_array_equal(again.log_tables, graph.log_tables)
    plain = FactorGraph.from_conditionals([2], [()], [np.log([0.5, 0.5])])
    write_bif(plain, tmp_path / "out.bif")
    assert read_bif(tmp_path / "out.bif").labels == Labels(("x0",), (("s0", "s1"),))


def test_model_that_cannot_be_written_is_refused(tmp_path):
    pair = FactorGraph.from_tables([2, 2], [(0, 1)], [np.zeros((2, 2))])
    with pytest.raises(ValueError, match="write_bif: expected every variable to be the last of"):
        write_bif(pair, tmp_path / "out.bif")
    labels = Labels(('a"b',), (("u",),))
    quoted = FactorGraph.from_tables([1], [(0,)], [np.zeros(1)], labels=labels)
    with pytest.raises(ValueError, match="names without quotation marks, got 'a\"b'; rename it"):
        write_bif(quoted, tmp_path / "out.bif")


BAD = [
    ("", "a network, variable or probability block, got the end of the file at FILE, line 1"),
    (NET + "hello", "a network, variable or probability block, got 'hello' at FILE, line 3"),
    ("network a b { }", "{ after network and its name, got 'b' at FILE, line 1 .token 3.; put it"),
    ("network a { b }", "property or }, got 'b' at FILE, line 1 .token 4.; end the block with }"),
    ("network a { property x }", "; after a property, got the end of the file at FILE, line 1"),
    (NET + "variable { }", "the name of a variable, got '{' at FILE, line 3 .token 6.; write it"),
    (NET + 'variable "a { }', "the name of a variable, got '\"' at FILE, line 3 .token 6.; write"),
    (NET + A + A, "one block per variable, got 'a' at FILE, line 6 .token 21.; remove or rename"),
    (NET + "variable a {\n}", "a type of variable a, got '}' at FILE, line 4 .token 8.; say type"),
    (NET + A.replace("type", "kind"), "type, property or }, got 'kind' at FILE, line 4 .token 8."),
    (NET + A.replace("discrete", "real"), "discrete after type; .* got 'real' at FILE, line 4"),
    (
        NET + A.replace("[ 2", "[ 0"),
        "the positive number of states of variable a, got '0' .* line 4",
    ),
    (
        NET + A.replace("[ 2", "[ x"),
        "the positive number of states of variable a, got 'x' .* line 4",
    ),
    (NET + A.replace("[ 2", "[ 3"), "as many different states .* got 3 states named u, v at FILE"),
    (NET + A.replace("[ 2", "[ 9999999999"), "number of states of variable a, got '9999999999'"),
    (
        NET + A.replace("v }", "u }"),
        "as many different states .* got 2 states named u, u at FILE, line 4",
    ),
    (NET + A.replace("};", "}"), "; after the names of states, got '}' at FILE, line 5 .token 18"),
    (
        NET + A.replace("};\n", "};\n type discrete [ 2 ] { u, v };\n"),
        "one type of variable a, got 'type' at FILE, line 5 .token 19.; remove one",
    ),
    (NET + A, "one probability block per variable, got none for 'a' at FILE, line 5 .token 20"),
    (NET + A + PA + PA, "one probability block per variable, got another for 'a' at FILE, line 9"),
    (
        NET + A + PA.replace("( a", "( b"),
        "name of a variable block, got 'b' at FILE, line 6 .token",
    ),
    (
        NET + A + PA.replace("a )", "a | a )"),
        "different variables in the .* a, got a, a at FILE, line 6",
    ),
    (NET + A + PA.replace("a )", "a | b | c )"), "a parent of a or ., got '|' at FILE, line 6"),
    (NET + A + PA.replace("(", ""), "[(] after probability, got 'a' at FILE, line 6 .token 21"),
    (
        NET + A + PA.replace("table", "tabel"),
        "table, default, property, . or }, got 'tabel' at FILE",
    ),
    (NET + A + PA.replace(", 0.5", ""), "2 probabilities of a after table, got 1 at FILE, line 7"),
    (NET + A + PA.replace("0.5;", "-1;"), "finite, non-negative prob.* got '-1' at FILE, line 7"),
    (NET + A + PA.replace("0.5;", "nan;"), "finite, non-negative prob.* got 'nan' at FILE, line 7"),
    (
        NET + A + PA.replace("0.5;", "1e999;"),
        "finite, non-negative prob.* got '1e999' at FILE, line 7",
    ),
    (
        NET + A + PA.replace("0.5;\n}", "0.5"),
        "; after the probabilities, got the end of the file at",
    ),
    (NET + A + PA.replace("0.5;", "x;"), "finite, non-negative prob.* got 'x' at FILE, line 7"),
    (NET + A + PA.replace("}", ""), "table, default, property, . or }, got the end of the file"),
    (
        NET + A + PA.replace("}", "table 1 0;\n}"),
        "every row of a once, got 'table' at FILE, line 8",
    ),
    (
        NET + A + PA.replace("}", "default 1 0;\n default 1 0; }"),
        "one default of a, got 'default' at FILE, line 9 .token 34.; remove one",
    ),
    (
        NET + A + B + PA + "probability ( b | a ) {\n (u) 1, 0;\n}",
        "a row of b for every state of its parents, or a default, got none for .v. at FILE",
    ),
    (
        NET + A + B + PA + "probability ( b | a ) {\n (u) 1, 0;\n (w) 1, 0;\n}",
        "one state of each parent of b: a, got .w. at FILE, line 14 .token 60.; use the names",
    ),
    (
        NET + A + B + PA + "probability ( b | a ) {\n (u) 1, 0;\n (u) 1, 0;\n}",
        "every row of b once, got '[(]' at FILE, line 14 .token 60.; remove or correct one",
    ),
    (
        NET + A + B + PA + "probability ( b | a ) {\n (u, u) 1, 0;\n}",
        "one state of each parent of b: a, got .u, u. at FILE, line 13 .token",
    ),
    (
        NET
        + A
        + B
        + "probability ( a | b ) { default 1 0; } probability ( b | a ) { default 1 0; }",
        "arrows without a cycle, got the cycle . - . - . of variables at FILE, line 9 .token",
    ),
    ((NET + A).encode() + b"\xe9", "UTF-8 text, got byte 0xe9 at FILE, line 6 .token .*; save the"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=range(len(BAD)))
def test_bad_network_is_refused_with_its_place(tmp_path, text, message):
    path = written(tmp_path, text)
    with pytest.raises(
        ValueError, match="^read_bif: expected .*" + message.replace("FILE", str(path))
    ):
        read_bif(path)


def test_table_too_large_to_build_is_refused(tmp_path):
    names = [f"x{i}" for i in range(40)]
    text = NET + "".join(A.replace("variable a", f"variable {name}") for name in names)
    text += f"probability ( x0 | {', '.join(names[1:])} ) {{ default 0.5 0.5; }}"
    with pytest.raises(
        ValueError, match="at most .* entries in the tables that are left, got a tab"
    ):
        read_bif(written(tmp_path, text))


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_bif(tmp_path / "none.bif")


def test_every_shared_network_equals_its_conversion(shared_data, tmp_path):
    paths = sorted((shared_data / "bnlearn").glob("*.bif"))
    assert len(paths) >= 9
    for path in paths:
        graph, converted = read_bif(path), read_uai(path.with_suffix(".uai"))
        assert graph.hypergraph == converted.hypergraph
        np.testing.assert_array_equal(graph.log_tables, converted.log_tables)
        lines = path.with_suffix(".names.tsv").read_text().splitlines()
        names = [tuple(line.split("\t")) for line in lines]
        assert graph.labels.nodes == tuple(own[0] for own in names)
        assert graph.labels.states == tuple(own[1:] for own in names)
        write_bif(graph, tmp_path / "out.bif")
        again = read_bif(tmp_path / "out.bif")
        assert (again.hypergraph, again.labels) == (graph.hypergraph, graph.labels)
        np.testing.assert_array_equal(again.log_tables, graph.log_tables)
