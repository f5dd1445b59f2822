"""A user's own text: how a file becomes sequences of bytes, which part they are of, what is refused."""

import numpy as np
import pytest

import sim
from flfw.data import absolute, describe, has_public_constants, is_here, load, title
from flfw.errors import InputError


def read(x):
    return [bytes(np.rint(255 * row).astype(np.uint8)) for row in x]


def test_a_plain_file_is_cut_into_sequences_and_the_bytes_after_them(tmp_path):
    (tmp_path / "plain.txt").write_text("abcdefghijklmnopqrstuvwxyz")
    # Pieces abc|d, efg|h, ijk|l, mno|p, qrs|t, uvw|x; yz is too short.
    chosen = load(f"text:{tmp_path / 'plain.txt'}@3")
    assert read(chosen.train_x) == [b"abc", b"ijk", b"mno", b"qrs", b"uvw"]
    assert read(chosen.test_x) == [b"efg"]  # the second piece; the next one would be the seventh
    assert bytes(chosen.train_y.astype(np.uint8)) == b"dlptx" and bytes(chosen.test_y.astype(np.uint8)) == b"h"
    assert (chosen.classes, chosen.shape, chosen.vocabulary, chosen.train_x.dtype) == (256, (3,), 256, np.float32)
    assert (chosen.mean, chosen.std) == ((0.0,) * 3, (1.0,) * 3)


def test_labelled_lines_are_an_example_each(tmp_path):
    lines = "ham\thi|spam\tlonger than four|ham\té\tx||spam\tb|ham\tc|ham\td|ham\te|ham\tf|ham\tg".split("|")
    (tmp_path / "mail.tsv").write_text("\n".join(lines), encoding="utf-8-sig")
    chosen = load(f"text:{tmp_path / 'mail.tsv'}@4")
    # of ham (hi, é, c, d, e, f, g) the second and the seventh are for testing, of spam the second
    assert read(chosen.train_x) == [b"hi\0\0", b"long", b"c\0\0\0", b"d\0\0\0", b"e\0\0\0", b"f\0\0\0"]
    assert read(chosen.test_x) == ["é\tx".encode(), b"b\0\0\0", b"g\0\0\0"]
    assert (chosen.train_y.tolist(), chosen.test_y.tolist(), chosen.classes) == ([0, 1, 0, 0, 0, 0], [0, 1, 0], 2)


def test_the_length_is_32_unless_the_name_says_another(tmp_path):
    (tmp_path / "a@b.txt").write_text("word " * 100)
    name = f"text:{tmp_path / 'a@b.txt'}"
    assert describe(name).shape == (32,) and describe(f"{name}@7").shape == (7,)
    assert absolute(name) == f"{name}@32" and title(f"{name}@7") == "a@b"
    assert is_here(name) and has_public_constants(name)
    assert (describe(name).net, describe(name).split) == ("gpt_tiny", "iid")


@pytest.mark.parametrize(
    ("content", "word", "line"),
    [
        (None, "", "Expected text:FILE with a file of text, got {file}; no file is there."),
        (b"caf\xe9", "", "Expected UTF-8 in {file}, got another byte at 3; convert the file."),
        (b"ab\0cd", "", "Expected text in {file}, got a zero byte at 2; remove it."),
        (b"a\tb\nb\tc\nx", "", "Expected a tab in all lines of {file}, as in most, got 'x'; add it, or use none."),
        (b"a\tb\na\tc", "", "Expected two labels or more in {file}, got only a; add another class."),
        (b"x" * 9, "@9", "Expected 50 bytes or more for sequences of 9, got 9; take a longer file or another LENGTH."),
        (b"x", "@1", "Expected text:FILE or text:FILE@LENGTH with 2 <= LENGTH <= 1024, got text:{file}@1."),
    ],
)
def test_files_that_are_no_such_text_are_refused_in_one_line(tmp_path, content, word, line):
    file = tmp_path / "file.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as error:
        load(f"text:{file}{word}")
    assert str(error.value) == line.format(file=file)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--net cnn1", "Expected inputs of 1x28x28 for net=cnn1, got 32; choose another --net."),
        ("--attack ig", "Expected attacks that read tokens for net=gpt_tiny, got attack=ig."),
        (
            "--net gpt_next --attack none --method dp_fedavg",
            "Expected a method whose local steps follow the loss of the whole network for net=gpt_next, got "
            "method=dp_fedavg.",
        ),
        ("--attack none --expert augment=flip", "Expected images for text:{file}@32 to be varied, got augment=flip."),
        ("--attack none --image-size 8", "Expected images in text:{file}@32 to be resized, got image_size=8."),
        (
            "--attack none --defence soteria",
            "Expected a defence without derivatives in the inputs, which are tokens, for net=gpt_tiny, "
            "got defence=soteria.",
        ),
    ],
)
def test_what_does_not_fit_text_is_refused_in_one_line(tmp_path, capsys, options, line):
    file = tmp_path / "text.txt"
    file.write_text("some words " * 50)
    requested = ["--method", "fedavg", "--dataset", f"text:{file}", "--clients", "2", "--out", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as end:
        raise SystemExit(sim.main([*requested, *options.split()]))
    assert end.value.code == 2
    assert capsys.readouterr().err.strip().endswith(line.format(file=file))
    assert not (tmp_path / "out").exists()


def test_a_language_model_needs_text_without_labels(tmp_path, capsys):
    file = tmp_path / "text.tsv"
    file.write_text("a\tone\nb\ttwo\n" * 20)
    requested = ["--method", "fedavg", "--dataset", f"text:{file}", "--net", "gpt_next", "--attack", "none"]
    with pytest.raises(SystemExit) as end:
        raise SystemExit(sim.main([*requested, "--clients", "2", "--out", str(tmp_path / "out")]))
    assert end.value.code == 2
    words = "Expected text without labels for net=gpt_next, which learns the next token of every place, got dataset="
    assert words in capsys.readouterr().err


def test_a_network_for_text_refuses_other_rows(tmp_path, capsys):
    requested = ["--method", "fedavg", "--dataset", "cancer", "--net", "gpt_tiny", "--attack", "none", "--clients", "2"]
    with pytest.raises(SystemExit) as end:
        raise SystemExit(sim.main([*requested, "--out", str(tmp_path / "out")]))
    assert end.value.code == 2
    line = "Expected text of 256 tokens for net=gpt_tiny, such as text:FILE, got dataset=cancer."
    assert capsys.readouterr().err.strip().endswith(line)
