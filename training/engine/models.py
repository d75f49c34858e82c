"""Builds the model of a recipe, and loads its teacher."""

import dataclasses
import pathlib

import keras

import keras_vit
from keras_vit.architectures import read_architecture
from keras_vit.architectures.vision_transformer import ViTConfig
from keras_vit.models import KINDS
from keras_vit.models.building import SharedArguments
from keras_vit.models.dense import encoder_and_head
from keras_vit.outputs import output_of
from keras_vit.preprocessing import SETTINGS, preprocessing_layer
from keras_vit.weights.adapt import check_stem
from keras_vit.weights.opening import entry_of_source, open_checkpoint
from training.errors import InputError, without_call
from training.recipe.model_functions import build_head, get_function
from training.runs.folder import Run, load_model, read_class_names
from training.tasks import TASKS


def build_model(recipe, classes, with_logits=False, built=None):
    """Builds the model of a recipe. The model converts pixels in [0, 255] to probabilities or logits.

    The task determines the head and its activation. A model of task=pretraining has no head and returns features.

    Args:
        recipe: `training.recipe.config.Recipe`
        classes: Number of classes.
        with_logits: Whether the model returns logits.
        built: `description` of a model that was built for the same recipe, or `None`. With a description, published
            weights are not read again, and mimetic values are not computed. The caller must set all weights.

    Raises:
        InputError: If the model cannot be built, or its initial weights are unavailable or do not fit.
    """
    task = TASKS[recipe.task](recipe)
    is_dense = task.factory is not None and recipe.model.function is None
    if built is not None and not is_dense:
        recipe = _without_initial_values(recipe, built)
    options = recipe.model
    arguments = {
        "input_shape": options.input_shape,
        "include_preprocessing": True,
        "name": recipe.name,
    }
    try:
        arguments |= task.head_arguments(classes, with_logits)
        if is_dense:
            model = _build_dense(options, task, arguments, built)
        elif options.weights is None:
            if options.config is None:
                model = get_function(options.function)(**options.arguments, **arguments)
            else:
                model = keras_vit.ViT(options.config, **arguments)
            if options.resize is not None:
                layer, (height, width) = preprocessing_layer(model), model.input_shape[1:3]
                preprocessing = layer.mean, layer.std, options.resize, (height, width), layer.interpolation
                layer.set_preprocessing(*preprocessing, layer.label_space)
            if options.attention_initialization == "mimetic":
                _initialize_attention(model, recipe.seed)
        else:
            # The whole head is initialized for the new task, even if the weights have the same number of classes.
            model = keras_vit.from_pretrained(
                options.weights, head=task.head_of_weights, **options.changes, **arguments
            )
        if options.freeze_up_to is not None:
            keras_vit.freeze(model, options.freeze_up_to)
        if recipe.fit.rematerialize:
            keras_vit.rematerialize(model)
    except (ValueError, TypeError, OSError) as error:
        raise InputError(without_call(error)) from error
    if built is not None:
        config, layer = built["preprocessing"], preprocessing_layer(model)
        layer.set_preprocessing(**{name: config[name] for name in SETTINGS})
        layer.source, layer.origin, layer.adaptations = (config[name] for name in ("source", "origin", "adaptations"))
    return model


def _build_dense(options, task, arguments, built):
    """Builds a model with a head for pixels. `built` is as in `build_model`."""
    if built is not None:
        config = read_architecture(built["preprocessing"]["architecture"])
        name = arguments.pop("name")
        shared = SharedArguments(**arguments | {"input_shape": tuple(built["input_shape"])})
        model = KINDS[config.kind].build(config, shared, name, None)
    elif options.weights is None:
        head = build_head(options.head, options.head_arguments)
        encoder = options.encoder or options.config
        model = getattr(keras_vit, task.factory)(encoder, head, **arguments, **options.arguments)
    else:
        model = keras_vit.from_pretrained(options.weights, head="reset", **options.changes, **arguments)
        if (kind := output_of(model).kind) != task.output:
            advice = " To train its queries, set model.head=eomt." if kind == "masks" else ""
            raise ValueError(
                f"model.weights={options.weights} predicts {kind}, but the task needs {task.output}.{advice} For a new "
                f"head on its encoder, set model.encoder and model.head instead of model.weights."
            )
    if options.has_frozen_encoder:
        head = model.get_layer("head")
        encoder, _ = encoder_and_head(model)
        for layer in encoder.layers:
            layer.trainable = False
        for layer in () if options.train_last_blocks else (*head.blocks, head.norm):
            layer.trainable = False
    return model


def description(model):
    """What `build_model` needs to build a model again, besides its recipe: a dictionary of JSON types."""
    return {"input_shape": list(model.input_shape[1:]), "preprocessing": preprocessing_layer(model).get_config()}


def _without_initial_values(recipe, built):
    """Returns a copy of a recipe that builds the same architecture with usual initial values."""
    options = recipe.model
    architecture = read_architecture(built["preprocessing"]["architecture"])
    if options.weights is not None:
        return _with_architecture(recipe, architecture, tuple(built["input_shape"]))
    arguments = options.arguments
    if "weights" in arguments:
        arguments = {name: value for name, value in architecture.to_dict().items() if name != "kind"}
    model = dataclasses.replace(options, attention_initialization="random", arguments=arguments)
    return dataclasses.replace(recipe, model=model)


def _initialize_attention(model, seed):
    try:
        keras_vit.initialize_attention(model, seed)
    except ValueError as error:
        raise InputError(f"{error} Set model.attention_initialization=random.") from error


def without_weights(recipe):
    """Returns a copy of a recipe that builds the same architecture without loading pretrained weights.

    Raises:
        InputError: If the weights are unknown or unavailable.
    """
    options = recipe.model
    if options.weights is None:
        return recipe
    try:
        entry = entry_of_source(options.weights)
        if entry is not None:  # In the catalogue, so nothing is downloaded.
            return _with_architecture(recipe, entry.config, (entry.image_size, entry.image_size, 3))
        checkpoint = open_checkpoint(options.weights)
        return _with_architecture(recipe, checkpoint.config, (*checkpoint.image_size, checkpoint.channels))
    except (ValueError, TypeError, OSError) as error:
        raise InputError(f"model.weights={options.weights}: {error}") from error


def _with_architecture(recipe, config, shape):
    """Returns a copy of a recipe with the architecture of published weights instead of the weights."""
    options = recipe.model
    if isinstance(config, ViTConfig):
        changed = config.with_new_head().replace(**options.changes)
        check_stem(config.stem, changed.stem)
        architecture = {"config": changed}
    else:
        fields = config.to_dict()
        architecture = {"function": KINDS[fields.pop("kind")].factory, "arguments": fields}
    model = dataclasses.replace(
        options, weights=None, changes={}, input_shape=options.input_shape or shape, **architecture
    )
    text = recipe.text
    if recipe.task == "contrastive" and not text.config:  # The text encoder comes from the same weights.
        text = dataclasses.replace(text, weights=text.weights or options.weights)
    return dataclasses.replace(recipe, model=model, text=text)


def load_teacher(recipe, student, class_names):
    """Loads the teacher of a recipe, a model that converts the student's images to logits. `None` without a teacher.

    Raises:
        InputError: If the teacher is unavailable, if its classes or image shape differ from the student's, or if it
            does not end in a softmax or in logits.
    """
    source = recipe.distillation.teacher
    if source is None:
        return None
    model, names = _load_saved(source) if pathlib.Path(source).exists() else _load_published(source, student)
    if (names is not None and list(names) != list(class_names)) or model.output_shape != student.output_shape:
        raise InputError(
            f"distillation.teacher={source} has {model.output_shape[-1]} classes, which are not the classes of the "
            f"data set. Give a model that was trained on the same classes."
        )
    if model.input_shape != student.input_shape:
        raise InputError(
            f"distillation.teacher={source} takes images of shape {model.input_shape[1:]}. The student takes images of "
            f"shape {student.input_shape[1:]}. Choose model.input_shape={','.join(map(str, model.input_shape[1:]))}."
        )
    try:
        is_normalizing = keras_vit.describe(model).pixels["normalize"]
    except ValueError as error:
        raise InputError(f"distillation.teacher={source}: {error}") from error
    if not is_normalizing:
        raise InputError(
            f"distillation.teacher={source} expects normalised pixels, but the student takes pixels from 0 to 255. "
            f"Build the teacher with include_preprocessing=True."
        )
    last = model.layers[-1]
    activation = getattr(last, "activation", None)
    if activation not in (keras.activations.softmax, keras.activations.linear):
        raise InputError(
            f"distillation.teacher={source} ends in {getattr(activation, '__name__', f'the layer {last.name}')}. A "
            f"student learns from the logits of a softmax over all classes. Give a model that ends in a softmax or in "
            f"logits, built with classifier_activation='softmax' or None."
        )
    last.activation = keras.activations.linear  # Removes the softmax.
    return model


def _load_saved(source):
    path = pathlib.Path(source)
    if path.is_dir() and Run(path).recipe.is_file():
        return load_model(Run(path).model), read_class_names(Run(path))
    if path.suffix == ".keras":
        return load_model(path), read_class_names(Run(path.parent))
    return _load_published(source, None)


def _load_published(source, student):
    shape = student.input_shape[1:] if student is not None else None
    try:
        return keras_vit.from_pretrained(source, input_shape=shape, include_preprocessing=True), None
    except (ValueError, OSError) as error:
        raise InputError(f"distillation.teacher={source}: {error}") from error
