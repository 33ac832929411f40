import jaxmrf


def test_version_is_a_release_number():
    major, minor, patch = jaxmrf.__version__.split(".")
    assert all(part.isdigit() for part in (major, minor, patch))
