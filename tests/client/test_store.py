"""A client's private tensors on its own disk."""

import hashlib
import os
import random
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from flfw.client.store import ClientStore, StateMissingError
from flfw.messages.sharing import SharingViolationError


def holding(value: float) -> dict[str, torch.Tensor]:
    return {"embedding": torch.full((3,), value)}


def files(folder) -> list[str]:
    """The files below a folder, their SHA-256 cut off."""
    result = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return [re.sub(r"-[0-9a-f]{64}", "", name) for name in result]


def test_what_was_saved_is_loaded_with_names_shapes_and_types(tmp_path) -> None:
    saved = {
        "embedding": torch.tensor([0.1, -2.0]),
        "classifier.weight": torch.arange(6.0).reshape(2, 3),
        "classifier.weight.T": torch.arange(6.0).reshape(2, 3).T,
        "every.other": torch.arange(6)[::2],
        "batches": torch.tensor(7),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "none": torch.zeros(0, 4),
    }
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, saved, made_from=0)
    loaded = store.load(1)
    assert loaded.keys() == saved.keys()
    for name, value in saved.items():
        assert (loaded[name].dtype, loaded[name].shape) == (value.dtype, value.shape)
        assert torch.equal(loaded[name], value)


def test_another_process_finds_the_state(tmp_path) -> None:
    ClientStore(tmp_path, "run", 3).save(1, holding(1.0), made_from=0)
    assert ClientStore(tmp_path, "run", 3).load(1)["embedding"].tolist() == [1.0, 1.0, 1.0]


def test_the_last_two_versions_are_kept_whatever_rounds_lie_between(tmp_path) -> None:
    store, before = ClientStore(tmp_path, "run", 3), 0
    for version in (1, 2, 5, 9, 10):
        store.save(version, holding(version), made_from=before)
        before = version
    assert files(tmp_path) == [f"run/03/client-0003/round-000{v}.safetensors" for v in ("09", "10")]
    assert store.load(9)["embedding"][0] == 9
    assert store.load(10)["embedding"][0] == 10


def test_the_version_the_server_named_stays_when_later_ones_were_never_used(tmp_path) -> None:
    """The updates of rounds 3 and 4 were dropped: the server's checkpoint still says version 2."""
    store = ClientStore(tmp_path, "run", 3)
    store.save(2, holding(2.0), made_from=0)
    for version in (3, 4, 5):
        store.save(version, holding(version), made_from=2)
        assert files(tmp_path) == [f"run/03/client-0003/round-0000{v}.safetensors" for v in (2, version)]
    assert store.load(2)["embedding"][0] == 2


def test_a_late_client_does_not_drop_what_is_newer(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1.0), made_from=0)
    store.save(3, holding(3.0), made_from=1)
    store.save(2, holding(2.0), made_from=1)  # was asked in round 2, and answers after round 3
    assert store.load(3)["embedding"][0] == 3
    assert store.load(1)["embedding"][0] == 1


@pytest.mark.parametrize("version", [0, 1, 4])
def test_a_version_that_is_not_there_is_an_error_that_names_the_folder(tmp_path, version) -> None:
    store = ClientStore(tmp_path, "run", 3)
    for kept in (1, 2, 3):
        store.save(kept, holding(kept), made_from=kept - 1)
    with pytest.raises(StateMissingError) as caught:
        store.load(version)
    folder = tmp_path / "run" / "03" / "client-0003"
    assert str(caught.value) == f"Expected private state of round {version} in {folder}, found none; restore it."


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]), lambda data: b""]
)
def test_damaged_state_is_an_error(tmp_path, damage) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1.0), made_from=0)
    (path,) = (tmp_path / "run" / "03" / "client-0003").iterdir()
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateMissingError, match=r"it is damaged; restore it\.$"):
        store.load(1)


@pytest.mark.parametrize(("experiment", "partition", "version"), [("other", 3, 1), ("run", 4, 1), ("run", 3, 2)])
def test_state_that_was_put_there_from_elsewhere_is_an_error(tmp_path, experiment, partition, version) -> None:
    ClientStore(tmp_path, experiment, partition).save(version, holding(1.0), made_from=0)
    (foreign,) = (tmp_path / experiment / f"{partition:02x}" / f"client-{partition:04d}").iterdir()
    chosen = tmp_path / "run" / "03" / "client-0003"
    chosen.mkdir(parents=True, exist_ok=True)
    shutil.move(foreign, chosen / foreign.name.replace(f"round-0000{version}", "round-00001"))
    with pytest.raises(
        StateMissingError, match=r"Expected private state of \{'experiment': 'run', 'client': '3', 'round': '1'"
    ):
        ClientStore(tmp_path, "run", 3).load(1)


def test_the_experiments_name_cannot_lead_out_of_the_folder(tmp_path) -> None:
    with pytest.raises(ValueError, match="Expected an experiment of letters and digits"):
        ClientStore(tmp_path, "../other", 3)


@pytest.mark.parametrize(("experiment", "partition"), [("another", 3), ("run", 4)])
def test_the_state_of_another_experiment_or_client_is_not_read(tmp_path, experiment, partition) -> None:
    ClientStore(tmp_path, "run", 3).save(1, holding(1.0), made_from=0)
    other = ClientStore(tmp_path, experiment, partition)
    with pytest.raises(StateMissingError):
        other.load(1)
    other.save(1, holding(2.0), made_from=0)
    assert ClientStore(tmp_path, "run", 3).load(1)["embedding"][0] == 1


def test_rounds_are_numbers_also_where_they_have_more_digits_than_the_names_of_files(tmp_path) -> None:
    store, before = ClientStore(tmp_path, "run", 3), 0
    for version in (99_998, 99_999, 100_000, 100_001):
        store.allow(before)
        store.save(version, holding(version), made_from=before)
        before = version
    assert [name.partition("round-")[2] for name in files(tmp_path)] == ["100000.safetensors", "100001.safetensors"]
    for version in (100_000, 100_001):
        store.allow(version)
        assert store.load(version)["embedding"][0] == version
    with pytest.raises(SharingViolationError, match=r"its last step, of round 100001, was made from its state of"):
        store.allow(0)


def test_a_version_can_be_written_again(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(2, holding(1.0), made_from=0)
    store.save(2, holding(2.0), made_from=0)  # a round that is repeated after a crash
    assert store.load(2)["embedding"][0] == 2
    assert files(tmp_path) == ["run/03/client-0003/round-00002.safetensors"]


def test_only_the_owner_may_read(tmp_path) -> None:
    before = os.umask(0)
    try:
        ClientStore(tmp_path / "state", "run", 3).save(1, holding(1.0), made_from=0)
    finally:
        os.umask(before)
    folder = tmp_path / "state" / "run" / "03" / "client-0003"
    assert folder.stat().st_mode & 0o777 == 0o700
    (path,) = folder.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_save_that_fails_leaves_the_earlier_versions(tmp_path) -> None:
    store, one = ClientStore(tmp_path, "run", 3), torch.zeros(2)
    store.save(1, holding(1.0), made_from=0)
    store.save(2, holding(2.0), made_from=1)
    with pytest.raises(RuntimeError, match="share memory"):
        store.save(3, {"a": one, "b": one}, made_from=2)
    with pytest.raises(StateMissingError):
        store.load(3)
    assert [store.load(version)["embedding"][0].item() for version in (1, 2)] == [1, 2]


def test_what_a_killed_save_left_is_neither_read_nor_in_the_way(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1.0), made_from=0)
    part = tmp_path / "run" / "03" / "client-0003" / f".round-00002-{'0' * 64}.safetensors.17.part"
    part.write_bytes(b"half a file")
    with pytest.raises(StateMissingError):
        store.load(2)
    store.save(2, holding(2.0), made_from=1)
    assert store.load(2)["embedding"][0] == 2


def test_loaded_tensors_are_the_clients_own(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1.0), made_from=0)
    store.load(1)["embedding"].zero_()
    assert store.load(1)["embedding"][0] == 1


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 1)])
def test_state_of_another_shape_is_refused(tmp_path, shape: tuple[int, ...]) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1), made_from=0)
    assert store.load(1, holding(0))["embedding"].tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(
        StateMissingError, match=rf"Expected private embedding of shape {re.escape(str(shape))}, got \(3,\); "
    ):
        store.load(1, {"embedding": torch.zeros(shape)})
    with pytest.raises(
        StateMissingError, match=r"Expected private embedding to be one of this method's, got \(3,\); restore"
    ):
        store.load(1, {"other": torch.zeros(3)})


# --- which versions a server may name -----------------------------------------------------------------------------


def allowed(store: ClientStore, maximum: int) -> list[int]:
    """The rounds, 0 among them, that a server may name and that are on the disk."""
    result = []
    for version in range(maximum + 1):
        try:
            store.allow(version)
            if version:
                store.load(version)
        except (SharingViolationError, StateMissingError):
            continue
        result.append(version)
    return result


def test_a_server_may_name_the_newest_version_and_the_one_that_was_made_from(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    assert allowed(store, 9) == [0]  # a fresh start; the others are not there
    store.save(2, holding(2.0), made_from=0)
    assert allowed(store, 9) == [0, 2]  # the server was killed in round 2, or went on
    store.save(5, holding(5.0), made_from=0)
    assert allowed(store, 9) == [0, 5]  # the update of round 2 was dropped
    store.save(6, holding(6.0), made_from=5)
    assert allowed(store, 9) == [5, 6]
    store.save(7, holding(7.0), made_from=5)
    assert allowed(store, 9) == [5, 7]


def test_the_refusal_names_the_client_and_where_it_goes_on_from(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(1, holding(1.0), made_from=0)
    store.save(4, holding(4.0), made_from=1)
    with pytest.raises(SharingViolationError) as caught:
        store.allow(0)
    assert str(caught.value) == (
        "client 3 was told to go on from its start, but its last step, of round 4, was made from its state of round 1: "
        "it goes on from one of these two"
    )
    store.save(3, holding(3.0), made_from=1)  # late: round 4 is newer
    with pytest.raises(
        SharingViolationError, match="was told to go on from its state of round 3, but its last step, of "
    ):
        store.allow(3)
    assert allowed(store, 9) == [1, 4]


@pytest.mark.parametrize("seed", range(20))
def test_no_honest_course_is_refused(tmp_path, seed: int) -> None:
    """Rounds in which the client is left out or its update dropped, and a server that is killed and resumes."""
    dice, store = random.Random(seed), ClientStore(tmp_path, "run", 3)
    last = kept = 0  # what the server says, and what its checkpoint does
    server_round = 0
    for _ in range(60):
        server_round += 1
        for _ in range(1 + (dice.random() < 0.3)):  # the second time after a resume from the last checkpoint
            last = kept
            if dice.random() < 0.7:
                store.allow(last)
                assert last == 0 or store.load(last)["embedding"][0] == last
                store.save(server_round, holding(server_round), made_from=last)
                last = server_round if dice.random() < 0.6 else last
                store.allow(last)  # of a probe after the round
        kept = last
    assert kept > 1
    assert 0 not in allowed(store, server_round)


def test_a_file_of_an_earlier_flfw_says_nothing_of_its_origin_and_is_read(tmp_path) -> None:
    store = ClientStore(tmp_path, "run", 3)
    store.save(4, holding(4.0), made_from=0)
    store.save(5, holding(5.0), made_from=4)
    for path in (tmp_path / "run" / "03" / "client-0003").iterdir():
        version, data = int(path.stem[6:11]), load_file(path)
        path.unlink()
        save_file(data, path, {"experiment": "run", "client": "3", "round": str(version)})
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(path.with_name(f"round-{version:05d}-{digest}.safetensors"))
    assert allowed(store, 5) == [0, 4, 5]
