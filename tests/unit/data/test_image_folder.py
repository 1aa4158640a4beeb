"""Source `image_folder`: listing, lazy decoding, links, damaged files, files that change afterwards."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from stages.data.prepared import Prepared
from stages.runtime.exits import BadData
from stages.runtime.files import digest, read_json
from tests.unit.data.build import deep_rgb_png, prepare, random_images, splits_by_content, write_folder

IMAGES, LABELS = random_images(90)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "raw", IMAGES, LABELS)


def test_files_are_listed_and_read_lazily(tmp_path: Path, folder: Path) -> None:
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder, grayscale=True)
    info = prepared.info
    assert (info.kind, info.shape, info.dtype, info.root) == ("files", (6, 6, 1), "uint8", str(folder))
    assert info.classes == ("class0", "class1", "class2")
    assert not (tmp_path / "out/data/samples.npy").exists()
    paths = [row["path"] for row in read_json(tmp_path / "out/data/files.json")]
    assert paths == sorted(paths)
    for index in (0, 41, 89):
        row = int(Path(paths[index]).stem)
        assert np.array_equal(prepared.read([index])[0, :, :, 0], IMAGES[row])
        assert prepared.labels[index] == LABELS[row]


def test_mean_and_std_are_those_of_the_training_files(tmp_path: Path, folder: Path) -> None:
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder)
    train = prepared.read(prepared.indices("train")) / 255.0
    assert prepared.info.shape == (6, 6, 3)
    assert prepared.info.mean == pytest.approx(train.mean(axis=(0, 1, 2)), rel=1e-12)
    assert prepared.info.std == pytest.approx(train.std(axis=(0, 1, 2)), rel=1e-12)


def test_the_order_in_which_files_were_made_changes_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, backwards in (("a", False), ("b", True)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        write_folder(Path("raw"), IMAGES, LABELS, backwards=backwards)
        prepare(Path("out"), source="image_folder", path="raw")
    assert digest(tmp_path / "a/out") == digest(tmp_path / "b/out")


def test_the_folder_can_move_and_new_files_move_no_old_one(tmp_path: Path, folder: Path) -> None:
    old, _ = prepare(tmp_path / "old", source="image_folder", path=folder, grayscale=True)
    before = splits_by_content(old)
    more, labels = random_images(60, seed=5)
    for row, image in enumerate(more):
        Image.fromarray(image).save(folder / f"class{labels[row]}" / f"{'a' if row % 2 else 'z'}{row}.png")
    moved = folder.rename(tmp_path / "elsewhere")
    new, _ = prepare(tmp_path / "new", source="image_folder", path=moved, grayscale=True)
    after = splits_by_content(new)
    assert len(before) == 90
    assert len(after) == 150
    assert all(after[content] == split for content, split in before.items())


def test_the_content_hash_does_not_depend_on_where_the_folder_lies(tmp_path: Path, folder: Path) -> None:
    here, _ = prepare(tmp_path / "a", source="image_folder", path=folder)
    there, _ = prepare(tmp_path / "b", source="image_folder", path=folder.rename(tmp_path / "elsewhere"))
    resized, _ = prepare(tmp_path / "c", source="image_folder", path=tmp_path / "elsewhere", resize=[4, 5])
    assert here.info.hash == there.info.hash
    assert here.info.hash != resized.info.hash


def test_jpeg_palette_and_transparent_images_become_rgb(tmp_path: Path, folder: Path) -> None:
    picture = Image.fromarray(IMAGES[0]).convert("RGB")
    picture.save(folder / "class0" / "-a.JPEG", quality=95)
    picture.quantize(8).save(folder / "class0" / "-b.png")
    picture.convert("RGBA").save(folder / "class0" / "-c.png")
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder)
    assert prepared.read([0, 1, 2]).shape == (3, 6, 6, 3)
    assert np.array_equal(prepared.read([2])[0], np.array(picture))


def test_resize_makes_one_size_of_many(tmp_path: Path, folder: Path) -> None:
    large = Image.fromarray(np.full((20, 10), 200, np.uint8))
    large.save(folder / "class0" / "large.png")
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder, resize=[5, 4], grayscale=True)
    assert prepared.info.shape == (5, 4, 1)
    row = [row["path"] for row in read_json(tmp_path / "out/data/files.json")].index("class0/large.png")
    assert (prepared.read([row]) == 200).all()


def test_hidden_files_and_files_beside_the_class_folders_are_left_out(tmp_path: Path, folder: Path) -> None:
    (folder / "README.md").write_text("about")
    (folder / ".gitignore").write_text("*")
    (folder / ".cache").mkdir()
    (folder / "class0" / ".DS_Store").write_bytes(b"x")
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder)
    assert len(prepared.labels) == 90


def test_folders_within_a_class_belong_to_it(tmp_path: Path, folder: Path) -> None:
    (folder / "class1" / "day2" / "a").mkdir(parents=True)
    Image.fromarray(IMAGES[0][::-1].copy()).save(folder / "class1" / "day2" / "a" / "1.png")
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=folder)
    assert len(prepared.labels) == 91
    assert np.bincount(prepared.labels).tolist() == [30, 31, 30]


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _jpeg() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), dtype=np.uint8)).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message", "reason"),
    [
        ("class1/bad.png", b"no image at all", "no PNG or JPEG image", "unreadable"),
        ("class1/bad.png", b"", "no PNG or JPEG image", "unreadable"),
        ("class1/bad.png", _png(Image.fromarray(IMAGES[0]))[:45], "damaged image", "unreadable"),
        ("class1/bad.jpg", _jpeg()[:-200], "damaged image", "unreadable"),
        ("class1/bad.png", _png(Image.fromarray(np.zeros((6, 6), np.uint16))), "more than 8 bits", "unreadable"),
        ("class1/bad.png", deep_rgb_png(6, 6), "more than 8 bits a channel", "unreadable"),
        ("class1/bad.gif", b"GIF89a", "must be a PNG or JPEG file in a class folder", "unreadable"),
        ("bad.png", _png(Image.fromarray(IMAGES[0])), "must be a PNG or JPEG file in a class folder", "unreadable"),
        ("class1/bad.png", _png(Image.new("L", (7, 6))), "6 x 7 pixels, most are 6 x 6; set data.resize", "other_size"),
    ],
)
def test_a_bad_file_is_named_or_dropped(
    tmp_path: Path, folder: Path, name: str, content: bytes, message: str, reason: str
) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(BadData) as caught:
        prepare(tmp_path / "fail", source="image_folder", path=folder)
    assert caught.value.sentence.startswith(f"1 bad sample: {name}: ")
    assert message in caught.value.sentence
    prepared, _ = prepare(tmp_path / "drop", source="image_folder", path=folder, on_bad_sample="drop")
    assert prepared.info.dropped == {reason: 1}
    assert prepared.info.shape == (6, 6, 3)
    assert len(prepared.labels) == 90


def test_a_decompression_bomb_is_a_bad_file(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)
    (folder / "class1" / "bomb.png").write_bytes(_png(Image.new("L", (7, 6))))
    with pytest.raises(BadData, match=r"class1/bomb\.png: damaged image"):
        prepare(tmp_path / "fail", source="image_folder", path=folder)


def test_a_file_that_changed_or_went_afterwards_is_named(tmp_path: Path, folder: Path) -> None:
    prepare(tmp_path / "out", source="image_folder", path=folder)
    paths = [row["path"] for row in read_json(tmp_path / "out/data/files.json")]
    prepared = Prepared.open(tmp_path / "out/data")
    Image.fromarray(IMAGES[5]).save(folder / paths[10])
    (folder / paths[11]).unlink()
    assert len(prepared.read([9, 12])) == 2
    with pytest.raises(BadData, match=f"{paths[10]}: data changed between stages"):
        prepared.read([9, 10])
    with pytest.raises(BadData, match=f"{paths[11]}: data changed between stages: the file is gone"):
        prepared.read([11])


def _link_out(folder: Path) -> None:
    outside = folder.parent / "secret.png"
    Image.fromarray(IMAGES[0]).save(outside)
    (folder / "class0" / "link.png").symlink_to(outside)


def _link_class(folder: Path) -> None:
    write_folder(folder.parent / "other", IMAGES[:3], LABELS[:3])
    (folder / "class9").symlink_to(folder.parent / "other" / "class0")


def _link_folder(folder: Path) -> None:
    (folder / "class0" / "again").symlink_to(folder / "class1")


def _link_circle(folder: Path) -> None:
    (folder / "class0" / "a.png").symlink_to(folder / "class0" / "b.png")
    (folder / "class0" / "b.png").symlink_to(folder / "class0" / "a.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_link_out, "link.png is a link that leads out of raw/"),
        (_link_class, "class9 is a link to a folder"),
        (_link_folder, "again is a link to a folder"),
        (_link_circle, "is a link that leads to itself"),
    ],
)
@pytest.mark.parametrize("policy", ["fail", "drop"])
def test_a_link_must_not_lead_out(
    tmp_path: Path, folder: Path, spoil: Callable[[Path], None], message: str, policy: str
) -> None:
    spoil(folder)
    with pytest.raises(BadData) as caught:
        prepare(tmp_path / "out", source="image_folder", path=folder, on_bad_sample=policy)
    assert message in caught.value.sentence


def test_a_link_inside_the_folder_and_a_link_to_the_folder_are_followed(tmp_path: Path, folder: Path) -> None:
    (folder / "class0" / "link.png").symlink_to(folder / "class0" / "0000.png")
    (tmp_path / "alias").symlink_to(folder)
    prepared, _ = prepare(tmp_path / "out", source="image_folder", path=tmp_path / "alias")
    assert len(prepared.labels) == 91
    assert prepared.info.duplicates["copies"] == 1


def test_an_empty_class_folder_and_a_folder_without_classes_are_refused(tmp_path: Path, folder: Path) -> None:
    (folder / "class7").mkdir()
    with pytest.raises(BadData, match="'class7' has 0 in train, 0 in val, 0 in test"):
        prepare(tmp_path / "a", source="image_folder", path=folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match="must hold one folder per class"):
        prepare(tmp_path / "b", source="image_folder", path=tmp_path / "empty")
    with pytest.raises(BadData, match="does not exist; a folder with one folder of PNG or JPEG files"):
        prepare(tmp_path / "c", source="image_folder", path=tmp_path / "nowhere")
    with pytest.raises(BadData, match="is a file; a folder with one folder of PNG or JPEG files"):
        prepare(tmp_path / "d", source="image_folder", path=folder / "class0" / "0000.png")
