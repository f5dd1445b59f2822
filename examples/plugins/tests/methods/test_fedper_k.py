"""FedPer with K_P private layers: which tensors are shared."""

import pytest

from flfw import nets
from flfw.rng import initialising
from flfw.strategies.fedper_k import FedPerK, FedPerKSettings


@pytest.mark.parametrize(
    ("layers", "names"), [(1, ("extractor.1.*", "extractor.3.*")), (2, ("extractor.1.*",)), (3, ()), (9, ())]
)
def test_the_last_layers_stay_private(layers: int, names: tuple[str, ...]) -> None:
    with initialising(0, "test"):
        net = nets.build("mlp", (1, 8, 8), 10)
    sharing = FedPerK.shared(net, FedPerKSettings(layers=layers))
    assert sharing.uploads == sharing.downloads == names
