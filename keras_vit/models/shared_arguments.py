"""The arguments that the factories share, described once."""

_DESCRIPTIONS = {
    "include_top": """
        include_top: Whether to end with the classifier. `False`: the model returns what `pooling` selects.""",
    "weights": """
        weights: `None` for freshly initialised weights, or the path of a `.weights.h5` file that `model.save_weights`
            wrote for a model of the same shape.""",
    "input_tensor": """
        input_tensor: Keras tensor to use as the model's input.""",
    "input_shape": """
        input_shape: `(height, width, channels)`, by default `(224, 224, 3)` or the image size of the published weights.
            Channels are last whatever the global setting. `None` for height and width makes a model for images of any
            size.""",
    "pooling": """
        pooling: `"avg"`: the mean over the map, (B, D). `None`, with `include_top=False`: the map (B, h, w, D). Height
            and width of the images are divided by the stride, 32 with four stages, and rounded up.""",
    "classes": """
        classes: Number of classes.""",
    "classifier_activation": """
        classifier_activation: Activation of the classifier: `"softmax"`, `None` for logits, or any of Keras's.""",
    "include_preprocessing": """
        include_preprocessing: `True`: the model takes pixels in [0, 255] and normalises them inside. `False`: it takes
            what `keras_vit.preprocess_input` returns.""",
    "name": """
        name: The model's name.""",
}
_PLACEHOLDER = "\n        {shared_arguments}"


def describe_shared_arguments(factory):
    """Decorates a factory. `{shared_arguments}` in its docstring becomes the descriptions that it does not have itself.

    Only the arguments that the factory has are described.
    """
    parameters = factory.__code__.co_varnames[: factory.__code__.co_argcount]
    own = factory.__doc__ or ""  # Python -OO removes docstrings.
    shared = [text for name, text in _DESCRIPTIONS.items() if name in parameters and f"\n        {name}: " not in own]
    factory.__doc__ = own.replace(_PLACEHOLDER, "".join(shared))
    return factory
