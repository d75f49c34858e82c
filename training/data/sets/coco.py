"""Images with annotations of objects in COCO's format (https://cocodataset.org/#format-data).

    coco/annotations/instances_train2017.json     polygons and run-length encodings (RLE)
    coco/annotations/instances_val2017.json
    coco/annotations/captions_train2017.json      texts of images
    coco/annotations/panoptic_train2017.json      or PNG files of segments, in coco/annotations/panoptic_train2017
    coco/train2017/000000000009.jpg

If the names of the JSON files contain the words `train`, `val` or `test`, these are the splits. Without test images,
the validation images are the test, as in COCO's own results. A pixel belongs to one object: where polygons or RLE
overlap, the smaller object is on top, and crowds are below all objects.
"""

import collections
import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from pycocotools import mask as rle

from keras_vit.data.table import ImageTable
from training.data.masks import VOID, read_png
from training.data.sets.folder import splits_in_names
from training.data.sets.pairs import check_size, examine_pairs, split_pairs
from training.data.sets.table import split_table
from training.errors import InputError

_LAYOUT = (
    "Expected JSON files of COCO's format, such as annotations/instances_train2017.json and "
    "annotations/instances_val2017.json, with the images in train2017 and val2017 or in images. data.annotations is a "
    "pattern for the paths of the JSON files in data.directory."
)
_CAPTIONS = (
    "For texts, set data.annotations=annotations/captions_*.json. Expected objects of `annotations` with `image_id` "
    "and `caption`, and of `images` with `id` and `file_name`."
)
_MAX_OUTSIDE = 10  # A point of a polygon may be outside the image by this multiple of its sides.


@dataclasses.dataclass(frozen=True, slots=True)
class Objects:
    """The objects of an image.

    Args:
        classes: Indices of their classes, int64 (n,).
        is_crowd: Whether each is a crowd of objects, bool (n,).
        read: Function that returns the number of the object of each pixel from 1 to n, or 0, int32 (H, W).
    """

    classes: np.ndarray
    is_crowd: np.ndarray
    read: Callable

    def segments(self):
        """The annotations `segments` and `segment_classes` of `training.data.samples`."""
        return self.read()[..., None], np.where(self.is_crowd, -1, self.classes)

    def mask(self):
        """The annotation `mask`. A pixel of no object is void."""
        return np.append(VOID, self.classes).astype("uint8")[self.read()][..., None]


class _Record(NamedTuple):
    """The entry of an image in `images`, its entries in `annotations`, and the folder of its PNG file of segments."""

    image: dict
    annotations: list[dict]
    segments: pathlib.Path | None


def read_coco(data):
    """Reads the annotations of a data set, and splits its images unless the names of the files do so.

    Args:
        data: `training.recipe.config.Data`. Images with annotations that cannot be used are skipped, at most
            `data.max_failures`.

    Returns:
        A `FolderSplits`, whose labels are indices in a list; the list of `Objects`; and whether each class is one of
        things.

    Raises:
        InputError: If the annotations cannot be used. The message says what was found and what is expected.
    """
    root, files, splits = _find_files(data)
    categories, records, pairs = _read_files(root, files, splits)
    classes = {identity: index for index, (identity, *_) in enumerate(categories)}

    def read(index, size):
        return _read_objects(records[index], classes, size)

    usable, unreadable, problems = examine_pairs(pairs, read, "annotation", "has no annotation")
    if len(problems) > data.max_failures:
        image, problem = min(problems.items())
        raise InputError(
            f"{image}: {problem} ({len(problems):,} such images in all). Correct it, or skip up to N such images with "
            f"data.max_failures=N."
        )
    fractions = (data.test_fraction, data.validation_fraction)
    expected = f"image with an annotation that can be used. {_LAYOUT}"
    class_names, is_thing = (tuple(each[i] for each in categories) for i in (1, 2))
    folder = split_pairs(root, pairs, usable, unreadable | problems, fractions, expected, class_names=class_names)
    found = {index: usable[path][0] for images in pairs.values() for path, index in images.items() if path in usable}
    return folder, [found.get(index) for index in range(len(records))], is_thing


def read_captions(annotation, data):
    """Reads the texts of images, and splits the images, as `training.data.sets.table.read_image_table` does."""
    root, files, splits = _find_files(data)
    paths, columns = [], {"text": [], "split": []}
    for file in files:
        try:
            content = json.loads(file.read_bytes())
            names = {image["id"]: image["file_name"] for image in content["images"]}
            folder = _folder_of_images(root, file, names.values())
            for caption in content["annotations"]:
                paths.append(folder / names[caption["image_id"]])
                columns["text"].append(caption["caption"])
                columns["split"].append(splits.get(file, "train"))
        except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
            raise InputError(f"{file} cannot be read: {type(error).__name__}: {error}. {_CAPTIONS}") from None
    columns = columns if splits else {"text": columns["text"]}
    return split_table(ImageTable(root, tuple(paths), columns), annotation, data)


def _find_files(data):
    """The directory of a data set, its JSON files, and their splits if their names define them."""
    if data.directory is None:
        raise InputError(f"The data set coco needs data.directory=<path>. {_LAYOUT}")
    root = pathlib.Path(data.directory).expanduser()
    files = sorted(root.glob(data.annotations))
    if not files:
        raise InputError(f"data.directory={data.directory} has no file {data.annotations}. {_LAYOUT}")
    splits = splits_in_names(root, files)
    if "test" not in splits.values():
        splits = {file: "test" if split == "validation" else split for file, split in splits.items()}
    if splits and "train" not in splits.values():
        raise InputError(f"{root} has no annotations of training images: {', '.join(map(str, files))}. {_LAYOUT}")
    return root, files, splits


def _read_files(root, files, splits):
    """Reads JSON files.

    Returns:
        The categories (id, name, whether they are things), a list of `_Record`s, and {split: {path of an image: index
        in this list}}.
    """
    contents = {file: _read_file(root, file) for file in files}
    categories, _ = contents[files[0]]
    if other := [str(file) for file, (found, _) in contents.items() if found != categories]:
        raise InputError(f"{other[0]} has other categories than {files[0]}. All files need the same ids and names.")
    records, pairs = [], collections.defaultdict(dict)
    for file, (_, records_by_path) in contents.items():
        for path, record in records_by_path.items():
            pairs[splits.get(file, "train")][path] = None if record is None else len(records)
            records.append(record)
    return categories, records, pairs


def _read_file(root, file):
    """Returns the categories of a JSON file, as `_read_files` does, and {path of an image: `_Record`, or `None`}."""
    try:
        content = json.loads(file.read_bytes())
        found = ((each["id"], str(each["name"]), bool(each.get("isthing", True))) for each in content["categories"])
        categories = sorted(found)
        images = {image["id"]: image for image in content["images"]}
        annotations = collections.defaultdict(list)
        for annotation in content["annotations"]:
            annotations[annotation["image_id"]].append(annotation)
        if not annotations:
            raise ValueError("it has no annotations")
        if unknown := annotations.keys() - images.keys():
            raise ValueError(f"images lacks the image_id {unknown.pop()!r}")
        folder = _folder_of_images(root, file, [image["file_name"] for image in images.values()])
        is_panoptic = any("segments_info" in annotation for annotation in content["annotations"])
        if is_panoptic:
            folders = [file.with_suffix(""), root / file.stem, file.parent]
            segments = _find_folder(folders, [annotation["file_name"] for annotation in content["annotations"]])
        paths = {identity: folder / image["file_name"] for identity, image in images.items()}
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(f"{file} cannot be read: {type(error).__name__}: {error}. {_LAYOUT}") from None
    inside = {path for path in paths.values() if path.is_relative_to(root)}
    if len(inside) < len(content["images"]):
        raise InputError(f"The images of {file} must have different ids and paths in {folder}.")
    records = {
        identity: _Record(image, annotations[identity], segments if is_panoptic else None)
        for identity, image in images.items()
        if annotations[identity] or not is_panoptic
    }
    return categories, {path: records.get(identity) for identity, path in paths.items()}


def _folder_of_images(root, file, names):
    place = file.stem.rpartition("_")[2]  # Such as train2017.
    return _find_folder([root / place, root / "images" / place, root / "images", file.parent, root], names)


def _find_folder(folders, names):
    """The first folder that contains one of the named files, or else the first folder."""
    return next((folder for folder in folders if any((folder / name).is_file() for name in names)), folders[0])


def _read_objects(record, classes, size):
    """Returns the `Objects` of an image of a size (height, width), and bytes that define them.

    `classes` is {id of a category: index}. Raises an OSError or a ValueError if the annotations cannot be used.
    """
    image, annotations, segments = record
    check_size(size, (image.get("height", size[0]), image.get("width", size[1])))
    try:
        if segments is None:
            objects, read = _encode_instances(annotations, size)
        else:
            objects, read = _find_segments(segments, annotations[0], size)
        if unknown := [each["category_id"] for each in objects if each["category_id"] not in classes]:
            raise ValueError(f"categories lacks the category_id {unknown[0]!r}")
    except (AttributeError, LookupError, OverflowError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    indices = np.array([classes[each["category_id"]] for each in objects], "int64")
    is_crowd = np.array([bool(each.get("iscrowd")) for each in objects], bool)
    return Objects(indices, is_crowd, read), b"".join(array.tobytes() for array in (indices, is_crowd, read()))


def _encode_instances(annotations, size):
    """Encodes objects. Returns their annotations from bottom to top, and a function that draws them."""
    encoded = []
    for annotation in annotations:
        try:
            code = _encode(annotation["segmentation"], size)
            area = int(rle.area(code))
            if not area:
                raise ValueError("it has no pixel in the image")
        except ValueError as error:
            raise ValueError(f"object {annotation.get('id')}: {error}") from None
        encoded.append((not annotation.get("iscrowd"), -area, len(encoded), code["counts"]))
    encoded.sort()
    read = functools.partial(_draw, [counts for *_, counts in encoded], size)
    return [annotations[index] for _, _, index, _ in encoded], read


def _draw(counts, size):
    """Draws compressed RLEs, each on top of the previous ones: the number of the object of each pixel, int32 (H, W)."""
    numbers = np.zeros(size, "int32")
    for number, code in enumerate(counts, 1):
        numbers[rle.decode({"size": size, "counts": code}) > 0] = number
    return numbers


def _encode(segmentation, size):
    """Encodes polygons or an RLE as a compressed RLE. They are checked, because pycocotools does not check them."""
    height, width = size
    if isinstance(segmentation, dict):
        check_size(size, segmentation["size"])
        runs = segmentation["counts"]
        runs = _read_runs(runs.encode()) if isinstance(runs, str) else runs
        if not all(isinstance(run, int) and run >= 0 for run in runs) or sum(runs) != height * width:
            raise ValueError(f"its RLE is damaged: the runs must add up to {height} x {width} pixels")
        return rle.frPyObjects({"size": size, "counts": runs}, height, width)
    polygons = [np.array(polygon, "float64") for polygon in segmentation]
    if not polygons or any(polygon.ndim != 1 or len(polygon) < 6 or len(polygon) % 2 for polygon in polygons):
        raise ValueError("it needs polygons, each a list x, y, x, y, … of at least three points, or an RLE")
    points = np.concatenate(polygons).reshape(-1, 2)
    if not (abs(points) <= _MAX_OUTSIDE * np.array([width, height])).all():
        raise ValueError("a polygon has a point far outside the image, or one that is not finite")
    return rle.merge(rle.frPyObjects(polygons, height, width))


def _read_runs(text):
    """The lengths of the runs of a compressed RLE.

    Each length is written in digits of 5 bits, the lowest first, as characters from 48 on. A sixth bit says that more
    digits follow. From the fourth run on, the difference from the last but one run is written, as a signed number.
    """
    runs, value, shift = [], 0, 0
    for digit in (character - 48 for character in text):
        value |= (digit & 31) << shift
        shift += 5
        if digit & 32:
            continue
        value -= (digit & 16) << (shift - 4)
        runs.append(value + (runs[-2] if len(runs) > 2 else 0))
        value = shift = 0
    if shift or not all(48 <= character < 112 for character in text):
        raise ValueError("its RLE is damaged")
    return runs


def _find_segments(folder, annotation, size):
    """Checks a PNG file of segments. Returns their annotations, and a function that reads their numbers."""
    objects, path = annotation["segments_info"], folder / annotation["file_name"]
    numbers = {0: 0} | {each["id"]: number for number, each in enumerate(objects, 1)}
    found = _read_numbers(path, numbers)
    check_size(size, found.shape)
    if absent := [each["id"] for each in objects if not (found == numbers[each["id"]]).any()]:
        raise ValueError(f"segment {absent[0]} has no pixel in {path}")
    return objects, functools.partial(_read_numbers, path, numbers)


def _read_numbers(path, numbers):
    """The numbers of the segments in a PNG file, int32 (H, W). `numbers` is {id of a segment: number}."""
    needed = "a file of segments must have the colours R + 256 G + 65536 B of the ids"
    colors = read_png(path.read_bytes(), ("RGB",), needed)
    ids, inverse = np.unique(colors.astype("int64") @ (1, 256, 65536), return_inverse=True)
    if unknown := set(ids.tolist()) - numbers.keys():
        raise ValueError(f"segments_info lacks the segment {min(unknown)} of {path}")
    return np.array([numbers[each] for each in ids.tolist()], "int32")[inverse].reshape(colors.shape[:2])
