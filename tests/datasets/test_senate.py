import csv

import numpy as np

from jaxmrf.datasets import senate109

VOTES = senate109()


def test_votes_have_the_shapes_of_the_paper():
    assert VOTES.session1.shape == (292, 99)
    assert VOTES.session2.shape == (222, 99)
    assert VOTES.session1_all.shape == (366, 99)
    assert VOTES.session2_all.shape == (279, 99)
    assert len(VOTES.senators) == len(VOTES.parties) == len(VOTES.states) == 99
    for votes in VOTES[:4]:
        assert votes.dtype == np.int8
        assert set(np.unique(votes)) == {0, 1}


def test_contested_votes_are_rows_of_all_votes_with_10_to_90_yeas():
    for votes, everything, numbers in (
        (VOTES.session1, VOTES.session1_all, VOTES.session1_numbers),
        (VOTES.session2, VOTES.session2_all, VOTES.session2_numbers),
    ):
        np.testing.assert_array_equal(votes, everything[numbers - 1])
        yeas = votes.sum(axis=1)
        assert yeas.min() >= 10 and yeas.max() <= 90
        dropped = np.delete(everything, numbers - 1, axis=0).sum(axis=1)
        assert np.all((dropped < 10) | (dropped > 90))


def test_senators_are_distinct_and_sit_in_known_seats():
    assert len(set(VOTES.senators)) == 99
    assert {party: VOTES.parties.count(party) for party in "DRI"} == {"D": 43, "R": 55, "I": 1}
    assert VOTES.senators[VOTES.parties.index("I")] == "JEFFORDS_VT"
    assert not {"CORZINE_NJ", "MENENDEZ_NJ"} & set(VOTES.senators)
    assert tuple(name.split("_")[1] for name in VOTES.senators) == VOTES.states
    seats = [VOTES.states.count(state) for state in set(VOTES.states)]
    assert len(seats) == 50 and sorted(seats) == [1] + [2] * 49


def test_confirmations_of_roberts_and_alito_have_the_yeas_on_record():
    """Roberts was confirmed 78-22 (2005, vote 245), Alito 58-42 (2006, vote 2)."""
    roberts, alito = VOTES.session1_all[244], VOTES.session2_all[1]
    party = np.array(VOTES.parties)
    assert roberts[party == "R"].all() and alito[party == "R"].sum() == 54
    # The one seat left out, New Jersey's, voted nay both times, so no yea is missing.
    assert roberts.sum() == 78 and alito.sum() == 58


def test_votes_equal_the_shared_files(shared_data):
    folder = shared_data / "senate109"
    with open(folder / "senators.csv") as file:
        senators = [row for row in csv.DictReader(file) if row["in99"] == "1"]
    assert VOTES.senators == tuple(row["id"] for row in senators)
    assert VOTES.parties == tuple(row["party"] for row in senators)
    assert VOTES.states == tuple(row["state"] for row in senators)
    for name in ("session1", "session2", "session1_all", "session2_all"):
        table = np.loadtxt(folder / f"{name}.csv", delimiter=",", skiprows=1, dtype=int)
        np.testing.assert_array_equal(getattr(VOTES, name), table[:, 1:] > 0)
        if not name.endswith("all"):
            np.testing.assert_array_equal(getattr(VOTES, f"{name}_numbers"), table[:, 0])
