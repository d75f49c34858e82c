"""The requests of all tests of one model in one process: {name: recorded request}."""

import numpy as np

from tests.pictures import encoded, exif_segment, noise, picture
from tests.serving.hostile_images import hostile_images
from tests.serving.program import prediction_log

OF_FILES = ("serving_default", "embed", "tokens", "explain")
OF_PIXELS = {"predict_pixels": "uint8", "predict_pixels_float": "float32"}
GOOD = [
    encoded(noise(24, 40), "JPEG"),
    encoded(picture(50, 31), "PNG"),
    encoded(picture(30, 20), "GIF"),
    encoded(noise(17, 28), "BMP"),
    encoded(picture(16, 24, "L"), "PNG"),
]
PIXELS = np.random.default_rng(0).integers(0, 256, (5, 16, 24, 3)).astype("uint8")
TIMES = 240
"""Number of times that the largest request repeats its five images."""
TURNED = np.zeros((1, 24, 16, 3), "uint8")
"""Pixels with as many patches as the model has, in another grid."""
REFUSED = {
    "another type": ("embed", {"image_bytes": [1]}, "INVALID_ARGUMENT"),
    "turned pixels": ("predict_pixels", {"images": TURNED}, "INVALID_ARGUMENT"),
    "turned floats": ("predict_pixels_float", {"images": TURNED.astype("float32")}, "INVALID_ARGUMENT"),
}


def warm_up(folder):
    """The requests that the server sends before it serves a version."""
    import tensorflow as tf
    from tensorflow_serving.apis import prediction_log_pb2

    records = tf.data.TFRecordDataset(folder / "assets.extra" / "tf_serving_warmup_requests")
    requests = [prediction_log_pb2.PredictionLog.FromString(record.numpy()) for record in records]
    return {("warm-up", index): request for index, request in enumerate(requests)}


def of_every_signature():
    """A batch of different images and a single image for every signature."""
    files = [
        encoded(picture(16, 24), "PNG"),
        encoded(picture(97, 61), "JPEG", exif=exif_segment(6, "<")),
        encoded(noise(40, 50), "JPEG"),
        encoded(picture(20, 50), "GIF"),
        encoded(picture(30, 20), "BMP"),
        encoded(picture(33, 24, "L"), "PNG"),
        encoded(noise(50, 40), "WEBP", lossless=True),
    ]
    pixels = np.random.default_rng(0).integers(0, 256, (7, 16, 24, 3))
    requests = {}
    for name, rows in (("batch", slice(7)), ("one", slice(2, 3))):
        requests |= {(name, signature): prediction_log(signature, image_bytes=files[rows]) for signature in OF_FILES}
        for signature, dtype in OF_PIXELS.items():
            requests[name, signature] = prediction_log(signature, images=pixels[rows].astype(dtype))
    return requests


def bad_images(signature):
    """{description: content} of the bad images in requests of a signature. All signatures decode as the first one."""
    names = hostile_images() if signature == OF_FILES[0] else ("text", "jpeg_cut_off", "png_bomb")
    return {name: hostile_images()[name] for name in names}


def hostile():
    """Requests with bad files among good ones, requests without images, and large requests."""
    requests = {
        (signature, name): prediction_log(signature, image_bytes=[*GOOD[:2], content, *GOOD[3:]])
        for signature in OF_FILES
        for name, content in {"undisturbed": GOOD[2], **bad_images(signature)}.items()
    }
    bad = list(hostile_images().values())
    good = [GOOD[i % len(GOOD)] for i in range(len(bad))]
    merged = {
        "by turns": [content for pair in zip(good, bad, strict=True) for content in pair],
        "only good": [content for content in good for _ in range(2)],
        "only bad": bad,
        "many": [*GOOD[:4], b"no image"] * TIMES,
    }
    requests |= {name: prediction_log("serving_default", image_bytes=files) for name, files in merged.items()}
    requests |= {(name, "none"): prediction_log(name, image_bytes=np.zeros([0], "S1")) for name in OF_FILES}
    for name, dtype in OF_PIXELS.items():
        requests[name, "some"] = prediction_log(name, images=PIXELS.astype(dtype))
        requests[name, "none"] = prediction_log(name, images=PIXELS[:0].astype(dtype))
    broken = PIXELS.astype("float32")
    broken[1, 4, 5, 2], broken[3, 0, 7, 0] = np.nan, np.inf
    requests["not finite"] = prediction_log("predict_pixels_float", images=broken)
    return requests | {"many pixels": prediction_log("predict_pixels", images=np.tile(PIXELS, (TIMES, 1, 1, 1)))}


def refused():
    """Requests that every signature refuses."""
    return {name: prediction_log(signature, **inputs) for name, (signature, inputs, _) in REFUSED.items()}


def of_many_clients():
    """Requests that clients send at the same time: good and bad images in batches of several sizes."""
    files = [encoded(noise(40 + i, 60), "JPEG") for i in range(7)]
    files += [encoded(picture(50, 30 + i), "PNG") for i in range(7)]
    files[3:3] = hostile_images().values()
    pixels = np.random.default_rng(0).integers(0, 256, (17, 16, 24, 3))
    for batch in (1, 2, 5, 17):
        yield from (prediction_log(signature, image_bytes=files[:batch]) for signature in OF_FILES)
        for signature, dtype in OF_PIXELS.items():
            yield prediction_log(signature, images=pixels[:batch].astype(dtype))
