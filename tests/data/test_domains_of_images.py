"""Images of several domains: which are asked for, how each is halved, and which classes DomainNet keeps."""

import numpy as np
import pytest

from flfw.data import describe, load
from flfw.errors import InputError
from flfw.rng import numpy_generator
from tests.support.pictures import noise, save, truncate

OFFICE = ("amazon", "caltech", "dslr", "webcam")
THINGS = ("back_pack", "bike", "calculator", "headphones", "keyboard")
THINGS += ("laptop_computer", "monitor", "mouse", "mug", "projector")


def flat(*rgb):
    return np.broadcast_to(np.array(rgb, dtype=np.uint8)[:, None, None], (3, 8, 10))


def write_office(root, per_class=(3, 2, 2, 1)):
    """The set's layout in small: an image's colour tells its domain, class and number, and stays under resizing."""
    for domain, (name, count) in enumerate(zip(OFFICE, per_class, strict=True)):
        for label, thing in enumerate(THINGS):
            for number in range(count):
                path = root / "office_caltech_10" / name / thing / f"frame_{number:04d}.jpg"
                save(path, flat(domain, label, number), format="PNG")
    return root


def colours(x):
    """The colour of each image, all pixels of which must have it."""
    assert (x == x[:, :, :1, :1]).all()
    return [tuple(image[:, 0, 0].tolist()) for image in x]


def test_each_domain_of_office_caltech_is_halved(tmp_path):
    office = load("office_caltech", write_office(tmp_path))
    assert (office.shape, office.domains, office.held_out) == ((3, 32, 32), OFFICE, "")
    train, test = colours(office.train_x), colours(office.test_x)
    everything = [(d, c, n) for d, count in enumerate((3, 2, 2, 1)) for c in range(10) for n in range(count)]
    assert sorted(train + test) == everything
    assert [c for _, c, _ in train] == office.train_y.tolist()
    assert [c for _, c, _ in test] == office.test_y.tolist()
    assert [d for d, _, _ in train] == office.train_domain.tolist()
    assert [d for d, _, _ in test] == office.test_domain.tolist()
    assert np.bincount(office.train_domain).tolist() == np.bincount(office.test_domain).tolist() == [15, 10, 10, 5]
    amazon = everything[:30]
    order = numpy_generator(0, "office cut", 0).permutation(30)
    assert train[:15] == [amazon[row] for row in order[:15]]
    assert test[:15] == [amazon[row] for row in order[15:]]


def test_a_domain_is_halved_alike_whatever_else_is_asked_for(tmp_path):
    every, two = (load(name, write_office(tmp_path)) for name in ("office_caltech", "office_caltech:webcam,amazon"))
    assert two.domains == describe("office_caltech:webcam,amazon").domains == ("webcam", "amazon")
    for index, name in enumerate(two.domains):
        of_all, of_two = every.train_domain == OFFICE.index(name), two.train_domain == index
        np.testing.assert_array_equal(two.train_x[of_two], every.train_x[of_all])


@pytest.mark.parametrize("family", ["office_caltech", "domainnet"])
@pytest.mark.parametrize("word", ["amazn", "webcam,webcam", "clipart,clipart", "real,", ","])
def test_domains_that_there_are_not(family, word):
    with pytest.raises(InputError, match=f"^Expected some of .*, each once, got {family}:{word}.$"):
        describe(f"{family}:{word}")


def test_damaged_office_caltech(tmp_path):
    folder = write_office(tmp_path) / "office_caltech_10"
    broken = truncate(folder / "dslr" / "mug" / "frame_0001.jpg")
    with pytest.raises(InputError, match=r"dslr/mug/frame_0001.jpg \(OSError"):
        load("office_caltech", tmp_path)
    assert len(load("office_caltech:amazon,webcam", tmp_path).train_y) == 20
    save(broken, flat(2, 8, 1), format="PNG")
    (folder / "caltech" / "bike").rename(folder / "caltech" / "bicycle")
    with pytest.raises(InputError, match=r"got 10 in caltech \(in it or in amazon alone: bicycle, bike\)"):
        load("office_caltech", tmp_path)
    for domain in OFFICE:
        save(folder / domain / "ring" / "a.jpg", flat(1, 2, 3))
    with pytest.raises(InputError, match=r"got 11 in amazon \(in it or in amazon alone: none\)"):
        load("office_caltech", tmp_path)
    with pytest.raises(InputError, match=r"office_caltech_10/dslr, office_.*a copy of http://www.stat.ucla.edu"):
        load("office_caltech", tmp_path / "empty")


# Images of a class in clipart and real. Twelve classes, of which the ten with most are kept: bus is out with 1, and of
# ant, cow and yak with 2 each the last in the alphabet. Over clipart alone ant and bus are out.
NAMES = "zebra yak cow bus ant dog elk fox gnu hen owl pig".split()
NUMBERS = [(9, 1), (1, 1), (2, 0), (0, 1), (0, 2), (3, 1), (2, 2), (3, 0), (3, 1), (1, 2), (4, 4), (2, 1)]
COUNTS = dict(zip(NAMES, NUMBERS, strict=True))


def write_domainnet(root):
    """Two domains in DomainNet's layout; an image's colour tells its domain, class and number."""
    for domain, name in enumerate(("clipart", "real")):
        lists = {"train": [], "test": []}
        for index, (thing, counts) in enumerate(COUNTS.items()):
            for number in range(counts[domain]):
                file = f"{name}/{thing}/{name}_{index:03d}_{number:06d}.jpg"
                save(root / "domainnet" / file, flat(domain, index, number), format="PNG")
                lists["train" if number % 3 else "test"].append(f"{file} {index}\n")
        save(root / "domainnet" / name / "unlisted" / "a.jpg", noise(3, 8, 8))
        for part, lines in lists.items():
            (root / "domainnet" / f"{name}_{part}.txt").write_text("".join(lines))
    return root


@pytest.mark.parametrize(("word", "out"), [("clipart,real", {"bus", "yak"}), ("clipart", {"ant", "bus"})])
def test_domainnet_keeps_the_ten_classes_with_most_images(tmp_path, word, out):
    result = load(f"domainnet:{word}", write_domainnet(tmp_path))
    domains = word.split(",")
    things, kept = list(COUNTS), sorted({*COUNTS} - out)
    for x, y, given in (
        (result.train_x, result.train_y, result.train_domain),
        (result.test_x, result.test_y, result.test_domain),
    ):
        assert [(d, kept.index(things[index])) for d, index, _ in colours(x)] == list(zip(given, y, strict=True))
    everything = [(d, things.index(t), n) for d in range(len(domains)) for t in kept for n in range(COUNTS[t][d])]
    train, test = colours(result.train_x), colours(result.test_x)
    assert sorted(train + test) == sorted(everything)
    for d in range(len(domains)):
        size = sum(COUNTS[t][d] for t in kept)
        assert ((result.train_domain == d).sum(), (result.test_domain == d).sum()) == (size // 2, size - size // 2)
    assert (result.shape, result.classes, result.domains) == ((3, 32, 32), 10, tuple(domains))


def test_nobody_holds_domainnets_paintings_if_they_are_asked_for():
    assert describe("domainnet").held_out == "painting"
    assert describe("domainnet:clipart,painting").held_out == "painting"
    assert describe("domainnet:clipart,real").held_out == ""


def test_damaged_domainnet(tmp_path):
    folder = write_domainnet(tmp_path) / "domainnet"
    (folder / "real" / "owl" / "real_010_000002.jpg").unlink()
    with pytest.raises(InputError, match=r"domainnet/real/owl/real_010_000002.jpg \(FileNotFoundError"):
        load("domainnet:clipart,real", tmp_path)
    for line in ("clipart/dog", "real/dog/a.jpg 3", "clipart/a/b/c.jpg 1"):
        (folder / "clipart_test.txt").write_text(f"{line}\n")
        with pytest.raises(InputError, match=rf'"clipart/CLASS/IMAGE NUMBER" in \S+clipart_test.txt, got \'{line}\''):
            load("domainnet:clipart", tmp_path)
    with pytest.raises(
        InputError, match=r"a data root with domainnet/sketch, domainnet/sketch_train.txt, .*flfw data get dom"
    ):
        load("domainnet:clipart,sketch", tmp_path)


def test_domainnet_comes_from_its_publisher_domain_by_domain(tmp_path, monkeypatch):
    from flfw.data.files import remote

    requested = []
    monkeypatch.setattr(remote, "download", lambda wanted, root: requested.append(wanted.url))
    monkeypatch.setattr(remote, "unpack", lambda archive, target: requested.append(f"{archive} -> {target}"))
    describe("domainnet:clipart,real").fetch(tmp_path)
    site, folder = "http://csr.bu.edu/ftp/visda/2019/multi-source", tmp_path / "domainnet"
    assert requested == [
        f"{site}/groundtruth/clipart.zip",
        f"{folder}/clipart.zip -> {folder}/clipart",
        f"{site}/domainnet/txt/clipart_train.txt",
        f"{site}/domainnet/txt/clipart_test.txt",
        f"{site}/real.zip",
        f"{folder}/real.zip -> {folder}/real",
        f"{site}/domainnet/txt/real_train.txt",
        f"{site}/domainnet/txt/real_test.txt",
    ]
