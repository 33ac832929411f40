"""Data sets, those that ship with the package among them, and generators, all NumPy arrays."""

from jaxmrf.datasets.features import (
    ArtistTags,
    HandwrittenThrees,
    artist_tags,
    handwritten_threes,
)
from jaxmrf.datasets.senate import Senate109, senate109
from jaxmrf.datasets.synthetic import grouped_agreements

__all__ = [
    "ArtistTags",
    "HandwrittenThrees",
    "Senate109",
    "artist_tags",
    "grouped_agreements",
    "handwritten_threes",
    "senate109",
]
