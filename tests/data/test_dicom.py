"""DICOM files: grey levels as a viewer shows them, what is refused in words, and patients by their identifiers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, JPEGLosslessSV1, RLELossless

import sim
from flfw.data import ImageFormat, absolute, describe, load
from flfw.data.files import cache
from flfw.data.image_files.decoder import is_dicom, look, pixels
from flfw.errors import InputError
from tests.support.pictures import noise, save

LEVELS = np.array([[0, 100, 200, 300], [400, 500, 600, 1000]], np.uint16)


def scan(path: Path, values: np.ndarray = LEVELS, syntax: str = ExplicitVRLittleEndian, **tags: Any) -> Path:
    """A DICOM file of grey values (H, W), or of colours (H, W, 3)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Dataset()
    made.file_meta = FileMetaDataset()
    made.file_meta.TransferSyntaxUID = pydicom.uid.UID(syntax)
    made.SOPClassUID = made.file_meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.7"
    made.SOPInstanceUID = made.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    made.Rows, made.Columns, made.SamplesPerPixel = *values.shape[:2], values[0, 0].size
    made.PhotometricInterpretation = "RGB" if values.ndim == 3 else "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 8 * values.itemsize
    made.HighBit, made.PixelRepresentation = made.BitsStored - 1, int(values.dtype.kind == "i")
    if values.ndim == 3:
        made.PlanarConfiguration = 0
    data = values.tobytes()
    made.PixelData = encapsulate([b"\xff\xd8not JPEG"]) if made.file_meta.TransferSyntaxUID.is_compressed else data
    for name, value in tags.items():
        setattr(made, name, value)
    made.save_as(path, enforce_file_format=True)
    return path


def shown(path: Path) -> list[list[int]]:
    return pixels(path, ImageFormat(), 1)[0].tolist()


# --- grey levels --------------------------------------------------------------------------------------------------


def test_without_a_window_the_least_value_is_black_and_the_greatest_white(tmp_path):
    path = scan(tmp_path / "a.dcm")
    assert look(path) == (True, 2, 4, "", 0)
    assert shown(path) == [[0, 26, 51, 76], [102, 128, 153, 255]]
    assert shown(scan(tmp_path / "flat.dcm", np.full((2, 2), 7, np.uint16))) == [[0, 0], [0, 0]]


def test_small_values_are_bright_in_monochrome1(tmp_path):
    path = scan(tmp_path / "a.dcm", PhotometricInterpretation="MONOCHROME1")
    assert look(path).grey and shown(path) == [[255, 229, 204, 179], [153, 127, 102, 0]]


def test_the_first_window_is_that_of_rescaled_values(tmp_path):
    # 2 v - 100 is -100, 100, 300, 500 and so on; the window of 400 around 300 goes from 100 to 500.
    window = {"RescaleSlope": 2, "RescaleIntercept": -100, "WindowCenter": [300.5, 0], "WindowWidth": [401, 1]}
    levels = shown(scan(tmp_path / "a.dcm", **window))
    assert levels == [[0, 0, 128, 255], [255, 255, 255, 255]]
    signed = scan(tmp_path / "b.dcm", LEVELS.astype(np.int16) - 500, WindowCenter=0.5, WindowWidth=1001)
    assert shown(signed) == [[0, 26, 51, 76], [102, 128, 153, 255]]


def test_a_table_of_interest_comes_before_a_window(tmp_path):
    table = Dataset()
    table.LUTDescriptor, table.LUTData = [3, 0, 8], np.array([255, 0, 51], np.uint16).tobytes()
    values = np.array([[0, 1, 2, 9]], np.uint8)
    path = scan(tmp_path / "a.dcm", values, VOILUTSequence=[table], WindowCenter=1, WindowWidth=2)
    assert shown(path) == [[255, 0, 51, 51]]


def test_colours_are_kept(tmp_path):
    values = noise(4, 5, 3)
    path = scan(tmp_path / "a.dcm", values)
    assert look(path)[:3] == (False, 4, 5)
    np.testing.assert_array_equal(pixels(path, ImageFormat(), 3), values.transpose(2, 0, 1))


def test_run_length_encoding_needs_no_other_decoder(tmp_path):
    made = pydicom.dcmread(scan(tmp_path / "a.dcm"))
    made.compress(RLELossless)
    made.save_as(tmp_path / "b.dcm")
    assert shown(tmp_path / "b.dcm") == shown(tmp_path / "a.dcm")


# --- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("a.dcm", True), ("A.DCM", True), ("IM0001", True), ("1.2.840.113619.2", True), ("a.txt", False), ("a.b", False)],
)
def test_names_without_an_ending_are_looked_into(tmp_path, name, is_one):
    assert is_dicom(scan(tmp_path / name)) is is_one
    (tmp_path / "README").write_text("no DICOM" * 99)
    assert not is_dicom(tmp_path / "README") and not is_dicom(tmp_path / "nobody")


@pytest.mark.parametrize(
    ("tags", "values", "line"),
    [
        ({"NumberOfFrames": 2}, np.zeros((2, 4), np.uint16), "it has 2 frames: save each as a file of its own"),
        (
            {"syntax": JPEGLosslessSV1},
            LEVELS,
            "it is compressed as JPEG Lossless, Non-Hierarchical, First-Order Prediction .*, which no decoder here",
        ),
    ],
)
def test_what_cannot_be_read_is_said_in_words(tmp_path, tags, values, line):
    with pytest.raises(ValueError, match=line):
        pixels(scan(tmp_path / "a.dcm", values, **tags), ImageFormat(), 1)


def test_files_that_are_none_are_damaged_images(tmp_path):
    for name in ("a/0.dcm", "a/1.dcm", "b/0.dcm", "b/1.dcm", "b/2.dcm"):
        scan(tmp_path / name)
    (tmp_path / "b" / "2.dcm").write_text("no DICOM")
    (tmp_path / "a" / "0.dcm").write_bytes((tmp_path / "a" / "0.dcm").read_bytes()[:-6])
    with pytest.raises(InputError, match=r"2 that cannot be read: \S+a/0.dcm \(.*b/2.dcm \(InvalidDicomError: "):
        load(f"folder:{tmp_path}")


def test_scans_and_photos_of_any_size_are_one_set(tmp_path):
    scan(tmp_path / "a" / "0.dcm")
    scan(tmp_path / "a" / "IM1", LEVELS[:, :2])
    save(tmp_path / "b" / "0.png", noise(9, 9))
    save(tmp_path / "b" / "1.png", noise(9, 9))
    chosen = load(f"folder:{tmp_path}", image_format=ImageFormat(size=(2, 2)))
    assert chosen.shape == (1, 2, 2) and chosen.train_x[0].tolist() == [[[26, 51], [128, 153]]]


# --- patients -----------------------------------------------------------------------------------------------------


def patients_of(root: Path) -> str:
    """Ten patients in two classes, with two images each; one of them is in both classes."""
    for number in range(10):
        for image in range(2):
            label = "ab"[image if number == 0 else number % 2]
            values = LEVELS + np.uint16(10 * number + image)
            scan(root / label / f"{number}-{image}.dcm", values, PatientID=f" Smith^{9 - number}", PatientName="Smith")
    return f"folder:{root}@PatientID"


def test_the_identifier_of_the_header_is_the_patient(tmp_path):
    name = patients_of(tmp_path / "own")
    chosen, plain = load(name), load(name.removesuffix("@PatientID"))
    assert plain.train_group is None and chosen.train_group is not None and chosen.test_group is not None
    assert not set(chosen.train_group) & set(chosen.test_group)
    assert sorted(np.bincount([*chosen.train_group, *chosen.test_group]).tolist()) == [2] * 10
    assert absolute(name) == name and describe(name).classes == 2
    kept = [path for path in cache.user_cache().rglob("*") if path.is_file()]
    assert kept and not any(b"Smith" in path.read_bytes() for path in kept)


def test_files_without_an_identifier_are_refused_and_no_other_is_shown(tmp_path):
    name = patients_of(tmp_path / "own")
    scan(tmp_path / "own" / "a" / "nobody.dcm")
    with pytest.raises(
        InputError, match=r"a PatientID in \S+own, got 1 files without, the first of them \S+nobody.dcm;"
    ):
        describe(name)
    (tmp_path / "own" / "a" / "nobody.dcm").unlink()
    (tmp_path / "own" / "train").mkdir()
    (tmp_path / "own" / "test").mkdir()
    for part, other in (("train", "0"), ("test", "1")):
        for label in "ab":
            scan(tmp_path / "own" / part / label / f"{other}.dcm", PatientID="Smith^1")
    with pytest.raises(
        InputError, match="Expected each patient in one part, got 1, whom their headers name in"
    ) as error:
        describe(name)
    assert "Smith" not in str(error.value)


@pytest.mark.slow
def test_a_run_says_nothing_of_the_headers(tmp_path, monkeypatch):
    name = patients_of(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    flags = "--method fedavg --net linear --clients 2 --rounds 1 --local-epochs 1 --engine inproc --attack none"
    assert sim.main([*flags.split(), "--dataset", name, "--expert", "own_images=4", "--out", "run"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["config"]["dataset"].endswith("own@PatientID")
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert written and not any(b"Smith" in path.read_bytes() for path in written)
