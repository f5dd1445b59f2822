"""Faces: which attribute, which people, which middle of the picture, which part."""

import numpy as np
import pytest
from PIL import Image

from flfw.data import describe, load
from flfw.errors import InputError
from flfw.rng import numpy_generator
from tests.support.pictures import noise, save, truncate

UNPUBLISHED = "ignore:Expected the published"
ATTRIBUTES = ["Bald", "Male", "Smiling", *(f"Other_{n}" for n in range(37))]
PARTS = [0, 0, 2, 0, 1, 2]  # train, valid or test of each of six images
VALUES = np.where(noise(6, 40) % 2, 1, -1)


def framed(height, width, middle, shade):
    """A white picture with a square of ``shade`` in its middle."""
    image = np.full((3, height, width), 255, dtype=np.uint8)
    top, left = (height - middle) // 2, (width - middle) // 2
    image[:, top : top + middle, left : left + middle] = shade
    return image


def write_celeba(root):
    """Six faces in CelebA's layout; the square in the middle of image i is of grey level 20 i."""
    folder = root / "celeba"
    names = [f"{number:06d}.jpg" for number in range(1, 7)]
    for i, name in enumerate(names):
        save(folder / "img_align_celeba" / name, framed(218, 178, 178, 20 * i), quality=95)

    def table(file, header, rows):
        lines = [f"{name} {' '.join(f'{value:2d}' for value in row)}" for name, row in zip(names, rows, strict=True)]
        head = [str(len(lines)), header] if header else []
        (folder / file).write_text("".join(f"{line}\n" for line in [*head, *lines]))

    table("list_attr_celeba.txt", " ".join(ATTRIBUTES) + " ", VALUES.tolist())
    table("list_eval_partition.txt", "", [[part] for part in PARTS])
    table("identity_CelebA.txt", "", [[1]] * 6)
    table("list_bbox_celeba.txt", "image_id x_1 y_1 width height", [[0, 0, 178, 218]] * 6)
    table("list_landmarks_align_celeba.txt", "lefteye_x lefteye_y", [[69, 109]] * 6)
    return root


@pytest.mark.parametrize(("name", "column"), [("celeba", 1), ("celeba:Male", 1), ("celeba:Smiling", 2)])
def test_celeba_is_labelled_by_an_attribute(tmp_path, name, column):
    with pytest.warns(UserWarning, match="md5 sums for list_attr_celeba.txt, .*; results say md5_ok=false"):
        celeba = load(name, write_celeba(tmp_path))
    has = (VALUES[:, column] == 1).astype(int)
    assert celeba.train_y.tolist() == has[[0, 1, 3]].tolist()
    assert celeba.test_y.tolist() == has[[2, 5]].tolist()
    # Nothing is left of the white above and below the square; near it JPEG blurs.
    np.testing.assert_allclose(celeba.train_x[:, :, 16, 16], [[0] * 3, [20] * 3, [60] * 3], atol=2)
    np.testing.assert_allclose(celeba.test_x[1], np.full((3, 32, 32), 100), atol=40)
    np.testing.assert_allclose(celeba.test_x[1, :, 4:-4], np.full((3, 24, 32), 100), atol=2)
    assert (celeba.shape, celeba.classes, celeba.md5_ok, celeba.mean) == ((3, 32, 32), 2, False, (0.5, 0.5, 0.5))


def test_the_attributes_of_the_labels_differ():
    columns = (VALUES[:, 1], VALUES[:, 2])  # or the test above could not tell them apart
    assert columns[0][[0, 1, 3]].tolist() != columns[1][[0, 1, 3]].tolist()


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_celeba_is_resized_to_any_side_from_its_files(tmp_path):
    celeba = load("celeba", write_celeba(tmp_path), side=89)
    assert celeba.shape == (3, 89, 89)
    with Image.open(tmp_path / "celeba" / "img_align_celeba" / "000004.jpg") as image:
        expected = image.crop((0, 20, 178, 198)).resize((89, 89), Image.Resampling.BILINEAR)
        np.testing.assert_array_equal(celeba.train_x[2], np.asarray(expected).transpose(2, 0, 1))


def test_an_unknown_attribute_lists_the_forty():
    with pytest.raises(InputError, match=r"among 5_o_Clock_Shadow, .*, Male, .*, Young; got celeba:male\.$") as error:
        describe("celeba:male")
    assert str(error.value).count(", ") == 39


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_damaged_celeba(tmp_path):
    folder = write_celeba(tmp_path) / "celeba"
    attributes = folder / "list_attr_celeba.txt"
    whole = attributes.read_text()
    attributes.write_text(whole.replace("-1", " 7"))
    with pytest.raises(InputError, match=r"with labels 0-1, got .* among them 4;"):
        load("celeba", tmp_path)
    attributes.write_text(whole.replace("Male", "Female"))
    with pytest.raises(InputError, match=r"readable celeba files in .*'Male' is not in list"):
        load("celeba", tmp_path)
    attributes.write_text(whole)
    truncate(folder / "img_align_celeba" / "000003.jpg")
    with pytest.raises(InputError, match=r"img_align_celeba/000003.jpg \(OSError: .*truncated"):
        load("celeba", tmp_path)
    (folder / "img_align_celeba" / "000002.jpg").unlink()
    with pytest.raises(InputError, match=r"img_align_celeba/000002.jpg \(FileNotFoundError"):
        load("celeba", tmp_path)
    attributes.unlink()
    with pytest.raises(InputError, match=r"celeba/list_attr_celeba.txt, got .*flfw data get celeba"):
        load("celeba", tmp_path)


def test_the_sums_are_torchvisions():
    from torchvision.datasets import CelebA, LFWPeople

    theirs = {f"celeba/{file}": md5 for _, md5, file in CelebA.file_list if file.endswith(".txt")}
    assert describe("celeba").files == {**theirs, "celeba/img_align_celeba": None}
    lists = {f"lfw-py/{file}": LFWPeople.checksums[file] for file in ("people.txt", "lfw-names.txt")}
    assert describe("lfw").files == {**lists, "lfw-py/lfw_funneled": None}


def write_people(root, folds):
    """LFW's lists: of each fold its people and how many images each has."""
    folder = root / "lfw-py"
    (folder / "lfw_funneled").mkdir(parents=True, exist_ok=True)
    lines = [str(len(folds))]
    for people in folds:
        lines += [str(len(people)), *(f"{name}\t{count}" for name, count in people.items())]
    (folder / "people.txt").write_text("\n".join(lines))
    names = sorted((name, count) for people in folds for name, count in people.items())
    (folder / "lfw-names.txt").write_text("".join(f"{name}\t{count}\n" for name, count in names))
    return folder / "lfw_funneled"


FOLDS = [{"Cy_Young": 21, "Di_Few": 19}, {"Al_Twenty": 20}]


def write_lfw(root):
    """60 images of three people; the middle square's grey level tells the image: 5 n, + 2 where it is Cy's."""
    folder = write_people(root, FOLDS)
    for name, count in {**FOLDS[0], **FOLDS[1]}.items():
        for number in range(1, count + 1):
            shade = 5 * number + (2 if name == "Cy_Young" else 0)
            save(folder / name / f"{name}_{number:04d}.jpg", framed(250, 250, 125, shade), quality=95)
    return root


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_lfw_keeps_the_people_with_twenty_images(tmp_path):
    lfw = load("lfw", write_lfw(tmp_path))
    assert (lfw.train_x.shape, lfw.test_x.shape) == ((30, 3, 32, 32), (11, 3, 32, 32))
    # As the lists have them: Cy (label 1, the second of the kept in the alphabet), then Al (label 0).
    listed = [(5 * n + 2, 1) for n in range(1, 22)] + [(5 * n, 0) for n in range(1, 21)]
    shuffled = [listed[row] for row in numpy_generator(0, "lfw cut").permutation(41)]
    assert [*lfw.train_y, *lfw.test_y] == [label for _, label in shuffled]
    middles = np.concatenate([lfw.train_x, lfw.test_x])[:, :, 16, 16]
    np.testing.assert_allclose(middles, [[shade] * 3 for shade, _ in shuffled], atol=1)
    np.testing.assert_allclose(lfw.train_x[0, 0, 3:-3, 3:-3], shuffled[0][0], atol=2)  # no white
    assert (lfw.classes, lfw.md5_ok) == (62, False)


@pytest.mark.filterwarnings(UNPUBLISHED)
def test_damaged_lfw(tmp_path):
    write_lfw(tmp_path)
    missing = tmp_path / "lfw-py" / "lfw_funneled" / "Al_Twenty" / "Al_Twenty_0007.jpg"
    missing.unlink()
    with pytest.raises(InputError, match=r"Al_Twenty_0007.jpg \(FileNotFoundError"):
        load("lfw", tmp_path)
    write_people(tmp_path, [{f"Person_{n}": 20 for n in range(62)}, {"One_More": 20, "Few": 1}])
    with pytest.raises(InputError, match=r"at most 62 people with 20 images in \S+people.txt, got 63 of 64;"):
        load("lfw", tmp_path)
    with pytest.raises(
        InputError, match=r"lfw-py/people.txt, .*get the files with a copy of people.txt, lfw-names.txt"
    ):
        load("lfw", tmp_path / "empty")
