"""Provenance of results: versions of packages, of which Ray may be absent."""

from importlib.metadata import version

from flfw.files.provenance import environment, installed


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert installed("no-package-of-this-name") is None
    assert installed("numpy") == version("numpy") == environment("none")["numpy"]
