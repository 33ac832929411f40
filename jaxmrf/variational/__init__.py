"""Bound: approximate log normalisers and marginals by optimisation."""

__all__: list[str] = []
