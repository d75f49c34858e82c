"""The layouts of weight files. One module or folder describes the files of a layout, and writes them."""

from keras_vit.weights.formats import (
    bit,
    depth_anything,
    dinov2_heads,
    google,
    huggingface,
    keras_hub,
    open_clip,
    timm,
    torchvision,
)

FORMATS = {
    "dinov2_heads": dinov2_heads.FORMAT,
    "depth_anything": depth_anything.FORMAT,
    "google": google.FORMAT,
    "keras_hub": keras_hub.FORMAT,
    "huggingface": huggingface.FORMAT,
    "open_clip": open_clip.FORMAT,
    "timm": timm.FORMAT,
    "bit": bit.FORMAT,
    "torchvision": torchvision.FORMAT,
}
"""{name: `Format`}. The first one that recognises a file reads it."""
