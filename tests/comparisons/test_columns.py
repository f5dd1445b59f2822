"""Accuracies and claims in a matrix: where clients report nothing, and of methods with an epsilon."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flfw.comparisons import matrices, tables
from flfw.comparisons.compare import table
from flfw.comparisons.findings import combine
from flfw.comparisons.question import Matrix
from flfw.comparisons.rows import FinishedRun, read, read_matrix
from flfw.comparisons.tables import markdown
from flfw.comparisons.utility import claimed, shown
from flfw.errors import InputError
from flfw.privacy.rounding import at_most
from tests.support.matrix_runs import amended, written
from tests.support.small_runs import tiny

SPREAD = {"mean": 0.5, "least": 0.5, "most": 0.5}
FINAL = {"acc_local": None, "acc_global": None, "acc_central": 0.5, "per_client": []}
CLAIM = {"epsilon": 2.754, "delta": 1e-5, "unit": "example", "adversary": "server", "noise_source": "secure"}


def combination(*kinds: str, **changes: Any) -> dict[str, Any]:
    """A combination of matrix.json in which these accuracies were measured."""
    measured = {kind: SPREAD if kind in kinds else None for kind in ("acc_local", "acc_global", "acc_central")}
    return {"method": "m", "defence": "none", **measured, "claim": None, "attacks": [], **changes}


def test_the_accuracy_is_shown_that_all_have() -> None:
    every = combination("acc_local", "acc_global", "acc_central")
    silent = combination("acc_central")
    assert shown([every, every]).key == "acc_local"
    assert shown([every, combination("acc_global", "acc_central")]).key == "acc_global"
    assert shown([every, silent]).key == "acc_central"
    assert shown([every, combination()]).key == "acc_local"  # the other one's is a dash
    assert shown([silent, combination()]).key == "acc_central"
    assert shown([combination()]).key == shown([]).key == "acc_local"


def test_a_claim_in_words() -> None:
    assert claimed(CLAIM) == "2.76 for one example against server"
    assert claimed({**CLAIM, "noise_source": "seed"}) == "with noise_source=secure: 2.76 for one example against server"
    assert claimed({**CLAIM, "noise_source": "seed", "epsilon": "inf"}) == "inf for one example against server"


def test_the_markdown_has_a_column_for_claims_where_there_are_any() -> None:
    records = {"combinations": [combination("acc_central", claim=CLAIM), combination()], "notes": []}
    assert markdown({"": records}).splitlines()[::2] == [
        "| method | defence | accuracy on the server's test data | epsilon at most | attack | recovered "
        "| closeness, dB | identified | verdict |",
        "| m | none | 50 % | 2.76 for one example against server | not attacked | – | – | – | – |",
    ]
    assert markdown({"": records}).splitlines()[3] == "| m | none | – | – | not attacked | – | – | – | – |"


def claiming(folder: Path, **against: float | str) -> FinishedRun:
    """A run that claims these epsilons, and has a paper's figure."""
    lines = [{**CLAIM, "accounting": "exact", "adversary": who, "epsilon": value} for who, value in against.items()]
    lines.insert(0, {**CLAIM, "accounting": "as published", "epsilon": 9.0})
    return read(amended(written(folder, [], []), privacy=lines))


def test_the_claim_that_counts_is_the_first_finite_one_of_the_weakest_seed(tmp_path: Path) -> None:
    runs = [
        claiming(tmp_path / str(seed), server="inf", outsider=epsilon, aggregate=0.1)
        for seed, epsilon in enumerate((2.0, 5.0, 3.0))
    ]
    weakest = combine("m", "none", runs).claim
    assert weakest is not None and (weakest["adversary"], weakest["epsilon"]) == ("outsider", 5.0)
    plain = read(written(tmp_path / "plain", [], []))
    assert combine("m", "none", [plain]).claim is combine("m", "none", [*runs, plain]).claim is None


def test_no_claim_is_shown_that_a_seed_does_not_make(tmp_path: Path) -> None:
    """As where one run of a matrix was simulated, and real clients reported what has no noise in another."""
    simulated = claiming(tmp_path / "0", server=9.0, outsider=8.0)
    real = claiming(tmp_path / "1", server="inf", outsider=7.0)
    for runs in ([simulated, real], [real, simulated]):
        shown = combine("m", "none", runs).claim
        assert shown is not None and (shown["adversary"], shown["epsilon"]) == ("outsider", 8.0)
    nothing = combine("m", "none", [claiming(tmp_path / "2", server="inf", outsider="inf"), real]).claim
    assert nothing is not None and (nothing["adversary"], nothing["epsilon"]) == ("server", "inf")


def test_a_claim_that_rests_on_other_noise_in_one_seed_says_so(tmp_path: Path) -> None:
    runs = [claiming(tmp_path / str(seed), server=epsilon) for seed, epsilon in enumerate((2.0, 3.0))]
    seeded = [{**line, "noise_source": "seed"} for line in runs[0].result["privacy"]]
    runs[0] = replace(runs[0], result={**runs[0].result, "privacy": seeded})
    shown = combine("m", "none", runs).claim
    assert shown is not None and claimed(shown) == "with noise_source=secure: 3 for one example against server"


@pytest.mark.slow
def test_a_claim_beside_canaries_has_no_source_of_noise(silent: Path, tmp_path: Path) -> None:
    """Of a method that claims nothing."""
    copy = shutil.copytree(silent, tmp_path / "copy")
    record = json.loads((copy / "matrix.json").read_text())
    for seed in (0, 1):
        line = {key: CLAIM[key] for key in ("unit", "adversary", "delta")} | {"epsilon": "inf", "accounting": "exact"}
        amended(copy / f"local_only-none-s{seed}", privacy=[line])
    located = [tiny(copy / c["folder"], method=c["method"], seed=c["seed"]) for c in record["cells"]]
    tables.write(copy, record["question"], located, {})
    shown = json.loads((copy / "matrix.json").read_text())["combinations"][1]["claim"]
    assert (shown["epsilon"], shown["noise_source"]) == ("inf", None)


def test_a_damaged_claim_is_bad_input(tmp_path: Path) -> None:
    for lacking in ("unit", "epsilon", "adversary", "accounting"):
        run = claiming(tmp_path / lacking, server=2.0)
        lines = [{k: v for k, v in line.items() if k != lacking} for line in run.result["privacy"]]
        amended(run.folder, privacy=lines)
        with pytest.raises(InputError, match=rf"Expected privacy\[0\]\.{lacking}, got none in "):
            read(run.folder)


def test_an_accuracy_without_its_mean_is_bad_input_and_one_that_is_not_there_is_none(tmp_path: Path) -> None:
    fields = {"question": {}, "notes": [], "cells": []}
    combination: dict[str, Any] = {"method": "m", "defence": "none", "attacks": [], "worst": None}
    path = tmp_path / "matrix.json"
    path.write_text(json.dumps({**fields, "combinations": [combination]}))
    assert tables.lines(read_matrix(path)) == ["m: no accuracy; not attacked"]
    path.write_text(json.dumps({**fields, "combinations": [{**combination, "acc_local": {"mea": 0.5}}]}))
    with pytest.raises(InputError, match=r"acc_local\.mean, got none"):
        read_matrix(path)


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A matrix whose clients report no number: one method has a model at the server, the other has none."""
    experiment = tiny(metrics="none", attack=("none",))
    folder = tmp_path_factory.mktemp("silent") / "matrix"
    return matrices.run(Matrix(methods=("dp_fedavg", "local_only"), seeds=(0, 1)), experiment, folder)


@pytest.mark.slow
def test_runs_without_reported_accuracies_are_complete(silent: Path) -> None:
    record = json.loads((silent / "matrix.json").read_text())
    assert [cell["state"] for cell in record["cells"]] == ["complete"] * 4
    noisy, alone = record["combinations"]
    finals = [json.loads((silent / f"dp_fedavg-none-s{seed}/result.json").read_text())["final"] for seed in (0, 1)]
    central = [final["acc_central"] for final in finals]
    assert noisy["acc_central"] == {"mean": sum(central) / 2, "least": min(central), "most": max(central)}
    assert [noisy[kind] for kind in ("acc_local", "acc_global")] == [None, None]
    assert [alone[kind] for kind in ("acc_local", "acc_global", "acc_central", "claim")] == [None] * 4


def test_a_run_without_a_final_evaluation_is_no_complete_one(silent: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(silent, tmp_path / "copy")
    amended(copy / "local_only-none-s1", final=None)
    cells = json.loads((copy / "matrix.json").read_text())["cells"]
    located = [tiny(copy / c["folder"], method=c["method"], seed=c["seed"]) for c in cells]
    tables.write(copy, json.loads((copy / "matrix.json").read_text())["question"], located, {})
    states = [(cell["state"], cell["reason"]) for cell in json.loads((copy / "matrix.json").read_text())["cells"]]
    assert [state for state, _ in states] == ["complete"] * 3 + ["failed"]
    assert states[-1][1].startswith("Expected a run with a final evaluation, got folder=")


def test_compared_accuracies_with_noise_are_said_to_have_it(silent: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(silent, tmp_path / "copy")
    names = [f"dp_fedavg-none-s{seed}" for seed in (0, 1)]
    result = json.loads((copy / names[1] / "result.json").read_text())
    config = {**result["config"], "metrics": "private"}
    amended(copy / names[1], config=config, final={**FINAL, "acc_global": 0.9})
    assert f"as received (with noise: {names[1]}) –" in " ".join(table([copy / name for name in names]).split())
    assert "with noise:" not in table([silent / name for name in names])


def test_the_claim_of_the_seed_with_the_largest_epsilon_is_shown(silent: Path) -> None:
    record = json.loads((silent / "matrix.json").read_text())
    claims = [json.loads((silent / f"dp_fedavg-none-s{seed}/result.json").read_text())["privacy"][0] for seed in (0, 1)]
    noisy = record["combinations"][0]
    assert noisy["claim"]["epsilon"] == max(claim["epsilon"] for claim in claims)
    assert noisy["claim"].items() <= max(claims, key=lambda claim: claim["epsilon"]).items()
    page = (silent / "matrix.html").read_text()
    assert f"epsilon at most {claimed(noisy['claim'])}" in page and "On the server’s test data" in page
    noisy_line, alone_line = matrices.summary(silent).splitlines()[:2]
    assert f"accuracy {noisy['acc_central']['mean']:.3f} on the server's test data; epsilon at most" in noisy_line
    assert alone_line == "local_only: no accuracy; not attacked"


def test_compared_runs_show_what_was_measured_and_claimed(silent: Path) -> None:
    text = table([silent / "dp_fedavg-none-s0", silent / "local_only-none-s0"])
    final = json.loads((silent / "dp_fedavg-none-s0/result.json").read_text())
    rows = [line.split() for line in text.splitlines()]
    assert ["on", "the", "server's", "test", "data", f"{100 * final['final']['acc_central']:.1f}", "%", "–"] in rows
    assert ["as", "received", "–", "–"] in rows
    epsilon = at_most(final["privacy"][0]["epsilon"])
    row = ["one", "example", "against", "server,", "exact", "with", "noise_source=secure:", epsilon, "–"]
    assert row in rows  # the noise of these runs is seeded: the bound alone would be false
