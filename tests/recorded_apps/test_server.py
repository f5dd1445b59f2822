"""Servers of foreign apps: public data that they hold, sums that are all they see, and networks that they changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, final

import pytest
import torch
from torch import nn

from flfw import nets
from flfw.adversary.attack import Uses
from flfw.adversary.sums import SEEN
from flfw.attacks.analytic import Analytic
from flfw.attacks.imprint import Imprint, ImprintSettings
from flfw.attacks.rog import ROG, ROGSettings
from flfw.audit.measures.public import PublicData
from flfw.errors import InputError
from flfw.files.outcomes import MALICIOUS, outcome
from flfw.recorded_apps import TrainingDescription, knowledge
from flfw.recording.observation import Knowledge, Observation, Reconstruction
from flfw.recording.reader import Recordings
from tests.support.foreign_apps import (
    LR,
    SPACE,
    ask,
    client_app,
    dense,
    examples,
    fresh,
    normalised,
    recorded,
    rows,
    truth_of,
)
from tests.support.small_runs import Generators, Observations, WithoutSearch


class Watching(WithoutSearch):
    """Keeps what it was given, and gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[Observation, Knowledge]] = []

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        self.given += zip(observations, knowledge, strict=True)
        return [Reconstruction(torch.full((k.batch, 1, 6, 6), torch.nan)) for k in knowledge]

    def of(self, source: str) -> list[tuple[Observation, Knowledge]]:
        return [(observation, knowledge) for observation, knowledge in self.given if observation.source == source]


@final
class Using(Watching):
    """Uses public data, which it spoils."""

    @property
    def uses(self) -> Uses:
        return frozenset({"public"})

    def run(self, observations: Observations, knowledge: Sequence[Knowledge], rngs: Generators) -> list[Reconstruction]:
        copies = [None if known.public is None else known.public.samples.clone() for known in knowledge]
        result = super().run(observations, knowledge, rngs)
        assert all(copy is not None and 0 < float(copy.max()) <= 1 for copy in copies)
        for known in knowledge:
            assert known.public is not None
            known.public.samples.zero_()
        return result


@final
class Behind(Watching):
    """Sees sums alone."""

    of_sums: ClassVar[bool] = True


@pytest.fixture(scope="module")
def leaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clients send one step on one example each."""
    return recorded(tmp_path_factory.mktemp("leaking") / "recordings", client_app(dense, 1), dense)


# --- public data ---


def test_public_data_are_granted_to_attacks_that_use_them_and_none_of_a_client(leaking: Path, tmp_path: Path) -> None:
    using, other = Using(), Watching()
    x, y = (torch.cat(parts) for parts in zip(*(examples(1, seed) for seed in (0, 1, 9)), strict=True))
    public = PublicData.from_arrays(x.double().numpy(), y.numpy())  # the first two are the clients'
    first, second = ask(leaking, tmp_path / "audit", attacks={"using": using, "other": other}, public=public)["audit"]
    assert "1 public examples with their labels" in first["granted"]
    assert not any("public" in sentence for sentence in second["granted"])
    for source in ("probe", "update"):  # the easy control as well
        assert len(using.of(source)) == 2 == len(other.of(source))
        for _, granted in using.of(source):
            assert granted.public is not None and granted.public.labels.tolist() == [int(y[2])]
            assert granted.public.samples.dtype == torch.float32 and granted.public.samples.shape == (1, 1, 6, 6)
        assert all(knowledge.public is None for _, knowledge in other.of(source))


def test_knowledge_about_one_update_takes_public_data(leaking: Path) -> None:
    observation, (x, y) = Recordings(leaking).updates(1)[0], examples(3, seed=9)
    public = PublicData.from_arrays(x.numpy(), y.numpy())
    known = knowledge(dense(), observation, inputs=SPACE, labels=None, batch=1, lr=LR, public=public)
    assert known.public is not None and torch.equal(known.public.samples, x) and torch.equal(known.public.labels, y)
    assert known.granted[-1] == "3 public examples with their labels"


@pytest.mark.slow
def test_the_ceiling_of_a_search_is_counted(leaking: Path, tmp_path: Path) -> None:
    (result,) = ask(leaking, tmp_path / "audit", attacks={"rog": ROG(ROGSettings(iterations=2, sf=3))})["audit"]
    assert result["ceiling"] < 19 and result["search_limit"].startswith(
        "This attack could not have recovered 2 of 2 images"
    )
    assert all(float(row["psnr"]) <= float(row["ceiling"]) for row in rows(tmp_path / "audit"))


# --- sums ---


def test_an_attack_on_sums_sees_the_sum_of_all_clients_also_of_those_whose_data_nobody_told(
    leaking: Path, tmp_path: Path
) -> None:
    behind, alone = Behind(), Watching()
    truth = truth_of(1)
    attacks = {"behind": behind, "alone": alone}
    first, second = ask(
        leaking, tmp_path / "audit", attacks=attacks, truth=lambda client: truth(client) if client == 1 else None
    )["audit"]
    both = Recordings(leaking).updates(1)
    ((summed, _),), ((single, _),) = behind.of("update"), alone.of("update")
    for name, received in both[0].received.items():
        total = both[0].sent[name] + both[1].sent[name] - 2 * received
        assert torch.allclose(summed.sent[name] - received, total, atol=1e-6), name
        assert torch.equal(single.sent[name], both[0].sent[name]), name
    assert SEEN in first["granted"] and SEEN not in second["granted"]


@pytest.mark.slow
def test_gradients_are_summed_as_they_are_and_there_is_no_sum_of_both(leaking: Path, tmp_path: Path) -> None:
    """The recorded weights are taken here for gradients, of which nothing is subtracted."""
    behind, both = Behind(), Recordings(leaking).updates(1)
    ask(leaking, tmp_path / "audit", attacks={"behind": behind}, training=TrainingDescription(LR, sends="gradient"))
    (summed, _), (other, _) = behind.of("update")
    assert torch.allclose(summed.sent["3.bias"], both[0].sent["3.bias"] + both[1].sent["3.bias"])
    assert torch.equal(summed.sent["3.bias"], other.sent["3.bias"])

    def differing(observation: Observation) -> TrainingDescription:
        return TrainingDescription(LR, sends="weights" if observation.client == 1 else "gradient")

    (result,) = ask(leaking, tmp_path / "mixed", attacks={"behind": Behind()}, training=differing)["audit"]
    assert result["failure_reason"] == "not applicable: there is no sum of gradient and weights"


# --- malicious servers ---


def test_what_a_malicious_server_finds_is_no_leak_to_an_honest_one(leaking: Path, tmp_path: Path) -> None:
    result = ask(leaking, tmp_path / "audit", tampered_by="bait")
    (entry,) = result["audit"]
    assert (outcome(entry), entry["cause"], entry["malicious_server"]) == (MALICIOUS, "tampered", "bait")
    assert entry["share_recovered"] == 1.0 and "a run of such a server" in entry["reason"]
    assert entry["granted"][1] == "a malicious server's change of it (bait), with numbers of its choice"
    assert result["notes"][0].startswith("A malicious server changed the network of this run (bait)")
    assert any("reject_suspicious_weights" in note for note in result["notes"])
    assert result["provenance"]["malicious_server"] == result["config"]["malicious_server"] == "bait"
    page = (tmp_path / "audit" / "report.html").read_text()
    assert "It breaks the rules" in page and "Yes, it leaks" not in page


BINS = ImprintSettings(bins=16)


def imprinted() -> nn.Module:
    """A linear network behind a module whose numbers a server made from public data."""
    net, (x, _) = Imprint(BINS).network(nets.build("linear", (1, 6, 6), 3)), examples(64, seed=9)
    made = Imprint(BINS).crafted(nets.tensors(net), normalised(x))
    net.load_state_dict({**nets.tensors(net), **made})
    return net


@pytest.mark.slow
def test_an_attack_that_changes_the_network_is_audited_as_such_or_not_at_all(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "recordings", client_app(lambda: fresh(imprinted), 2), imprinted)
    case: dict[str, Any] = {"count": 2, "net": imprinted}
    (entry,) = ask(folder, tmp_path / "audit", attacks={"bins": Imprint(BINS)}, tampered_by="imprint", **case)["audit"]
    assert outcome(entry) == MALICIOUS and entry["share_recovered"] >= 0.5
    assert [control["passed"] for control in entry["ladder"]] == [True, True, True]
    with pytest.raises(InputError, match=r"^Expected tampered_by with the attack bins, whose malicious server changes"):
        ask(folder, tmp_path / "unsaid", attacks={"bins": Imprint(BINS)}, **case)
    with pytest.raises(InputError, match=r"^Expected tampered_by for a network with a malicious server's module, got"):
        ask(folder, tmp_path / "unsaid", attacks={"analytic": Analytic()}, **case)
    assert not (tmp_path / "unsaid").exists()
