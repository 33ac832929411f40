"""Sum: exact log normalisers, marginals, modes and draws."""

from jaxmrf.exact import (
    blocked_gibbs,
    conditioning,
    draws,
    elimination,
    enumeration,
    front_door,
    host,
    junction_tree,
    transfer,
)
from jaxmrf.exact.front_door import Mode, m_best, mode, solve

__all__ = [
    "Mode",
    "blocked_gibbs",
    "conditioning",
    "draws",
    "elimination",
    "enumeration",
    "front_door",
    "host",
    "junction_tree",
    "m_best",
    "mode",
    "solve",
    "transfer",
]
