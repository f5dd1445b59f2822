"""The small transformers: sizes, causality, independent forward passes, patches, and per-example gradients."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, cross_entropy, gelu, layer_norm, one_hot

from flfw.errors import InputError
from flfw.inversion.client_models.local_steps import SteppedVictim
from flfw.inversion.client_models.victim import PlainVictim
from flfw.nets import Net, build, numel, tensors
from flfw.nets.inputs import InputSpec
from flfw.nets.net import correct, targets
from flfw.nets.training.local_steps import LocalSteps
from flfw.nets.training.per_example import PerExample
from flfw.nets.transformer import Transformer, VisionTransformer, raw, tokens
from flfw.rng import initialising, torch_generator


def fresh(name: str, length: int = 8, classes: int = 3) -> Net:
    with initialising(0, "net"):
        return build(name, (length,), classes)


def texts(count: int = 4, length: int = 8) -> Tensor:
    return torch.randint(256, (count, length), generator=torch_generator(0, "texts"))


def extractor(net: Net) -> Transformer:
    assert isinstance(net.extractor, Transformer)
    return net.extractor


def test_size_by_hand() -> None:
    block = 2 * (2 * 128) + (3 * 128 * 128 + 3 * 128) + (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128)
    whole = 256 * 128 + 8 * 128 + 3 * block + 2 * 128 + (128 * 3 + 3)
    assert numel(tensors(fresh("gpt_tiny"))) == numel(tensors(fresh("bert_tiny"))) == whole == 629_251


def test_every_byte_is_its_token_also_in_bfloat16() -> None:
    every = torch.arange(256).unsqueeze(0)
    assert torch.equal(tokens(raw(every)), every) and torch.equal(tokens(raw(every).bfloat16()), every)
    assert tokens(torch.tensor([[-3.0, 7.0]])).tolist() == [[0, 255]]


@pytest.mark.parametrize(("name", "sees"), [("gpt_tiny", False), ("bert_tiny", True)])
def test_a_later_token_changes_earlier_places_only_without_the_mask(name: str, sees: bool) -> None:
    model, one = extractor(fresh(name)), texts(1)
    other = one.clone()
    other[0, 5] = (other[0, 5] + 1) % 256
    with torch.no_grad():
        a, b = (model.blocks[0](model.embedded(x)) for x in (one, other))
        last = model.blocks[0](model.embedded(one), last=True)
    same = [torch.equal(a[0, index], b[0, index]) for index in range(8)]
    assert same == [not sees] * 5 + [False] * 3
    torch.testing.assert_close(last, a[:, -1:])


def test_a_forward_pass_written_out_with_loops() -> None:
    net, x = fresh("gpt_tiny").double(), texts(1)
    weights = tensors(net)
    w = lambda name: weights[f"extractor.{name}"]  # noqa: E731
    h = [w("token.weight")[int(x[0, t])] + w("position.weight")[t] for t in range(8)]
    norm = lambda v, at: layer_norm(v, (128,), w(f"{at}.weight"), w(f"{at}.bias"))  # noqa: E731
    for block in range(3):
        at = f"blocks.{block}"
        joint = [w(f"{at}.attention.query_key_value.weight") @ norm(v, f"{at}.attention_norm") for v in h]
        mixed = []
        for t in range(8):
            heads = []
            for head in range(4):
                part = slice(32 * head, 32 * head + 32)
                q = joint[t][:128][part]
                scores = torch.stack([q @ joint[s][128:256][part] / 32**0.5 for s in range(t + 1)])
                heads.append(sum(p * joint[s][256:][part] for s, p in enumerate(scores.softmax(0))))
            mixed.append(w(f"{at}.attention.output.weight") @ torch.cat(heads))  # type: ignore[arg-type]
        h = [v + m for v, m in zip(h, mixed, strict=True)]
        inner = [gelu(w(f"{at}.dense.0.weight") @ norm(v, f"{at}.dense_norm")) for v in h]
        h = [v + w(f"{at}.dense.2.weight") @ i for v, i in zip(h, inner, strict=True)]
    feature = torch.stack([norm(v, "norm") for v in h]).mean(0)
    torch.testing.assert_close(net(raw(x))[0], weights["classifier.weight"] @ feature)  # all biases begin at 0


# --- every place ---


def language_model() -> Net:
    return fresh("gpt_next", classes=256)


def test_the_scores_of_a_place_are_those_of_the_text_up_to_it() -> None:
    net, x = language_model(), raw(texts())
    assert net(x).shape == (4, 256, 8) and numel(tensors(net)) == numel(tensors(fresh("gpt_tiny", classes=256)))
    for index in (0, 3, 7):
        torch.testing.assert_close(net(x[:, : index + 1])[..., -1], net(x)[..., index])


def test_the_loss_is_the_mean_over_all_places_of_the_next_token_s() -> None:
    net, x, y = language_model(), texts(2), torch.tensor([7, 250])
    scores, losses = net(raw(x)), []
    for text in range(2):
        for index in range(8):
            token = int(y[text]) if index == 7 else int(x[text, index + 1])
            losses.append(-scores[text, :, index].log_softmax(0)[token])
    torch.testing.assert_close(cross_entropy(scores, targets(scores, raw(x), y)), torch.stack(losses).mean())


def test_accuracy_counts_tokens() -> None:
    x, y = torch.tensor([[0, 2, 1], [1, 1, 0]]) / 2, torch.tensor([2, 0])  # the texts 021 and 110 of three tokens
    guessed = torch.tensor([[2, 1, 0], [1, 2, 2]])  # of 2, 1, 2 and 1, 0, 0
    assert correct(one_hot(guessed, 3).mT, x, y).tolist() == pytest.approx([2 / 3, 1 / 3])


def test_one_label_for_each_text_stays_as_it_is() -> None:
    y, soft = torch.tensor([1, 0]), torch.rand(2, 3)
    assert targets(torch.zeros(2, 3), torch.zeros(2, 4), y) is y and targets(soft, torch.zeros(2, 4), soft) is soft


def test_an_attackers_model_of_the_client_has_the_same_loss() -> None:
    net, x, y = language_model(), raw(texts(2)), torch.tensor([7, 250])
    known, inputs = tensors(net), InputSpec.from_constants((8,), (0.0,) * 8, (1.0,) * 8)
    loss = cross_entropy(net(x), torch.cat([tokens(x)[:, 1:], y[:, None]], 1))
    named = dict(net.named_parameters())
    expected = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
    once = PlainVictim(net, known, ("*",), inputs)
    for victim in (once, SteppedVictim(once, known, LocalSteps(lr=0.1, steps=1))):
        torch.testing.assert_close(victim.gradient(x, y, {}, {}), expected, atol=1e-6, rtol=1e-4)


@pytest.mark.slow
def test_labels_are_read_off_raw_inputs_however_they_are_normalised() -> None:
    net, x, y = language_model(), raw(texts(2)), torch.tensor([7, 250])
    known, inputs = tensors(net), InputSpec.from_constants((8,), (0.25,) * 8, (0.5,) * 8)
    once = PlainVictim(net, known, ("*",), inputs)
    stepped = SteppedVictim(once, known, LocalSteps(lr=0.1, steps=1))
    torch.testing.assert_close(stepped.gradient(x, y, {}, {}), once.gradient(x, y, {}, {}), atol=1e-6, rtol=1e-4)


# --- on images ---


def images(count: int = 4) -> Tensor:
    return torch.rand((count, 2, 8, 12), generator=torch_generator(0, "images"))


def of_images(name: str) -> Net:
    with initialising(0, "net"):
        return build(name, (2, 8, 12), 3)


@pytest.mark.parametrize(("name", "norms"), [("vit_norm", 7), ("vit_plain", 6)])
def test_size_on_images_by_hand(name: str, norms: int) -> None:
    layers = (3 * 128 * 128 + 3 * 128) + (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128)
    whole = (2 * 16 * 128 + 128) + 6 * 128 + 3 * layers + norms * 2 * 128 + (128 * 3 + 3)
    assert numel(tensors(of_images(name))) == whole


def test_a_plain_first_block_is_attention_alone_and_the_others_are_as_usual() -> None:
    plain = of_images("vit_plain").extractor
    assert isinstance(plain, VisionTransformer) and [plain.block(n).plain for n in range(3)] == [True, False, False]
    block, x = plain.block(0), images()
    h = block.attention(plain.embedded(x))
    torch.testing.assert_close(block(plain.embedded(x)), h + block.dense(block.dense_norm(h)))


def test_a_patch_s_vector_is_its_pixels_times_the_embedding_plus_its_position() -> None:
    net, x = of_images("vit_norm"), images(2)
    weights, extractor = tensors(net), net.extractor
    assert isinstance(extractor, VisionTransformer)
    by_convolution = conv2d(x, weights["extractor.patch.weight"].view(128, 2, 4, 4), stride=4).flatten(2).mT
    torch.testing.assert_close(extractor.embedded(x), by_convolution + weights["extractor.position.weight"])


def test_images_that_do_not_divide_into_patches_are_refused() -> None:
    with pytest.raises(InputError, match=r"a height and a width that 4 divides, for patches, got shape=\(1, 30, 28\)"):
        build("vit_plain", (1, 30, 28), 10)


# --- both ---


@pytest.mark.parametrize("name", ["gpt_tiny", "bert_tiny", "vit_norm", "vit_plain"])
def test_per_example_gradients_are_those_of_each_example_by_itself(name: str) -> None:
    net, x = (of_images(name), images()) if name.startswith("vit") else (fresh(name), raw(texts()))
    y = torch.tensor([0, 1, 2, 1])
    parameters = {n: p.detach() for n, p in net.named_parameters()}

    def gradient(one: Tensor, label: Tensor) -> dict[str, Tensor]:
        return grad(lambda p: cross_entropy(functional_call(net, p, (one[None],)), label[None]))(parameters)

    each = vmap(gradient)(x, y)
    norms = torch.stack([value.flatten(1).square().sum(1) for value in each.values()]).sum(0).sqrt()
    bound = float(norms.median())
    clipped = PerExample(net, grouping="flat").clipped_sum(lambda: cross_entropy(net(x), y, reduction="none"), bound)
    scale = (bound / norms).clamp(max=1)
    assert 0 < int((scale < 1).sum()) < 4
    for n, value in each.items():
        expected = (value * scale.view(-1, *[1] * (value.dim() - 1))).sum(0)
        torch.testing.assert_close(clipped.sums[n], expected, atol=1e-6, rtol=1e-4)
