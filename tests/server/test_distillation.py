"""What a server's student follows: numbers by hand, and teachers that speak ahead of it."""

from collections.abc import Iterator
from math import exp, log

import pytest
import torch
from torch import Tensor, nn

from flfw.errors import InputError
from flfw.nets.training.optimisers import SGD
from flfw.rng import torch_generator
from flfw.server import distillation
from flfw.server.distillation import GeneratorInputs, ServerTraining, distil, scores_with, with_teacher_scores


def test_a_students_step_is_the_difference_of_probabilities() -> None:
    """KL(p || softmax(s)) has the gradient softmax(s) - p: here p = (3/4, 1/4), s = (0, 0), and lr 1."""
    student = {"s": torch.zeros(2, requires_grad=True)}
    lesson = (torch.zeros(1, 1),), torch.tensor([[log(3.0), 0.0]])
    loss = distil([lesson], lambda x: student["s"].expand(len(x), 2), student, SGD(1.0))
    assert student["s"].tolist() == pytest.approx([0.25, -0.25])
    assert loss == pytest.approx(0.75 * log(1.5) + 0.25 * log(0.5))


def test_the_loss_is_the_mean_of_a_batch() -> None:
    student = {"s": torch.zeros(2, requires_grad=True)}
    lesson = (torch.zeros(2, 1),), torch.tensor([[log(3.0), 0.0], [0.0, 0.0]])
    loss = distil([lesson], lambda x: student["s"].expand(len(x), 2), student, SGD(1.0))
    assert student["s"].tolist() == pytest.approx([0.125, -0.125])
    assert loss == pytest.approx((0.75 * log(1.5) + 0.25 * log(0.5)) / 2)


def test_what_is_told_is_the_loss_of_the_last_tenth() -> None:
    student, count = {"s": torch.zeros(2, requires_grad=True)}, []
    scored_batches = [((torch.zeros(1, 1),), torch.tensor([[log(3.0), 0.0]]))] * 20

    noted = lambda x: count.append(float(student["s"][0].detach())) or student["s"].expand(len(x), 2)  # noqa: E731
    loss = distil(scored_batches, noted, student, SGD(0.1))

    def kl(s: float) -> float:  # of the student (s, -s)
        first = 1 / (1 + exp(-2 * s))
        return 0.75 * log(0.75 / first) + 0.25 * log(0.25 / (1 - first))

    assert len(count) == 20
    assert loss == pytest.approx((kl(count[18]) + kl(count[19])) / 2, rel=1e-4)  # before the last two steps
    assert distil([], lambda x: x, student, SGD(0.1)) == 0.0


def test_scores_are_averaged_and_not_probabilities() -> None:
    """(log 9, 0) and (0, 0) at equal weight are (log 3, 0): 3/4, and not the mean of 9/10 and 1/2."""
    says = [torch.tensor([[log(9.0), 0.0]]), torch.zeros(1, 2)]
    ((_, result),) = with_teacher_scores([(torch.zeros(1, 1),)], [(0.5, lambda x, s=s: s) for s in says])
    assert result.softmax(1)[0].tolist() == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize(("size", "batches"), [(16, 70), (7, 80), (600, 3), (512, 2), (1, 3)])
def test_teachers_that_speak_ahead_say_the_same(size: int, batches: int) -> None:
    rng = torch_generator(0, "test")
    given = [(torch.randn(size, 5, generator=rng), torch.randint(3, (size,), generator=rng)) for _ in range(batches)]
    nets = [torch.randn(5, 3, generator=rng) for _ in range(2)]
    sizes: list[int] = []

    def teacher(net: Tensor, x: Tensor, y: Tensor) -> Tensor:
        sizes.append(len(x))
        return x @ net + y[:, None]

    teachers = [(0.25, lambda x, y: teacher(nets[0], x, y)), (0.75, lambda x, y: teacher(nets[1], x, y))]
    result = list(with_teacher_scores(given, teachers))
    assert len(result) == batches
    for (x, y), ((same_x, same_y), scores) in zip(given, result, strict=True):
        assert torch.equal(x, same_x) and torch.equal(y, same_y)
        torch.testing.assert_close(scores, 0.25 * (x @ nets[0]) + 0.75 * (x @ nets[1]) + y[:, None])
    assert sum(sizes) == 2 * size * batches and max(sizes) <= max(512, size)


def test_inputs_are_drawn_no_further_ahead_than_is_taught() -> None:
    drawn: list[int] = []

    def endless() -> Iterator[GeneratorInputs]:
        while True:
            drawn.append(1)
            yield (torch.zeros(16, 1),)

    scored_batches, ahead = with_teacher_scores(endless(), [(1.0, lambda x: x)]), distillation._AHEAD // 16
    assert len([next(scored_batches) for _ in range(ahead)]) == ahead == len(drawn)
    next(scored_batches)
    assert len(drawn) == 2 * ahead


def test_teachers_have_no_gradient_and_speak_with_the_tensors_given() -> None:
    model = nn.Linear(2, 2, bias=False)
    before = model.weight.detach().clone()
    teacher = scores_with(model, {"weight": torch.tensor([[1.0, 2], [3, 4]])})
    ((_, scores),) = with_teacher_scores([(torch.eye(2),)], [(1.0, teacher)])
    assert scores.tolist() == [[1, 3], [2, 4]] and not scores.requires_grad
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"iterations": 0}, "Expected iterations >= 1, got iterations=0."),
        ({"server_batch": 0}, "Expected server_batch >= 1, got server_batch=0."),
        ({"server_lr": float("nan")}, "Expected server_lr > 0, got server_lr=nan."),
    ],
)
def test_what_is_out_of_range_is_refused(setting: dict, expected: str) -> None:
    with pytest.raises(InputError) as refusal:
        ServerTraining(**setting)
    assert str(refusal.value) == expected
