"""Settings in transformers' JSON files. tests/peers/settings_test.py compares them with transformers."""

import pytest

from keras_vit.weights.formats.huggingface.config import read_class_names, read_processor

SIZE = (32, 40)
CROP = {"do_center_crop": True, "crop_size": [32, 40]}
MEANS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.1, 0.2, 0.4]}


@pytest.mark.parametrize(
    ("changes", "mean", "std"),
    [
        ({"rescale_factor": 1 / 255}, (0.5, 0.4, 0.3), (0.1, 0.2, 0.4)),
        pytest.param(
            *({"rescale_factor": 2 / 255}, (0.25, 0.2, 0.15), (0.05, 0.1, 0.2)),
            marks=pytest.mark.combination("transformers: rescale_factor", "the pixels of transformers"),
        ),
        pytest.param(
            *({"do_rescale": False, "image_std": 0.51}, (0.5 / 255, 0.4 / 255, 0.3 / 255), 0.002),
            marks=pytest.mark.combination("transformers: do_rescale=False", "the pixels of transformers"),
        ),
        ({"do_normalize": False, "rescale_factor": 2 / 255}, 0.0, 0.5),
        pytest.param(
            *({"do_normalize": None, "do_rescale": None}, 0.0, 1 / 255),
            marks=pytest.mark.combination("transformers: a flag that is null", "false, as in transformers"),
        ),
        ({"image_mean": 0.25, "image_std": 0.5}, 0.25, 0.5),
    ],
)
def test_normalization(changes, mean, std):
    pixels = read_processor({**MEANS, **changes}, SIZE)["preprocessing"]
    assert (pixels["mean"], pixels["std"]) == (pytest.approx(mean), pytest.approx(std))


@pytest.mark.parametrize(
    ("settings", "resize", "crop", "interpolation"),
    [
        ({"resample": 3}, SIZE, None, "bicubic"),
        ({"do_center_crop": None}, SIZE, None, "bilinear"),
        pytest.param(
            *({"do_resize": False}, None, None, "bilinear"),
            marks=pytest.mark.combination("transformers: do_resize=False", "images are not resized"),
        ),
        ({"do_pad": True, "pad_size": {"height": 32, "width": 40}}, SIZE, None, "bilinear"),
        ({"size": [40, 48], **CROP}, (40, 48), SIZE, "bilinear"),
        ({"size": 48, **CROP}, 48, SIZE, "bilinear"),
        ({"size": {"shortest_edge": 48, "longest_edge": None}, **CROP}, 48, SIZE, "bilinear"),
        pytest.param(
            *({"feature_extractor_type": "DeiTFeatureExtractor", "crop_size": [32, 40]}, (256, 256), SIZE, "bicubic"),
            marks=pytest.mark.combination(
                "transformers: a setting that is missing", "the default of the type of image processor"
            ),
        ),
        ({"image_processor_type": "BitImageProcessorFast", "crop_size": [32, 40]}, 224, SIZE, "bicubic"),
    ],
)
def test_size(settings, resize, crop, interpolation):
    images = read_processor({**MEANS, **settings}, SIZE)
    pixels = images["preprocessing"]
    assert (pixels["resize"], pixels["crop"], pixels["interpolation"]) == (resize, crop, interpolation)
    assert images["ignored"] == {}


def test_pixels_that_are_not_defined():
    for settings in ({}, {"resample": 3}, {"image_mean": [0.5], "image_std": None}):
        assert read_processor(settings, SIZE)["preprocessing"] is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *[
            pytest.param(
                *({"resample": number}, f"contains resample={number}. This package supports only resample=2 or 3"),
                marks=pytest.mark.combination(
                    "transformers: resample=0, 1, 4 or 5, which are not bilinear or bicubic", "refused"
                ),
            )
            for number in (0, 1, 4, 5)
        ],
        pytest.param(
            *(
                {"do_flip_channel_order": True},
                "do_flip_channel_order=True.*change the setting in the file to a supported value",
            ),
            marks=pytest.mark.combination("transformers: do_flip_channel_order=True", "refused"),
        ),
        pytest.param(
            *({"do_pad": True, "pad_size": {"height": 48, "width": 48}}, "do_pad=True and pad_size=.* does not pad"),
            marks=pytest.mark.combination("transformers: do_pad=True with another size", "refused"),
        ),
        pytest.param(
            *({"do_center_crop": True}, "do_center_crop=True with crop_size=None. Add crop_size"),
            marks=pytest.mark.combination("transformers: do_center_crop without crop_size", "refused"),
        ),
        ({"do_center_crop": True, "crop_size": {"shortest_edge": 3}}, "do_center_crop=True with crop_size="),
        ({"size": 30, **CROP}, r"crop_size=\[32, 40\], which is larger than size=30\. .* does not pad"),
        ({"size": {"shortest_edge": 30, "longest_edge": 40}}, "contains size=.*supports only height and width, or"),
        ({"rescale_factor": 0}, "rescale_factor must be a positive number"),
        pytest.param(
            *({"size": {"shortest_edge": "x"}}, "shortest_edge of size must be a positive integer. Received: 'x'"),
            marks=pytest.mark.combination("transformers: a size or a flag that is not one", "refused"),
        ),
        ({"size": {"shortest_edge": 10**12}}, "shortest_edge of size must be at most 65,535"),
        ({"size": 10**12, "default_to_square": False}, "shortest_edge of size must be at most 65,535"),
        ({"size": "224"}, "contains size='224'. This package supports only height and width, or shortest_edge"),
        ({"do_center_crop": True, "crop_size": 2.5}, r"must be one number or \(height, width\). Received: 2.5"),
        *[
            ({flag: "no"}, f"{flag} of preprocessor_config.json must be True or False. Received: 'no'")
            for flag in ("do_resize", "do_rescale", "do_normalize", "do_center_crop", "do_pad", "default_to_square")
        ],
    ],
)
def test_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        read_processor({**MEANS, **settings}, SIZE)


@pytest.mark.combination("transformers: an unknown setting", "a warning names it")
def test_unknown_settings_are_named():
    assert read_processor({"image_processor_type": 3}, SIZE)["ignored"].keys() == {"image_processor_type"}
    unknown = {"crop_pct": 0.9, "offset": True, "do_blur": False, "image_processor_type": "ConvNextImageProcessor"}
    settings = {**MEANS, **unknown, "size": {"shortest_edge": 40}, "gamma": None}
    ignored = read_processor(settings, SIZE)["ignored"]
    assert ignored.keys() == {*unknown, "size"}
    assert ignored["crop_pct"] == "0.9 in preprocessor_config.json is unknown and has no effect"


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        ({"0": "crane", "1": "crane"}, ["crane", "crane"]),  # ImageNet-1k has two classes of this name.
        pytest.param(
            *({"1": "b", "0": "a"}, ["a", "b"]),
            marks=pytest.mark.combination(
                "transformers: id2label in another order", "the labels in the order of their numbers"
            ),
        ),
        ({"0": "LABEL_0", "1": "LABEL_1"}, None),
        ({}, None),
    ],
)
def test_class_names(labels, names):
    assert read_class_names({"id2label": labels}, 2) == (names, {})


@pytest.mark.parametrize(
    "labels", [{"0": "a", "1": name} for name in ("", " ", "b\0", "b\n", 7)] + [{"1": "a", "2": "b"}]
)
@pytest.mark.combination("transformers: id2label with an empty name or a line break", "no labels, and a warning")
@pytest.mark.combination("transformers: id2label with numbers from 1", "no labels, and a warning")
def test_class_names_that_cannot_be_used(labels):
    names, ignored = read_class_names({"id2label": labels}, 2)
    assert names is None
    assert "the labels in config.json are left out, because the name of class" in ignored["id2label"]


@pytest.mark.combination("transformers: another number of labels in config.json than classes in the file", "refused")
def test_another_number_of_classes():
    for config in ({"id2label": {"0": "a", "1": "b"}}, {"num_labels": 2}):
        with pytest.raises(ValueError, match="another model: it contains 2 labels, but the classifier has 3 classes"):
            read_class_names(config, 3)
