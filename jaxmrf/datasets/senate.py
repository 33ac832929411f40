"""Roll-call votes of the 109th US Senate (2005-2006), the data of Liu & Page's experiment.

A vote v is contested when 10 <= sum_i x_vi <= 90, the paper's filter. Reference: Liu & Page,
"Bayesian estimation of latently-grouped parameters in undirected graphical models", NIPS 2013,
section 5.
"""

from importlib.resources import files
from typing import NamedTuple

import numpy as np

__all__ = ["Senate109", "senate109"]

MIN_YEAS, MAX_YEAS = 10, 90


class Senate109(NamedTuple):
    """Votes of the 99 senators who sat in both sessions; 1 = yea, 0 = nay or not voting.

    Attributes:
        session1: Contested votes of 2005, int8 "votes senators" = (292, 99).
        session2: Contested votes of 2006, int8 "votes senators" = (222, 99).
        session1_all: All votes of 2005, int8 (366, 99).
        session2_all: All votes of 2006, int8 (279, 99).
        session1_numbers: The Senate's numbers of the votes in `session1`.
        session2_numbers: The Senate's numbers of the votes in `session2`.
        senators: One identifier a senator, as in "MCCAIN_AZ".
        parties: "D", "R" or "I" for each senator.
        states: Two-letter state of each senator.
    """

    session1: np.ndarray
    session2: np.ndarray
    session1_all: np.ndarray
    session2_all: np.ndarray
    session1_numbers: np.ndarray
    session2_numbers: np.ndarray
    senators: tuple[str, ...]
    parties: tuple[str, ...]
    states: tuple[str, ...]


def senate109() -> Senate109:
    """The roll-call votes of the 109th US Senate, both sessions.

    The seat of Corzine and Menendez of New Jersey changed hands and is left out, as in the paper.
    The paper's source lacked one contested vote of session 2 (221 in place of 222).

    Licence: roll calls are facts recorded by the US Senate, in the public domain; collected by
    voteview.com.

    Returns:
        The votes and who cast them.

    Example:
        >>> votes = senate109()
        >>> votes.session1.shape, votes.session2.shape
        ((292, 99), (222, 99))
    """
    with files(__package__).joinpath("data/senate109.npz").open("rb") as file:
        stored = dict(np.load(file))
    everything = stored["session1"], stored["session2"]
    yeas = [votes.sum(axis=1) for votes in everything]
    kept = [np.flatnonzero((count >= MIN_YEAS) & (count <= MAX_YEAS)) for count in yeas]
    return Senate109(
        *(votes[rows] for votes, rows in zip(everything, kept, strict=True)),
        *everything,
        *(rows + 1 for rows in kept),
        *(tuple(stored[name].tolist()) for name in ("senators", "parties", "states")),
    )
