"""Files of discrete models and of answers: UAI, BIF and libDAI, read and written in float64."""

from jaxmrf.formats.bif import read_bif, write_bif
from jaxmrf.formats.libdai import read_fg, write_fg
from jaxmrf.formats.uai import read_uai, write_uai
from jaxmrf.formats.uai_answers import (
    read_uai_evidence,
    read_uai_log10_z,
    read_uai_marginals,
    read_uai_mode,
    write_uai_evidence,
    write_uai_log10_z,
    write_uai_marginals,
    write_uai_mode,
)

__all__ = [
    "read_bif",
    "read_fg",
    "read_uai",
    "read_uai_evidence",
    "read_uai_log10_z",
    "read_uai_marginals",
    "read_uai_mode",
    "write_bif",
    "write_fg",
    "write_uai",
    "write_uai_evidence",
    "write_uai_log10_z",
    "write_uai_marginals",
    "write_uai_mode",
]
