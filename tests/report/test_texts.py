"""Texts on the page: characters of UTF-8, signs for what has no picture, and marks on what is wrong."""

import numpy as np

from flfw.report.findings import LEGEND, text_pair


def inputs(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(np.float32) / 255


def lines(truth: bytes, guess: bytes | None) -> list[str]:
    page = str(text_pair(inputs(truth), None if guess is None else inputs(guess)))
    return [part.partition(">")[2].partition("</div>")[0] for part in page.split('<div class="line')[1:]]


def test_every_ascii_character_stands_for_itself_and_html_is_escaped() -> None:
    assert lines(b"a <b>&", b"a <b>&") == ["a &lt;b&gt;&amp;"] * 2


def test_what_has_no_picture_has_a_sign_that_the_legend_explains() -> None:
    shown, _ = lines(b"a\nb\tc\x00\x07\x7f", None)
    assert shown == "a↵b⇥c·\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"
    assert all(sign in LEGEND for sign in "↵⇥·\N{REPLACEMENT CHARACTER}")


def test_letters_of_several_bytes_are_shown_and_pieces_of_them_are_not() -> None:
    word = "Grüße €".encode()
    assert lines(word, word) == ["Grüße €"] * 2
    cut = "é€".encode()[1:-1]  # as where a piece of a file begins and ends within a character
    assert lines(cut, cut)[0] == 3 * "\N{REPLACEMENT CHARACTER}"


def test_a_sign_that_turns_the_direction_of_a_line_is_not_passed_on() -> None:
    assert "\u202e" not in lines("a\u202eb".encode(), None)[0]


def test_a_character_is_marked_if_any_of_its_bytes_is_wrong() -> None:
    assert lines(b"abc", b"abd")[1] == "ab<mark>d</mark>"
    assert lines("aü".encode(), "aé".encode())[1] == "a<mark>é</mark>"  # the first of the two bytes is right
    assert lines(b"a\n", b"a ")[1] == "a<mark> </mark>"


def test_without_a_result_the_line_says_nothing() -> None:
    assert lines(b"abc", None)[1] == "nothing"
