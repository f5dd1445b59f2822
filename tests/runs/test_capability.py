"""The capability test: attacks that keep to their grants pass it, and each way of cheating is caught."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from flfw import plugins
from flfw.adversary.attack import Attack, AttackPlugin, NotApplicableError, Upload, Uses
from flfw.adversary.membership_attack import MembershipAttack, MembershipView
from flfw.errors import InputError
from flfw.experiment import Experiment
from flfw.files.sealed import read_checked
from flfw.inversion.closed_form.linear import linear_inputs
from flfw.nets.malicious_model import ModelModification
from flfw.recording.observation import Knowledge, Observation
from flfw.runs import run as whole
from tests.support import capability
from tests.support.capability import Capability, check
from tests.support.small_runs import ByGuess, tiny

# --- attacks that a server process finds here as tests.runs.test_capability:Class ---


class Honest(ByGuess):
    """Reads the observation, its knowledge and its generator, all of which are granted."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        inputs, labels = knowledge.model.inputs, knowledge.labels
        assert labels is not None
        raw = linear_inputs(observation.sent["classifier.weight"], observation.sent["classifier.bias"], 1).view(
            inputs.shape
        )
        noise = torch.rand(inputs.shape, generator=rng)
        return (raw * inputs.std + inputs.mean).clamp(0, 1) + 1e-3 * noise + 1e-6 * labels[0]


def above() -> Path:
    """The run's folder, seen from the server's working directory."""
    return Path.cwd().parent


class OpensTruthAbove(ByGuess):
    """Walks up from where it works, and finds what the clients wrote down."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return load_file(above() / "truth" / f"{observation.key}.safetensors")["samples"]


class OpensTruthOfArguments(ByGuess):
    """Takes the queue's folder from the command line, and the recordings' from a job there."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        job = next(path for path in Path(sys.argv[1]).glob("*.json") if ".solved" not in path.name)
        folder = Path(json.loads(read_checked(job))["recordings"]).parent / "truth"
        return load_file(folder / f"{observation.key}.safetensors")["samples"]


class ReadsMetrics(ByGuess):
    """Lets what a client says of itself into its guess."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        rows = (above() / "observations" / "manifest.jsonl").read_text().splitlines()[1:]
        lines = [json.loads(row) for row in rows]
        message = next(line["metrics"] for line in lines if line["client"] == observation.client)
        return torch.full(knowledge.model.inputs.shape, len(json.dumps(message)) / 1000)


class ReadsResults(ByGuess):
    """Lets how an earlier audit went into its guess."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        result = json.loads((above() / "result.json").read_text())
        return torch.full(knowledge.model.inputs.shape, result["audit"][0]["share_recovered"] / 2)


class ReadsCheckpoints(ByGuess):
    """Lets what the server holds at the end into its guess, whatever the round."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        (file,) = (above() / "checkpoint").glob("round-*.safetensors")
        return torch.full(knowledge.model.inputs.shape, float(load_file(file)["model/classifier.bias"].abs().mean()))


class ReadsTheControl(ByGuess):
    """Inverts the audit's own control, which is undefended softmax regression on the same examples."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        rows = (above() / "observations" / "manifest.jsonl").read_text().splitlines()[1:]
        lines = [json.loads(row) for row in rows]
        control = next(i for i in lines if i["client"] == observation.client and i["sent_by_client"]["bytes"])
        sent = load_file(above() / "observations" / control["sent_by_client"]["file"])
        return linear_inputs(sent["classifier.weight"], sent["classifier.bias"], 1)


class ReadsOtherResults(ByGuess):
    """Takes what it found on the easy control for the target, too."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        if observation.control == "easy":
            return torch.full(knowledge.model.inputs.shape, 0.25)
        results = sorted(Path.cwd().glob("*ReadsOtherResults-r0000-easy.safetensors"))
        return load_file(results[0])["0"] if results else torch.zeros(knowledge.model.inputs.shape)


_remembered: dict[str, Tensor] = {}


class Remembers(ByGuess):
    """Keeps in memory what the easy control gave away."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        if observation.control == "easy":
            _remembered["easy"] = torch.full(knowledge.model.inputs.shape, 0.25)
        return _remembered.get("easy", torch.zeros(knowledge.model.inputs.shape))


class Fickle(ByGuess):
    """Reads nothing, and never gives the same twice."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        return torch.rand(knowledge.model.inputs.shape, generator=torch.Generator().manual_seed(torch.seed() % 2**31))


class GivesNothing(ByGuess):
    """Always fails."""

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        raise ValueError("no idea")


class InfersFromTruth(ByGuess):
    """Counts the labels that the clients wrote down, and guesses nothing else."""

    reconstructs = False

    @property
    def uses(self) -> Uses:
        return frozenset({"uploads"})

    def guess(self, observation: Observation, knowledge: Knowledge, rng: torch.Generator) -> Tensor:
        raise NotApplicableError("it only infers")

    def shares(self, uploads: Sequence[Upload]) -> list[Tensor]:
        labels = [load_file(file)["labels"] for file in sorted((above() / "truth").glob("*.safetensors"))]
        return [torch.cat(labels).double().mean().expand(10) for _ in uploads]


class TellsByTheResult(MembershipAttack):
    """Lets how well an earlier audit told members into its scores."""

    def scores(self, view: MembershipView, rng: torch.Generator) -> dict[str, Tensor]:
        result = json.loads((above() / "result.json").read_text())
        right = result["membership"][0]["correct"]["correct"]
        return {"cosine": view.candidates.labels.double() * right}


FAST = (Honest, OpensTruthAbove, ReadsMetrics)
SLOW = (OpensTruthOfArguments, ReadsResults, ReadsCheckpoints, ReadsTheControl, ReadsOtherResults, Remembers, Fickle)
KINDS = {name: plugins.load_class(plugins.ATTACK, name, AttackPlugin) for name in plugins.names(plugins.ATTACK)}
TAMPERING = [name for name, kind in KINDS.items() if issubclass(kind, ModelModification) and issubclass(kind, Attack)]
TELLING = [name for name, kind in KINDS.items() if issubclass(kind, MembershipAttack)]
DISCOVERED = [name for name in KINDS if issubclass(KINDS[name], Attack) and name not in TAMPERING]


def named(cls: type) -> str:
    return f"{__name__}:{cls.__name__}"


def finished(folder: Path, **changes: Any) -> Path:
    """A run audited at rounds 0 and 1, with everything in its folder."""
    return whole.run(tiny(folder, **changes))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("finished") / "run")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def results(run: Path) -> dict[str, Capability]:
    """What is found out about several attacks at once: three server processes."""
    before = contents(run)
    attacks = [*(named(cls) for cls in FAST), "analytic"]
    result = {one.attack: one for one in check(run, attacks)}
    assert list(result) == attacks and contents(run) == before
    return result


@pytest.mark.nightly
def test_an_attack_that_keeps_to_its_grants_passes(results: dict[str, Capability]) -> None:
    one = results[named(Honest)]
    assert one.same and one.compared == 6 and not one.changed  # two exchanges each of easy, round 0 and round 1
    assert str(one).endswith("gave the same 6 results without what it is not granted.")


@pytest.mark.nightly
def test_the_closed_form_passes(results: dict[str, Capability]) -> None:
    assert results["analytic"].same and results["analytic"].compared == 6


@pytest.mark.slow
def test_an_attack_that_opens_the_truth_is_caught(results: dict[str, Capability]) -> None:
    one = results[named(OpensTruthAbove)]
    assert not one.same and one.repeats and one.compared == 6 == len(one.changed)
    assert "reads more than it is granted: 6 of 6" in str(one) and "of r0001-target" in str(one)


@pytest.mark.nightly
def test_an_attack_that_reads_what_a_client_says_of_itself_is_caught(results: dict[str, Capability]) -> None:
    one = results[named(ReadsMetrics)]
    assert not one.same and one.repeats and len(one.changed) == 6


@pytest.mark.nightly
def test_every_other_way_to_cheat_is_caught(run: Path) -> None:
    results = {one.attack: one for one in check(run, [named(cls) for cls in SLOW])}
    assert [name for name, one in results.items() if one.same] == []
    assert [name for name, one in results.items() if not one.repeats] == [named(Fickle)]
    assert "does not repeat itself" in str(results[named(Fickle)])
    carried = {named(cls): results[named(cls)].changed for cls in (ReadsOtherResults, Remembers)}
    for name, changed in carried.items():
        assert len(changed) == 4 and not any("easy" in where for where in changed), name


FEW = tuple(
    (
        "ig.iterations=5 dlg.iterations=2 idlg.iterations=2 cpl.iterations=2 dlg_statistics.adam_iterations=5 "
        "dlg_statistics.lbfgs_iterations=2 dcs2.search_iterations=5 fedcg.search_iterations=5 hyperfl.iterations=5 "
        "generator.iterations=5 generator.further_iterations=5 generator.learning_iterations=5 "
        "gradinversion.iterations=5 gradinversion.warmup_iterations=1 rog.iterations=5 tableak.iterations=5 "
        "april.iterations=5"
    ).split()
)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_every_attack_of_the_project_keeps_to_its_grants(tmp_path: Path, method: str) -> None:
    for one in check(finished(tmp_path / "run", method=method, net="mlp"), DISCOVERED, FEW):
        assert one.same, f"{one} Use only `sent` and `received` of an Observation, and the Knowledge that is granted."
    assert {"analytic", "ig"} <= set(DISCOVERED)


@pytest.mark.nightly
def test_what_is_inferred_of_clients_is_compared_too(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", method="fedavg", net="mlp", attack=("label_distribution",))
    one, other = check(folder, ["label_distribution", named(InfersFromTruth)])
    assert one.same and one.compared > 0
    assert len(other.changed) == other.compared > 0 and other.repeats and "the classes of client" in str(other)


@pytest.mark.nightly
def test_an_attack_on_membership_reads_no_truth_and_no_result(tmp_path: Path) -> None:
    game = {"split": "iid", "audit_rounds": "1", "membership_pairs": "8", "dataset": "digits"}
    folder = finished(tmp_path / "run", net="mlp", attack=("membership",), **game)
    *honest, cheat = check(folder, [*TELLING, named(TellsByTheResult)])
    for one in honest:
        assert one.same and one.compared > 0, f"{one} Use only the MembershipView."
    assert cheat.repeats and len(cheat.changed) == cheat.compared > 0 and "cosine for client" in str(cheat)


@pytest.mark.nightly
@pytest.mark.parametrize("name", TAMPERING)
def test_every_malicious_server_s_attack_keeps_to_its_grants(tmp_path: Path, name: str) -> None:
    folder = finished(tmp_path / "run", method="fedavg", net="mlp", attack=(name,), malicious_server=name)
    (one,) = check(folder, [name])
    assert one.same and one.compared > 0


@pytest.mark.nightly
def test_an_attack_on_text_keeps_to_its_grants(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(" ".join(str(number**3) for number in range(400)))
    place = f"text:{tmp_path / 'text.txt'}@8"
    folder = finished(tmp_path / "run", method="fedavg", dataset=place, net="gpt_tiny", split="iid", attack=("dager",))
    (one,) = check(folder, ["dager"])
    assert one.same and one.compared > 0


@pytest.mark.nightly
def test_an_attack_on_a_vision_transformer_keeps_to_its_grants(tmp_path: Path) -> None:
    (one,) = check(finished(tmp_path / "run", method="fedavg", net="vit_plain", attack=("april",)), ["april"])
    assert one.same and one.compared > 0


@pytest.mark.nightly
def test_an_attack_with_public_data_is_checked_by_itself(run: Path) -> None:
    (one,) = check(run, ["fedcg"], ("fedcg.search_iterations=5",))
    assert one.same and one.compared > 0


@pytest.mark.nightly
def test_a_search_on_a_network_of_convolutions_keeps_to_its_grants(tmp_path: Path) -> None:
    folder = finished(tmp_path / "run", net="lenet", victim_batch=2, victim_steps=2, curve=("batch=1",))
    (one,) = check(folder, ["ig"], ("ig.iterations=5",))
    assert one.same and one.compared == 10


@pytest.mark.nightly
def test_the_command_says_it_with_its_exit_code(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert capability.main([str(run), "--attack", "ig", "--set", "ig.iterations=3"]) == 0
    assert "ig gave the same 6 results" in capsys.readouterr().out
    assert capability.main([str(run), "--attack", named(OpensTruthAbove), "analytic"]) == 1
    assert "reads more than it is granted" in capsys.readouterr().out
    assert capability.main([str(run), "--attack", named(GivesNothing)]) == 2
    assert "nothing could be compared" in capsys.readouterr().out


@pytest.mark.slow
def test_what_cannot_be_checked_is_bad_input(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], small: Experiment
) -> None:
    with pytest.raises(InputError, match="attack among"):
        check(run, ["telepathy"])
    with pytest.raises(InputError):
        check(tmp_path / "nowhere", ["ig"])
    assert capability.main([str(whole.run(small)), "--attack", "ig"]) == 2
    assert "Expected recordings" in capsys.readouterr().err
