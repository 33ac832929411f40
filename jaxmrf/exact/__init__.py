"""Sum: exact log normalisers, marginals and draws."""

from jaxmrf.exact import enumeration, transfer

__all__ = ["enumeration", "transfer"]
