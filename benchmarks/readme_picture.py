"""Draws the README's picture: attention rollout over the photographs of this package, and the report of a run.

Command: python -m benchmarks.readme_picture RUN, where RUN is the folder of a run, for example of `make train`. The
attention is that of Ti/16@augreg-i21k-i1k-224. Its weights are downloaded, unless they are in the cache. The report is
photographed with Chromium, which must be installed.
"""

import argparse
import io
import pathlib
import shutil

import keras
import matplotlib.image
import numpy as np
from PIL import Image

import keras_vit
from benchmarks.records import FIGURES
from keras_vit.analysis.plots import enlarge, panels
from keras_vit.export.parity import PHOTOGRAPHS

PICTURE = FIGURES / "readme.jpg"
HEIGHT = 860  # In pixels.
_BORDER = 24


def attention_panel():
    """Draws each photograph above the same photograph multiplied by its attention rollout, as in figure 6 of ViT."""
    model = keras_vit.from_pretrained("Ti/16@augreg-i21k-i1k-224", include_preprocessing=True)
    images = np.stack([_square(matplotlib.image.imread(path)) for path in sorted(PHOTOGRAPHS.glob("*.jpg"))])
    rollouts = keras_vit.attention_rollout(model, images)
    lowest = rollouts.min(axis=(1, 2), keepdims=True)
    masks = ((rollouts - lowest) / (1 - lowest)) ** 0.6  # A higher contrast than the paper's, for a small picture.
    figure, axes = panels((2.4, 2.4), 2, len(images))
    for (above, below), image, mask in zip(axes.T, images, masks, strict=True):
        above.imshow(image.astype("uint8"))
        below.imshow((image * enlarge(mask, image.shape[:2])[..., None]).astype("uint8"))
    for ax in axes.flat:
        ax.axis("off")
    return _encoded(figure)


def _square(image, side=224):
    """The central square of a photograph, resized to `side` pixels."""
    height, width = image.shape[:2]
    cut = min(height, width)
    top, left = (height - cut) // 2, (width - cut) // 2
    square = image[None, top : top + cut, left : left + cut].astype("float32")
    resized = keras.ops.image.resize(square, (side, side), interpolation="bicubic", antialias=True)
    return np.clip(keras.ops.convert_to_numpy(resized[0]), 0, 255)


def _encoded(figure):
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=200)
    return Image.open(buffer).convert("RGB")


def report_panel(run):
    """Photographs the upper part of a run's report."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("No Chromium was found. Install it, for example with: apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 900, "height": 1240}, device_scale_factor=1.5)
        page.goto((run / "report.html").resolve().as_uri())
        page.wait_for_load_state("networkidle")
        return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def join(pictures):
    """Puts pictures of equal height side by side, on white."""
    scaled = [picture.resize((round(picture.width * HEIGHT / picture.height), HEIGHT)) for picture in pictures]
    width = sum(picture.width for picture in scaled) + _BORDER * (len(scaled) + 1)
    joined, left = Image.new("RGB", (width, HEIGHT + 2 * _BORDER), "white"), _BORDER
    for picture in scaled:
        joined.paste(picture, (left, _BORDER))
        left += picture.width + _BORDER
    return joined


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path, metavar="RUN", help="folder of a run, with report.html")
    arguments = parser.parse_args()
    if not (arguments.run / "report.html").is_file():
        parser.error(f"{arguments.run} contains no report.html. Pass the folder of a finished run.")
    join([attention_panel(), report_panel(arguments.run)]).save(PICTURE, quality=88, optimize=True)
    print(PICTURE)
