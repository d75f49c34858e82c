"""Each kind of source yields the same images."""

import io
import json
import tarfile

import pytest

from keras_vit.data.archives import read_tar, read_tfrecord
from keras_vit.data.reading import read_samples
from tests.pictures import encoded, noise

NAMES = ("a.jpg", "b.png", "sub/c.jpg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "sub").mkdir()
    for number, name in enumerate(NAMES):
        (folder / name).write_bytes(encoded(noise(8 + number, 9), "JPEG" if name.endswith("jpg") else "PNG"))
    (folder / "notes.md").write_text("no image")
    return folder


@pytest.fixture(scope="module")
def contents(folder):
    return [(folder / name).read_bytes() for name in NAMES]


def test_files_folders_lists_and_tables(folder, contents, tmp_path):
    expected = [{"path": str(folder / name), "image": image} for name, image in zip(NAMES, contents, strict=True)]
    assert list(read_samples(folder)) == expected
    assert list(read_samples(folder / NAMES[0])) == expected[:1]
    (folder / "list.txt").write_text("\n".join([*NAMES[:2], "", str(folder / NAMES[2])]))
    assert list(read_samples(str(folder / "list.txt"))) == expected
    (folder / "ages.csv").write_text("path,age\n" + "\n".join(f"{name},{age}" for age, name in enumerate(NAMES)))
    assert list(read_samples(folder / "ages.csv")) == [
        {"age": str(age)} | sample for age, sample in enumerate(expected)
    ]


def test_archives(contents, tmp_path):
    path = tmp_path / "shard-000.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for number, image in enumerate(contents):
            files = {"jpg": image, "cls": str(number).encode(), "json": json.dumps({"boxes": [number]}).encode()}
            for suffix, content in files.items():
                info = tarfile.TarInfo(f"x/{number}.{suffix}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    found = list(read_samples(path))
    assert found == [
        {"path": f"{path}/x/{number}.jpg", "image": image, "label": str(number), "boxes": [number]}
        for number, image in enumerate(contents)
    ]
    dotted = tmp_path / "dotted.tar"
    with tarfile.open(dotted, "w") as archive:
        for name in ("a.v1.jpg", "a.v2.jpg", "b.jpg", "b.seg.png", "c.md"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    assert [sample["image"] for sample in read_samples(dotted)] == [b"a.v1.jpg", b"a.v2.jpg", b"b.jpg"]
    tarfile.open(tmp_path / "empty.tar", "w").close()
    assert list(read_samples(tmp_path / "empty.tar")) == [
        {"path": f"{tmp_path / 'empty.tar'}", "error": "has no images"}
    ]
    broken = tmp_path / "broken.tar"
    with tarfile.open(path) as archive:
        plain = b"".join(archive.extractfile(member).read() for member in archive)
    broken.write_bytes(plain[:1000])
    [sample] = read_samples(broken)
    assert sample["path"] == str(broken)
    assert "cannot be read any further" in sample["error"]


def test_records(contents, tmp_path):
    tf = pytest.importorskip("tensorflow")
    path = tmp_path / "train-00000-of-00001.tfrecord"

    def serialize(**features):
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def bytes_feature(content):
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))

    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, image in enumerate(contents):
            label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            writer.write(serialize(**{"image/encoded": bytes_feature(image), "image/class/label": label}))
        writer.write(serialize(other=bytes_feature(b"")))
    *found, last = read_samples(path)
    assert found == [{"path": f"{path}:{n}", "image": image, "label": n} for n, image in enumerate(contents)]
    assert last == {
        "path": f"{path}:3",
        "error": "has no image. Expected: image or image/encoded. Its features: other",
    }
    path.write_bytes(path.read_bytes()[:-5])
    *_, last = read_samples(path)
    assert last["path"] == str(path)
    assert "cannot be read any further" in last["error"]


def test_slices_have_the_same_content(contents, tmp_path):
    tf = pytest.importorskip("tensorflow")
    tar, records = tmp_path / "shard.tar", tmp_path / "shard.tfrecord"
    with tarfile.open(tar, "w") as archive, tf.io.TFRecordWriter(str(records)) as writer:
        for number, image in enumerate(contents):
            info = tarfile.TarInfo(f"{number}.jpg")
            info.size = len(image)
            archive.addfile(info, io.BytesIO(image))
            features = {"image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    for samples in (read_tar(tar, as_slices=True), read_tfrecord(records, as_slices=True)):
        assert [sample["image"].read() for sample in samples] == contents


def test_what_cannot_be_read(tmp_path):
    (tmp_path / "list.txt").write_text("absent.jpg\nfolder\n")
    (tmp_path / "folder").mkdir()
    first, second = read_samples(tmp_path / "list.txt")
    assert first == {"path": str(tmp_path / "absent.jpg"), "error": "cannot be read: No such file or directory"}
    assert second == {"path": str(tmp_path / "folder"), "error": "cannot be read: Is a directory"}
    with pytest.raises(FileNotFoundError):
        read_samples(tmp_path / "absent.jpg")
    with pytest.raises(ValueError, match="folder has no images"):
        read_samples(tmp_path / "folder")
    (tmp_path / "table.csv").write_text("file\na.jpg\n")
    with pytest.raises(ValueError, match="has no column 'path'"):
        read_samples(tmp_path / "table.csv")
