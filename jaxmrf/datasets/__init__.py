"""Data sets that ship with the package and generators of synthetic ones, all as NumPy arrays."""

from jaxmrf.datasets.senate import Senate109, senate109
from jaxmrf.datasets.synthetic import grouped_agreements

__all__ = ["Senate109", "grouped_agreements", "senate109"]
