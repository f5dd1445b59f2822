"""Pictures of every kind: what of a file becomes an input, in which size and colour, and what damage does."""

import json
from base64 import b64decode
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import sim
from flfw.command.program import main as flfw_main
from flfw.data import ImageFormat, describe, load
from flfw.data.files import cache
from flfw.data.image_files import listing as surveys
from flfw.data.image_files.decoder import look, pixels
from flfw.errors import InputError
from flfw.experiment import Experiment
from tests.support.pictures import noise, save, truncate


def saved(path: Path, image: Image.Image, **options) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **({"format": "JPEG"} if path.suffix in (".JFIF", ".jpe") else {}), **options)
    return path


def halves(height: int, width: int, mode: str = "L") -> Image.Image:
    """Black at the left, white at the right."""
    levels = np.zeros((height, width), np.uint8)
    levels[:, width // 2 :] = 255
    return Image.fromarray(levels).convert(mode)


# --- size ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", ["auto", "crop", "stretch", "letterbox"])  # of 16 columns a crop leaves the middle 8
def test_an_image_of_another_shape_gets_the_size(tmp_path, fit):
    path = saved(tmp_path / "wide.png", halves(8, 16))
    levels = pixels(path, ImageFormat(size=(4, 4), fit=fit), 1)
    assert levels.shape == (1, 4, 4)
    lines = levels[0].tolist()
    if fit == "letterbox":  # scaled to 2 x 4, with black above and below
        assert lines[0] == lines[3] == [0, 0, 0, 0] and lines[1] == lines[2]
    assert abs(np.array(lines[1]) - [0, 0, 255, 255]).max() < 70  # smoothed at the edge


def test_cropping_takes_the_middle_and_stretching_all(tmp_path):
    levels = np.repeat(np.arange(12, dtype=np.uint8)[None] * 20, 4, 0)
    path = save(tmp_path / "a.png", levels)
    assert pixels(path, ImageFormat(size=(4, 4), fit="crop"), 1)[0, 0].tolist() == [80, 100, 120, 140]
    assert pixels(path, ImageFormat(size=(4, 12)), 1)[0].tolist() == levels.tolist()
    assert pixels(path, ImageFormat(size=(2, 6), fit="stretch"), 1)[0, 0, [0, -1]].tolist() == [14, 206]


def test_a_side_follows_the_size(tmp_path):
    path = save(tmp_path / "a.png", noise(3, 20, 30))
    first = pixels(path, ImageFormat(size=(10, 10)), 3)
    both = pixels(path, ImageFormat(side=5, size=(10, 10)), 3)
    expected = Image.fromarray(first.transpose(1, 2, 0)).resize((5, 5), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(both.transpose(1, 2, 0), np.asarray(expected))


def test_photos_are_decoded_at_a_fraction_that_is_twice_the_size_or_more(tmp_path, monkeypatch):
    path = saved(tmp_path / "photo.jpg", Image.fromarray(noise(600, 800)).convert("RGB"))
    drafts = []
    from PIL.JpegImagePlugin import JpegImageFile

    kept = JpegImageFile.draft

    def counted(image, mode, size):
        result = kept(image, mode, size)
        drafts.append(image.size)
        return result

    monkeypatch.setattr(JpegImageFile, "draft", counted)
    assert pixels(path, ImageFormat(size=(32, 32)), 3).shape == (3, 32, 32)
    assert pixels(path, ImageFormat(), 3).shape == (3, 600, 800)
    assert drafts == [(100, 75), (800, 600)]  # an eighth, of which the shorter side is more than 2 x 32


def test_folders_of_mixed_sizes_become_one(tmp_path):
    for number, size in enumerate([(3, 8, 9), (3, 20, 10), (12, 12), (3, 9, 9)]):
        save(tmp_path / "ab"[number // 2] / f"{number}.png", noise(*size))
    image_format = ImageFormat(size=(6, 5))
    chosen, card = load(f"folder:{tmp_path}", image_format=image_format), describe(f"folder:{tmp_path}", image_format)
    assert chosen.shape == card.shape == (3, 6, 5) and card.net == "lenet"
    assert chosen.notes[:-1] == (
        "Images of 8x9 to 20x10 pixels were brought to 6x5 (scaled and cut in the middle); these are what the network "
        "sees, and what the audit calls originals.",
    )
    grey = load(f"folder:{tmp_path}", image_format=ImageFormat(size=(28, 28), fit="letterbox", colour="grey"))
    assert grey.shape == (1, 28, 28) and "with black bars" in grey.notes[0]
    assert describe(f"folder:{tmp_path}", ImageFormat(size=(28, 28), colour="grey")).net == "cnn1"


@pytest.mark.parametrize("word", "0|5000|3x|x3|3x4x5|-3|²|3X4|3 x 4|blue|64,32|7bits|12bits,12bits".split("|"))
def test_other_sizes_are_refused(word):
    with pytest.raises(InputError, match=r"Expected own-images of a size N or HxW, .* each once, got own_images="):
        Experiment(own_images=word)


# --- kinds of files -----------------------------------------------------------------------------------------------


def test_files_of_every_kind_are_what_a_person_sees(tmp_path):
    red, grey = (np.array([255, 0, 0], np.uint8), 0x9A)
    of_16_bits = Image.fromarray(np.full((4, 4), 0x9ABC, np.uint16))
    palette = Image.new("P", (4, 4))
    palette.putpalette([255, 0, 0, 0, 0, 255])
    greys = Image.new("P", (4, 4), 1)
    greys.putpalette([0, 0, 0, grey, grey, grey])
    kinds = {
        "deep.png": (of_16_bits, True, [grey]),
        "deep.jp2": (of_16_bits, True, [grey]),
        "photo.JFIF": (Image.new("RGB", (4, 4), (255, 0, 0)), False, red),
        "photo.jpe": (Image.new("L", (4, 4), grey), True, [grey]),
        "drawing.gif": (palette, False, red),
        "deep.tif": (of_16_bits, True, [grey]),
        "palette.png": (palette, False, red),
        "grey palette.png": (greys, True, [grey]),
        "one bit.png": (Image.new("1", (4, 4), 1), True, [255]),
        "opaque.png": (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), False, red),
        "clear.png": (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), False, [255, 255, 255]),
        "half.png": (Image.new("LA", (4, 4), (0, 128)), True, [127]),
        "four inks.jpg": (Image.new("CMYK", (4, 4), (0, 255, 255, 0)), False, red),
    }
    for name, (image, is_grey, colour) in kinds.items():
        path = saved(tmp_path / name, image)
        assert look(path).grey is is_grey and path.name.lower().endswith(surveys.EXTENSIONS), name
        levels = pixels(path, ImageFormat(), len(colour))
        assert np.abs(levels[:, 2, 2].astype(int) - colour).max() <= 2, name  # JPEG is not exact


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_the_orientation_of_a_photo_is_followed(tmp_path, suffix, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"photo.{suffix}", halves(80, 160), exif=exif)
    turned = orientation in (6, 8)
    assert look(path)[1:3] == ((160, 80) if turned else (80, 160))
    for image_format in (ImageFormat(), ImageFormat(size=(16, 8) if turned else (8, 16))):
        (shown,) = pixels(path, image_format, 1)
        first, last = (shown[0], shown[-1]) if turned else (shown[:, 0], shown[:, -1])
        assert bool(first.mean() > 200) is (orientation in (3, 8))
        assert bool(last.mean() > 200) is (orientation in (1, 6))


def test_grey_and_colour_may_be_mixed(tmp_path):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        save(tmp_path / name, noise(5, 5))
    assert load(f"folder:{tmp_path}").shape == (1, 5, 5)
    assert load(f"folder:{tmp_path}", image_format=ImageFormat(colour="rgb")).shape == (3, 5, 5)
    save(tmp_path / "b" / "1.png", noise(3, 5, 5))
    mixed = load(f"folder:{tmp_path}")
    assert mixed.shape == (3, 5, 5)
    np.testing.assert_array_equal(mixed.train_x[0], np.stack([noise(5, 5)] * 3))
    assert load(f"folder:{tmp_path}", image_format=ImageFormat(colour="grey")).shape == (1, 5, 5)


# --- what is no picture, and what is damaged ----------------------------------------------------------------------


def test_hidden_folders_and_files_are_neither_classes_nor_images(tmp_path):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        save(tmp_path / name, noise(4, 4))
    for name in ".git/0.png .ipynb_checkpoints/0.png __MACOSX/0.png @eaDir/0.png a/@eaDir/2.png a/._0.png".split():
        save(tmp_path / name, noise(4, 4))
    card = describe(f"folder:{tmp_path}")
    assert sorted(card.files) == ["a/0.png", "a/1.png", "b/0.png", "b/1.png"] and card.notes and not card.notes(None)


def damaged_folder(root: Path) -> Path:
    """30 images of two classes: the pixels of 9 of ``a`` are cut short, and three headers of ``b`` are none."""
    for name in "ab":
        for number in range(15):
            save(root / name / f"{number:02d}.png", np.roll(noise(3, 40, 40), 50 * "ab".index(name) + number))
    for number in range(3, 12):
        truncate(root / "a" / f"{number:02d}.png")
    for number in range(3):
        (root / "b" / f"{number:02d}.png").write_text("no image")
    return root


def test_all_damaged_files_are_named_at_once(tmp_path):
    damaged_folder(tmp_path)
    with pytest.raises(InputError) as error:
        load(f"folder:{tmp_path}")
    line = str(error.value)
    assert line.startswith(f"Expected readable images in {tmp_path}, got 12 that cannot be read: ")
    assert line.endswith(
        "; and 2 more. Get these files again, take them out, or leave them out with --expert own_images=skip_damaged."
    )
    assert line.count("truncated") + line.count("cannot identify") == 10 and "\n" not in line


def test_damaged_files_are_left_out_where_that_is_asked_for(tmp_path):
    name, image_format = f"folder:{damaged_folder(tmp_path)}", ImageFormat(skip_damaged=True)
    load(name, image_format=image_format)
    for chosen in (load(name, image_format=image_format), load(name, image_format=image_format)):  # from the cache
        assert (len(chosen.train_y), len(chosen.test_y)) == (5 + 10, 1 + 2)
        assert chosen.notes[:-1] == ("Images that cannot be read were left out: 12 of 30 (9 of a, 3 of b).",)
        np.testing.assert_array_equal(chosen.train_x[0], noise(3, 40, 40))


def test_a_folder_of_pictures_is_accounted_for_on_the_command_line(tmp_path, capsys):
    damaged_folder(tmp_path)
    (tmp_path / "a" / "notes.txt").write_text("words")
    saved(tmp_path / "b" / "long name.png", halves(20, 60, "RGB"))
    assert flfw_main(["data", "pictures", f"folder:{tmp_path}"]) == 0
    head, a, b, counted, *notes = capsys.readouterr().out.splitlines()
    assert [head.split(), a.split(), b.split()] == [["class", "training", "test"], ["a", "5", "1"], ["b", "11", "2"]]
    assert counted == (
        "19 pictures of 20x60 to 40x40 pixels, in colour, levels 0 to 255 of 255 after scaling to 32x32."
    )
    assert notes[:2] == [
        "1 file is not read: 1 .txt.",
        "Images that cannot be read were left out: 12 of 31 (9 of a, 3 of b).",
    ]
    assert len(notes) == 14 and all(note.startswith(f"{tmp_path}/") for note in notes[2:])
    assert flfw_main(["data", "pictures", f"{tmp_path}/a"]) == 2
    assert flfw_main(["data", "pictures", f"{tmp_path}/none"]) == 2
    truncate(tmp_path / "b" / "01.png"), truncate(tmp_path / "b" / "06.png"), truncate(tmp_path / "b" / "11.png")
    assert flfw_main(["data", "pictures", f"{tmp_path}"]) == 2
    *errors, of_part = capsys.readouterr().err.splitlines()
    assert "test image of each class" in of_part and f"{tmp_path}/b/01.png (" in of_part
    assert len(errors) == 2 and all(line.startswith("flfw data: Expected ") for line in errors)


def test_pictures_whose_pixels_alone_are_damaged_and_their_patients_are_not_counted(tmp_path, monkeypatch):
    for name in ("a/p0", "a/p1", "a/p2", "b/p3", "b/p4", "b/p5", "a/p6", "b/p7", "a/p8", "b/p9"):
        for number in range(2):
            save(tmp_path / name / f"{number}.png", noise(3, 8, 8 + number))

    def decode(files, *form):
        x, read, _ = decoded(files, *form)
        lost = np.array(["p0" in str(file) for file in files])
        return x[~lost[read]], read & ~lost, dict.fromkeys(np.flatnonzero(lost), "cut short")

    decoded, found = surveys.decode, surveys.Listing.of(tmp_path, "@patient")
    assert found.account()[3:5] == [
        "20 pictures of 8x8 to 8x9 pixels, in colour, levels 1 to 246 of 255 after scaling to 32x32.",
        "10 patients, each in one part.",
    ]
    monkeypatch.setattr(surveys, "decode", decode)
    lines = found.account()
    assert lines[3].startswith("18 pictures of ") and lines[4] == "9 patients, each in one part."
    assert [line for line in lines if line.endswith("cut short")] == [
        f"{tmp_path}/a/p0/{n}.png: cut short" for n in (0, 1)
    ]


def test_a_class_without_a_readable_image_is_refused(tmp_path):
    damaged_folder(tmp_path)
    for path in (tmp_path / "b").iterdir():
        truncate(path)
    with pytest.raises(InputError, match=r"Expected a readable training image of each class in .*, got none of b"):
        load(f"folder:{tmp_path}", image_format=ImageFormat(skip_damaged=True))


@pytest.mark.parametrize("name", ["a.tif", "a.webp", "a.png", "a.gif"])
def test_images_of_several_frames_are_refused_in_words(tmp_path, name):
    frames = [Image.fromarray(noise(8, 8 + number)[:, :8]) for number in range(3)]
    path = saved(tmp_path / name, frames[0], save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match="it has 3 frames: save each as a file of its own"):
        pixels(path, ImageFormat(), 1)


@pytest.mark.parametrize(("bits", "fits"), [(0, False), (10, False), (12, True), (16, True)])
def test_a_sites_files_do_not_decide_on_the_scale(tmp_path, bits, fits):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        save(tmp_path / name, np.full((4, 4), 0x0ABC, np.uint16))
    refused = pytest.raises(InputError, match="got 12; with --expert own_images=12bits 4095 is white in all files")
    with nullcontext() if fits else refused:
        chosen = load("site:1x4x4:2", tmp_path, image_format=ImageFormat(bits=bits))
        assert (chosen.train_x == 0x0ABC >> (bits - 8)).all()


DARK = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABEAIAAADA54+dAAAADElEQVR4nGPg/w+CAAmyAysEKUClAAAAAElFTkSuQmCC"


def test_levels_that_would_be_lost_are_refused(tmp_path):
    signed = saved(tmp_path / "signed.tif", Image.fromarray(np.full((4, 4), -9, np.int32)))
    (colours := tmp_path / "colours.png").write_bytes(b64decode(DARK))  # of 12 bits in 16, which Pillow cannot write
    for path, why in ((signed, "its grey levels go from -9 to -9"), (colours, "its colours use few of")):
        with pytest.raises(ValueError, match=why):
            look(path)


def test_headers_are_read_once_for_each_state_of_a_folder(tmp_path, monkeypatch):
    for name in ("a/0.png", "a/1.png", "b/0.png", "b/1.png"):
        save(tmp_path / name, noise(4, 4))
    read = []
    monkeypatch.setattr(surveys, "look", lambda path: read.append(path) or look(path))
    for _ in range(2):
        describe(f"folder:{tmp_path}")
        surveys._survey.cache_clear()  # as in another process
    assert len(read) == 4
    save(tmp_path / "a" / "2.png", noise(4, 4))
    describe(f"folder:{tmp_path}")
    assert len(read) == 9
    kept = list((cache.user_cache() / "surveys").iterdir())
    assert len(kept) == 2 and all(path.stat().st_mode & 0o777 == 0o600 for path in kept)


# --- on the command line ------------------------------------------------------------------------------------------

RUN = "--method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --engine inproc"


@pytest.mark.slow
def test_a_folder_of_any_photos_is_trained_on_and_audited(tmp_path, monkeypatch, capsys):
    root = damaged_folder(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    flags = [*RUN.split(), "--dataset", "folder:own", "--expert", "own_images=12x10,letterbox"]
    assert sim.main([*flags, "--attack", "none", "--out", "no"]) == 2
    assert f"Expected readable images in {root}, got 12 that" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()
    audit = "--attack analytic --images 2 --audit-rounds 0 --out run --expert own_images=12x10,letterbox,skip_damaged"
    assert sim.main([*flags, *audit.split()]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (entry,) = result["audit"]
    assert (entry["verdict"], entry["share_recovered"]) == ("leaks", 1.0)
    assert "Images that cannot be read were left out: 12 of 30 (9 of a, 3 of b)." in result["notes"]


def test_other_sets_have_no_such_form(capsys):
    assert sim.main(["--dataset", "digits", "--expert", "own_images=12"]) == 2
    assert capsys.readouterr().err == (
        "sim.py: Expected folder:PATH with a size in --expert own_images; other sets have --image-size, "
        "got dataset=digits.\n"
    )
    assert sim.main(["--dataset", "site:1x8x8:2", "--expert", "own_images=12", "--federation", "none"]) == 2
    assert "no size in --expert own_images, as site:1x8x8:2 names the size" in capsys.readouterr().err
