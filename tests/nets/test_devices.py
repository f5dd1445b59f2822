"""The device of a computation, and TensorFloat-32 on a GPU."""

from collections.abc import Iterator

import pytest
import torch

from flfw.audit.attack_process import require_gpu
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.inversion.client_models.victim import PlainVictim
from flfw.inversion.compute import ComputeLimits
from flfw.nets import build, tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.training.devices import device_of, products


def allowed() -> tuple[bool | str, bool | str]:
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


@pytest.fixture(autouse=True)
def _as_pytorch_begins() -> Iterator[None]:
    before = allowed()
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


def test_whoever_gets_a_gpu_computes_in_float32() -> None:
    assert device_of(False) == torch.device("cpu") and allowed() == (False, True)
    assert device_of(True) == torch.device("cuda") and allowed() == (False, False)


@pytest.mark.parametrize("tf32", [True, False])
def test_products_are_rounded_within_a_block_alone_even_if_it_fails(tf32: bool) -> None:
    with pytest.raises(ZeroDivisionError), products(tf32=tf32):
        assert allowed() == (tf32, tf32)
        _ = 1 / 0
    assert allowed() == (False, True)


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_a_search_on_a_gpu_has_the_precision_that_was_asked_for(precision: str) -> None:
    with torch.device("meta"):
        net = build("lenet", (3, 32, 32), 10)
    inputs = InputSpec.from_constants((3, 32, 32), (0.5,) * 3, (0.5,) * 3)
    victim = PlainVictim(net, tensors(net), ("*",), inputs)
    victim.inputs = _there(inputs)
    compute = ComputeLimits(precision="tf32") if precision == "tf32" else ComputeLimits()
    with compute.reduced(victim) as searched:
        assert searched is victim and allowed() == (precision == "tf32",) * 2
    assert allowed() == (False, True)


def _there(inputs: InputSpec) -> InputSpec:
    """The inputs as tensors of a GPU, without numbers."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return InputSpec(inputs.shape, *(torch.empty(3, 1, 1, device="cuda") for _ in range(2)))


def test_tensorfloat_needs_a_gpu_for_the_attacks() -> None:
    expected = (
        "Expected --expert attack_precision=float32 or bf16 without --attack-gpus, as only a GPU has TensorFloat-32, "
    )
    with pytest.raises(InputError, match=f"^{expected}got attack_precision=tf32.$"):
        require_gpu(Experiment(attack_precision="tf32"))
    require_gpu(Experiment(attack_precision="bf16"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_attacks_do_not_move_to_the_processor_by_themselves() -> None:
    with pytest.raises(
        InputError, match=r"^Expected --attack-gpus 0 on a machine without a GPU, got attack_gpus=0.5.$"
    ):
        require_gpu(Experiment(attack_gpus=0.5, attack_precision="tf32"))
