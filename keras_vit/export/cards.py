"""Model cards of exported files."""

import pathlib

from keras_vit.export.answers import answer_of
from keras_vit.weights.formats.format import CardFormat
from keras_vit.weights.model_cards import CARD, model_card

_TITLES = {"onnx": "ONNX Runtime", "litert": "LiteRT", "openvino": "OpenVINO"}
_NORMALISES = "The file does the last step itself. It takes pixels from 0 to 255."
_DOES_ALL = "The SavedModel does all steps itself. It takes encoded images."


def card_format(name, outputs):
    """The `CardFormat` of a format of `export_model`, or of `"saved_model"`. `outputs` are the names of the outputs."""
    code = "\n" + (pathlib.Path(__file__).parent / "templates" / "cards" / f"{name}.txt").read_text(encoding="utf-8")
    if name == "saved_model":
        return CardFormat("TensorFlow", "tensorflow", code, preprocessing=_DOES_ALL, computes_in_int8=False)
    code += "".join(f'{output} = outputs["{output}"]\n' for output in outputs)
    return CardFormat(_TITLES[name], name, code, preprocessing=_NORMALISES)


def write_card(folder, model, format, file, card, precision, labels=None):
    """Writes the card of a file in a folder, unless `card` is `False`. `labels` are the names of the classes."""
    if card:
        answer = answer_of(model)
        classes = None if answer.labels else answer.num_names(model) or None
        text = model_card(model, card_format(format, answer.names), file, card, classes, precision, class_names=labels)
        (folder / CARD).write_text(text, encoding="utf-8")
