"""Sum: exact log normalisers, marginals and draws."""

from jaxmrf.exact import enumeration

__all__ = ["enumeration"]
