"""Ray as the files of its grid of actors use it: started once for all tests of a file."""

from collections.abc import Iterator

import pytest

from flfw.client.site import Site
from flfw.engines import ray_start


@pytest.fixture(scope="module")
def one_ray_for_all() -> Iterator[None]:
    ray_start.configure_ray("")
    with ray_start.started("", Site(), lambda: 100_000_000):
        yield
