"""Damaged images. A kind of case has the mutated input, the attempt to read it, and the documented errors."""

import io
import pathlib

import numpy as np

from benchmarks.robustness.mutations import mutate_bytes


class Images:
    """A damaged image between two good ones. The decoder of an export reads the batch."""

    documented = ()

    def __init__(self, folder):
        import keras_vit
        from keras_vit.data.decoding import batch_decoder

        model = keras_vit.ViT("Ti/16", input_shape=(32, 32, 3), num_layers=1, classes=2)
        self._files = [path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())]
        self._decode = batch_decoder(model)
        self._good = self._files[0]
        self._expected, _ = self._decode([self._good])

    @staticmethod
    def prepare(folder):
        """Writes the files that are mutated."""
        import PIL.Image

        pixels = np.random.default_rng(0).integers(0, 256, (37, 53, 3), "uint8")
        picture = PIL.Image.fromarray(pixels)
        animated = {"save_all": True, "append_images": [picture.rotate(180)]}
        kinds = {"jpeg": {}, "jpeg progressive": {"progressive": True}, "png": {}, "gif": {}, "gif animation": animated}
        exif = PIL.Image.Exif()
        exif[0x0112] = 6  # The orientation.
        turned = {f"{kind} turned": {"exif": exif} for kind in ("jpeg", "png", "webp")}
        for kind, options in {**kinds, "bmp": {}, "webp": {"lossless": True}, **turned}.items():
            content = io.BytesIO()
            picture.save(content, kind.split()[0], **options)
            pathlib.Path(folder, kind).write_bytes(content.getvalue())

    def make(self, rng):
        """(content of the damaged file, its size in bytes)"""
        content = mutate_bytes(self._files[rng.integers(len(self._files))], rng)
        return content, len(content)

    def attempt(self, case):
        """Whether the image is read. Raises AssertionError if the two images beside it are affected."""
        pixels, valid = self._decode([self._good, case, self._good])
        for place in (0, 2):
            assert valid[place], "an image beside the damaged one was not read"
            assert np.array_equal(pixels[place], self._expected[0]), "an image beside the damaged one was changed"
        assert valid[1] or not np.any(pixels[1]), "the pixels of an image that was not read are not zero"
        return bool(valid[1])
