"""Uses an installed package as its users do, in the current folder: `python -I smoke.py VERSION`.

It imports nothing from the checkout.
"""

import importlib.metadata
import pathlib
import sys


def check_installation(version):
    """The imported package belongs to this environment, and has the version."""
    import keras_vit

    folder = pathlib.Path(keras_vit.__file__).parent
    assert folder.is_relative_to(sys.prefix), folder
    assert folder.parent.name == "site-packages", folder
    assert keras_vit.__version__ == importlib.metadata.version("keras-vit-applications") == version
    assert (folder / "py.typed").exists()


def use():
    """Builds, predicts, saves, loads, converts and exports a small model."""
    import keras
    import numpy as np

    import keras_vit

    model = keras_vit.ViT("Ti/16", num_layers=1, include_preprocessing=True)
    random = np.random.default_rng(0)
    model.get_layer("predictions").set_weights(
        [random.normal(size=(192, 1000)), random.normal(size=1000)]
    )  # Were zeros.
    images = random.integers(0, 256, (2, 224, 224, 3)).astype("float32")
    probabilities = model.predict(images, verbose=0)
    assert keras_vit.decode_predictions(probabilities, top=3)[1][0][0].startswith("n")
    assert keras_vit.describe(model).config.num_layers == 1

    model.save("model.keras")
    keras_vit.save_weights(model, "timm", "timm")
    for same in (keras.saving.load_model("model.keras"), keras_vit.from_pretrained("timm", include_preprocessing=True)):
        np.testing.assert_allclose(same.predict(images, verbose=0), probabilities, atol=1e-6)
    keras_vit.export_saved_model(model, "served")  # Compares the export with the model.
    assert pathlib.Path("served/1/saved_model.pb").exists()


if __name__ == "__main__":
    [_, expected] = sys.argv
    check_installation(expected)
    use()
    print(f"The installed keras_vit {expected} works.")
