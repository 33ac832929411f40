import numpy as np
import pytest

from jaxmrf.formats import (
    read_uai_evidence,
    read_uai_log10_z,
    read_uai_marginals,
    read_uai_mode,
    write_uai_evidence,
    write_uai_log10_z,
    write_uai_marginals,
    write_uai_mode,
)
from jaxmrf.models import FactorGraph, Tables


@pytest.fixture
def path(tmp_path):
    return tmp_path / "answer"


def test_answers_are_read_back_exactly(path, rng):
    write_uai_evidence({7: 2, 3: 0}, path)
    assert read_uai_evidence(path) == {3: 0, 7: 2}
    write_uai_evidence({}, path)
    assert read_uai_evidence(path) == {}
    for value in (-333.0958565858485, 0.1 + 0.2, -np.inf, 1e-300):
        write_uai_log10_z(np.float64(value), path)
        assert read_uai_log10_z(path) == value
    write_uai_mode(np.array([0, 3, 1]), path)
    np.testing.assert_array_equal(read_uai_mode(path), [0, 3, 1])
    graph = FactorGraph.from_tables([2, 3, 1], [], []).hypergraph
    nodes = Tables(rng.random(6), graph, is_of_factors=False)
    write_uai_marginals(nodes, path)
    again = read_uai_marginals(path)
    assert len(again) == 3
    for marginal, expected in zip(again, nodes, strict=True):
        np.testing.assert_array_equal(marginal, expected)


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (read_uai_marginals, "MAR\n2 2 0.25 0.75 1 1", [[0.25, 0.75], [1.0]]),
        (read_uai_marginals, "MAR\n1\n2 2 0.25 0.75 1 1", [[0.25, 0.75], [1.0]]),
        (read_uai_marginals, "MAR\n1 2 0.25 0.75", [[0.25, 0.75]]),
        (read_uai_marginals, "MAR\n1\n1 1 1.0", [[1.0]]),
        (read_uai_log10_z, "PR\n-2.5\n", -2.5),
        (read_uai_log10_z, "PR\n1\n-2.5\n", -2.5),
        (read_uai_mode, "MAP\n3 0 2 1", [0, 2, 1]),
        (read_uai_mode, "MPE\n1\n3 0 2 1", [0, 2, 1]),
        (read_uai_mode, "MAP\n1 4", [4]),
    ],
)
def test_answers_of_old_and_new_competitions_are_read(path, read, text, expected):
    path.write_text(text)
    found = read(path)
    np.testing.assert_equal([*map(list, found)] if isinstance(found, tuple) else found, expected)


BAD = [
    (read_uai_evidence, "2 0 1 0 0", "one state of variable 0, got 1 and 0 at .*, line 1 .token 4"),
    (
        read_uai_evidence,
        "1 -2 0",
        "an observed variable, 1 in all, got '-2' at .*, line 1 .token 2",
    ),
    (read_uai_evidence, "1 2 1.0", "a state of variable 2, got '1.0' at .*, line 1 .token 3"),
    (read_uai_marginals, "MPE\n1 2", "MAR, got 'MPE' at .*, line 1 .token 1.; begin with it"),
    (read_uai_marginals, "MAR\n8 2 1", "the number of variables, got '8' at .*, line 2 .token 2"),
    (read_uai_marginals, "MAR\n1 0", "the number of states of variable 0, got '0' at .*, line 2"),
    (read_uai_marginals, "MAR\n1 3 0 1", "3 probabilities of variable 0, got the end of the file"),
    (read_uai_marginals, "MAR\n2 1 1\n1 -1", "1 probabilities of variable 1, got '-1' .* line 3"),
    (read_uai_marginals, "MAR\n2 1 1\n1 1 5", "end of the file after the last marginal, got '5'"),
    (read_uai_log10_z, "PR", "a number below infinity, got the end of the file at .*, line 1"),
    (read_uai_log10_z, "PR\ninf", "a number below infinity, got 'inf' at .*, line 2 .token 2"),
    (read_uai_log10_z, "PR\nnan", "a number below infinity, got 'nan' at .*, line 2 .token 2"),
    (read_uai_log10_z, "PR\nx", "a number below infinity, got 'x' at .*, line 2 .token 2"),
    (read_uai_log10_z, "PR\n2\n1.0", "at most 1 sample of evidence, got '2' at .*, line 2"),
    (read_uai_log10_z, "PR\n1.5 2 3", "end of the file after the number, got '2' at .*, line 2"),
    (read_uai_mode, "PR\n1", "MAP or MPE, got 'PR' at .*, line 1 .token 1.; begin with it"),
    (read_uai_mode, "MAP\n9 0", "the number of variables, got '9' at .*, line 2 .token 2"),
    (read_uai_mode, "MAP\n2 0", "2 states, got the end of the file at .*, line 2 .token 4"),
    (read_uai_mode, "MAP\n2 0 x", "2 states, got 'x' at .*, line 2 .token 4"),
    (read_uai_mode, "MAP\n2 0 1 1", "end of the file after the last state, got '1' at .*, line 2"),
]


@pytest.mark.parametrize(("read", "text", "message"), BAD, ids=range(len(BAD)))
def test_bad_answer_is_refused_with_its_place(path, read, text, message):
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^{read.__name__}: expected .*{message}"):
        read(path)


def test_every_shared_answer_is_read(shared_data):
    for answer in (shared_data / "uai").glob("*.PR"):
        value = read_uai_log10_z(answer)
        assert value == float(answer.read_text().split()[1])
    for answer in (shared_data / "bnlearn").glob("*.prior.MAR"):
        for marginal in read_uai_marginals(answer):
            assert marginal.sum() == pytest.approx(1.0, abs=1e-10)
