"""Variants of a method: each sets fields that exist, changes the training it names, and unknown ones are refused."""

import json
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sim
from flfw import nets, plugins
from flfw.data.feed import constants
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.nets.conditional_gan import diversity_loss, half_diversity
from flfw.plans.run_plan import plan, without_auto
from flfw.rng import initialising, torch_generator
from flfw.runs import run
from flfw.server.aggregation import Update
from flfw.server.context import ServerContext
from flfw.task.method import Method
from tests.support.method_rounds import make_client
from tests.support.paths import ROOT
from tests.support.small_runs import tiny

VARIED = {
    name: cls
    for name in plugins.names(plugins.METHOD)
    if (cls := plugins.load_class(plugins.METHOD, name, Method)).variants
}


def settings_of(method: str, variant: str, *assignments: str) -> object:
    return plan(Experiment(method=method, variant=variant, set=assignments)).client.settings  # type: ignore[arg-type]


def test_the_methods_with_variants_are_those_whose_cards_say_so() -> None:
    varied = ["fed_cdp", "fedcg", "feddf", "fedgen", "hyperfl", "hyperfl_lpm", "pfedhn", "pfedhn_pc"]
    assert sorted(VARIED) == varied
    for name, cls in VARIED.items():
        card = sys.modules[cls.__module__].__doc__ or ""
        assert all(f"--variant {variant}" in card for variant in cls.variants), name
    assert sorted(name for name, cls in VARIED.items() if "paper" in cls.variants) == ["fed_cdp", "fedcg"]


@pytest.mark.parametrize(
    ("name", "variant"), [(name, one) for name, cls in sorted(VARIED.items()) for one in cls.variants]
)
def test_a_variant_sets_its_fields_to_other_values_and_set_counts_more(name: str, variant: str) -> None:
    ours, other = settings_of(name, "ours"), settings_of(name, variant)
    changed = {f.name for f in fields(ours) if getattr(ours, f.name) != getattr(other, f.name)}  # type: ignore[arg-type]
    assert changed <= set(VARIED[name].variants[variant]) and changed
    field = sorted(changed)[0]
    back = getattr(ours, field)
    again = settings_of(name, variant, f"{field}={str(back).lower() if isinstance(back, bool) else back}")
    assert getattr(again, field) == back


def test_the_table_in_docs_has_every_variant() -> None:
    section = (ROOT / "docs" / "running.md").read_text().partition("## Variants of a method")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:4] for line in section.splitlines() if line.startswith("| `")]
    stated = {name.strip(" `"): [cell.strip(" `") for cell in cells] for name, *cells in rows}
    given = {
        name: [" ".join(f"{k}={v}" for k, v in cls.variants.get(one, {}).items()) for one in ("authors", "paper")]
        for name, cls in VARIED.items()
    }
    assert stated == given


def test_a_variant_that_a_method_has_not_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match=r"Expected a variant of fedavg among ours; got variant=authors\."):
        plan(Experiment(method="fedavg", variant="authors"))
    assert sim.main(["--method", "hyperfl", "--variant", "paper"]) == 2
    message = capsys.readouterr().err
    assert "among ours, authors; got variant=paper" in message and message.count("\n") == 1


def test_the_halves_of_a_batch_are_compared_whatever_their_labels() -> None:
    features = torch.rand(6, 2, generator=torch_generator(0, "f"))
    z = torch.rand(6, 3, generator=torch_generator(0, "z"))
    assert half_diversity(features, z) == diversity_loss(features[:3], features[3:], z[:3], z[3:])
    odd = half_diversity(features[:5], z[:5])  # 0, 1, 2 against 3, 4 and once more 0
    other = torch.tensor([3, 4, 0])
    assert odd == diversity_loss(features[:3], features[other], z[:3], z[other])
    assert half_diversity(features[:1], z[:1]) == 0


def test_glorots_start_has_its_bounds_and_no_biases() -> None:
    torch.manual_seed(0)
    for module in nets.glorot(nets.build("cnn1", (1, 28, 28), 10)).modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            area = module.weight[0, 0].numel()
            bound = (6 / (module.weight.shape[0] * area + module.weight.shape[1] * area)) ** 0.5
            largest = float(module.weight.detach().abs().max())
            assert 0.95 * bound < largest <= bound and module.bias is not None and not module.bias.any()


@pytest.mark.slow
def test_all_who_take_part_begin_with_glorots_weights(tmp_path: Path) -> None:
    """The first broadcast as it was recorded, the client's model, the server's, and the planned one."""
    given = without_auto(
        tiny(tmp_path / "run", method="fedavg", net="linear", init="glorot", attack=("analytic",), audit_rounds="0")
    )
    folder = run.run(given)
    lines = [json.loads(text) for text in (folder / "observations" / "manifest.jsonl").read_text().splitlines()]
    line = next(one for one in lines if one.get("config", {}).get("control") == "target")
    sent = load_file(folder / "observations" / line["sent_to_client"]["file"])
    with initialising(given.seed, "model"):
        planned = plan(given).client.build_model().state_dict()
    server = ServerContext(plan(given).client).model().state_dict()
    client = make_client(given, 0, tmp_path / "client").ctx.fresh_model().state_dict()
    for name, value in sent.items():
        assert all(torch.equal(value, other[name]) for other in (planned, server, client)), name
    assert not sent["classifier.bias"].any() and float(sent["classifier.weight"].abs().max()) > 0.2


def test_no_normalisation_leaves_inputs_as_they_are() -> None:
    assert constants("none", (3, 8, 8)) == ((0.0,) * 3, (1.0,) * 3)
    assert constants("none", (5,)) == ((0.0,) * 5, (1.0,) * 5)


def test_a_fixed_order_is_the_stored_one_in_every_pass(tmp_path: Path) -> None:
    given = without_auto(tiny(tmp_path / "run", method="fedavg", batch_size=4, example_order="fixed"))
    for experiment, same in ((given, True), (replace(given, example_order="shuffled"), False)):
        one = make_client(experiment, 0, tmp_path / experiment.example_order)
        stored = one.examples("train", one.indices("train"))[0]
        for seed in range(2):
            passed = torch.cat([x for x, _ in one.batches(torch_generator(seed, "pass"))])
            assert torch.equal(passed, stored) is same


def test_one_less_divides_the_sum_of_models_by_one_client_less() -> None:
    cls = plugins.load_class(plugins.METHOD, "fed_cdp", Method)
    updates = [Update(i, 10 * (i + 1), {"w": torch.tensor([float(i)])}) for i in range(3)]
    means = {}
    for divisor in ("clients", "one_less"):
        method = cls.__new__(cls)
        method.settings = cls.Settings(divisor=divisor)  # type: ignore[attr-defined]
        means[divisor] = float(method.aggregate(iter(updates))["w"])  # type: ignore[attr-defined]
    assert means == {"clients": 1.0, "one_less": 1.5}
    with pytest.raises(InputError, match="two clients or more"):
        method.aggregate(iter(updates[:1]))  # type: ignore[attr-defined]
