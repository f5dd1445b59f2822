"""Measures of text: tokens are equal or not, guesses without the message, ROUGE."""

import numpy as np
import pytest

from flfw.audit.measures import metrics, recovery
from flfw.audit.measures.metrics import decoded, rouge, rouges
from flfw.audit.measures.public import PublicData

TEXT = np.frombuffer(b"the cat sat", np.uint8)


def public(*texts: bytes, labels: tuple[int, ...] = ()) -> PublicData:
    samples = np.stack([np.frombuffer(text, np.uint8) for text in texts])
    return PublicData.from_arrays(samples / np.float32(255), np.array(labels or (0,) * len(texts)), text=True)


def test_a_wrong_token_counts_alike_whichever_it_is() -> None:
    near, far = TEXT.copy(), TEXT.copy()
    near[0], far[0] = near[0] + 1, 255
    assert metrics.rmsd(TEXT, near) == metrics.rmsd(TEXT, far) == pytest.approx((1 / 11) ** 0.5)
    assert metrics.psnr(TEXT, TEXT) == 200


def test_texts_are_matched_by_their_wrong_tokens_and_not_by_byte_values() -> None:
    truth = np.array([[10, 10, 10], [200, 200, 200]], np.uint8)
    guesses = np.array([[200, 200, 9], [10, 11, 11]], np.uint8)
    assert recovery.assign(truth, guesses).tolist() == [1, 0]
    # By squares of byte values the second guess would be nearer to this truth.
    truth, guesses = np.array([[0, 0, 0]], np.uint8), np.array([[0, 0, 255], [1, 1, 1]], np.uint8)
    assert metrics.squared_distances(truth, guesses).tolist() == [[1.0, 3.0]]
    assert recovery.identification(truth[0], guesses[0], guesses[1:]) == (1, 2)


@pytest.mark.parametrize(("wrong", "counts"), [(0, True), (2, True), (3, False)])
def test_a_text_counts_as_reconstructed_with_nine_tokens_in_ten(wrong: int, counts: bool) -> None:
    truth = np.arange(20, dtype=np.uint8)
    guess = truth.copy()
    guess[:wrong] = 99
    assert recovery.recovered(truth, guess, {"nearest_public": 0.0}, np.zeros(20, bool)) == counts
    assert recovery.matched_features(truth, guess, np.zeros(20, bool)) == 1 - wrong / 20


@pytest.mark.parametrize(("guess", "counts"), [(b"0123456789", True), (b"012345678x", True), (b"01234", False)])
def test_the_bytes_that_fill_a_short_text_up_reconstruct_nothing(guess: bytes, counts: bool) -> None:
    truth, given = (np.frombuffer(text.ljust(64, b"\0"), np.uint8) for text in (b"0123456789", guess))
    floors = {"mean": metrics.psnr(truth, np.zeros(64, np.uint8))}  # ten bytes wrong, where 0123456789 has none
    assert recovery.recovered(truth, given, floors, np.zeros(64, bool)) == counts
    longer = np.frombuffer(b"0123456789".ljust(64, b"x"), np.uint8)
    assert not recovery.recovered(truth, longer, floors, np.zeros(64, bool))


def test_a_text_that_is_public_is_not_reconstructed() -> None:
    held = public(b"abcd", b"abce", b"zzzz")
    truth = np.frombuffer(b"abcd", np.uint8)
    floors = held.floors(truth, 0, np.random.default_rng(0))
    assert held.guessable(truth, 0) and not held.guessable(np.frombuffer(b"abcx", np.uint8), 0)
    assert not recovery.recovered(truth, truth, floors, held.binary, guessable=True)


def test_guesses_without_the_message_by_hand() -> None:
    held = public(b"aab", b"acb", b"aad", b"xyz", labels=(0, 0, 0, 1))
    floors = held.floors(np.frombuffer(b"acd", np.uint8), 0, np.random.default_rng(0))
    assert set(floors) == {"noise", "mean", "class_mean", "random_public", "nearest_public"}
    share = {name: 1 - 10 ** (-value / 10) for name, value in floors.items()}
    assert share["mean"] == pytest.approx(1 / 3)  # aaa: a is the most usual byte
    assert share["class_mean"] == pytest.approx(1 / 3)  # aab
    assert share["nearest_public"] == pytest.approx(2 / 3)
    assert bytes(held.typical(0).astype(np.uint8)) == b"aab" and bytes(held.typical(1).astype(np.uint8)) == b"xyz"


@pytest.mark.parametrize(
    ("truth", "guess", "one", "two"),
    [
        ("the cat sat", "The cat sat!", 1.0, 1.0),
        ("the the cat", "the cat", 4 / 5, 2 / 3),  # 2 of 3 and of 2 words; 1 of 2 and of 1 pairs
        ("a b c", "c b a", 1.0, 0.0),
        ("word", "word", 1.0, 0.0),  # no pair
        ("", "", 0.0, 0.0),
    ],
)
def test_rouge_by_hand(truth: str, guess: str, one: float, two: float) -> None:
    assert rouge(truth, guess, 1) == pytest.approx(one) and rouge(truth, guess, 2) == pytest.approx(two)


def test_rouge_of_bytes_without_their_filling() -> None:
    filled = np.frombuffer(b"ab cd\0\0\0", np.uint8)
    assert decoded(filled) == "ab cd"
    assert rouges(filled, None, filled) == {
        "rouge_1": None,
        "rouge_2": None,
        "floor_rouge_1": 1.0,
        "floor_rouge_2": 1.0,
    }
