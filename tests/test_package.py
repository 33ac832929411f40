import re
from pathlib import Path

import jaxmrf

ROOT = Path(__file__).resolve().parents[1]


def test_citation_names_the_version_of_the_package():
    (version,) = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert version == jaxmrf.__version__


def test_changelog_names_the_change_under_way_or_the_released_version():
    newest = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)[0]
    assert newest in ("Unreleased", jaxmrf.__version__)
