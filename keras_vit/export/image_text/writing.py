"""Writes the SavedModel of an image-text model, loads it and runs it. Keras must run on TensorFlow.

Shapes: B images, N texts, T tokens, E embedding, H W C image.
"""

import pathlib
import typing

import keras
import numpy as np
import tensorflow as tf

from keras_vit.data.decoding import batch_decoder, image_decoder, naflex_decoder
from keras_vit.export.functions import stored_weights, where_valid
from keras_vit.export.in_parts import in_chunks
from keras_vit.export.parity import full_precision, read_images
from keras_vit.export.writing import lowered, save, write_warmup
from keras_vit.models.naflex import naflex_model
from keras_vit.preprocessing import input_preprocessing, preprocess_input

_NUM_TEXTS = 3
"""Number of texts of the comparison."""


def write_image_text_model(model, folder, answers, precision, batch_sizes, model_name, **image_options):
    """Writes a SavedModel with its tokenizer and warm-up requests, loads it and runs it on photographs and token ids.

    Args:
        model: `keras_vit.ImageTextModel`, with Keras on TensorFlow.
        folder: Folder to write to.
        answers: Path of an `.npz` file, for what was computed: `pixels` (or `patches` and `grid`), `token_ids`,
            `image`, `text` and `logits`.
        precision, batch_sizes, model_name: As in `keras_vit.export_image_text_model`.
        **image_options: `image_size`, `max_patches` and `max_image_pixels`, as there.
    """
    folder = pathlib.Path(folder)
    image_encoder, decode = _image_encoder(model.image_encoder, **image_options)
    served = _signatures(model, image_encoder, decode, precision, batch_sizes)
    save(served, folder)
    if model.tokenizer is not None:
        (folder / "assets").mkdir(exist_ok=True)
        (folder / "assets" / model.tokenizer.file_name).write_bytes(model.tokenizer.vocabulary)
    files = read_images(None)
    specs = {name: function.input_signature for name, function in served.items()}
    write_warmup(folder, model_name, specs, None, files[0], batch_sizes)
    token_ids = _random_token_ids(model)
    signatures = tf.saved_model.load(str(folder)).signatures
    images, texts = tf.constant(files), tf.constant(token_ids)
    with full_precision():
        image = signatures["image"](image_bytes=images)["embedding"]
        text = signatures["text"](token_ids=texts)["embedding"]
        pairs = signatures["similarity"](image_bytes=images, token_ids=tf.tile(texts[None], [len(files), 1, 1]))
    if image_options["max_patches"] is None:
        one = image_decoder(model.image_encoder, image_options["image_size"])
        seen: dict[str, typing.Any] = {"pixels": np.stack([one(file) for file in files])}
    else:
        seen = decode(images)[0]
    np.savez(answers, token_ids=token_ids, image=image, text=text, logits=pairs["logits"], **seen)


def _random_token_ids(model):
    """Token ids (N, T) of texts of several lengths."""
    config, rng = model.text_config, np.random.default_rng(0)
    ids = rng.integers(0, config.vocabulary_size, (_NUM_TEXTS, config.context_length), dtype="int32")
    lengths = np.linspace(1, config.context_length, _NUM_TEXTS, dtype=int)
    return np.where(np.arange(config.context_length) < lengths[:, None], ids, np.int32(config.padding_id))


def _image_encoder(encoder, image_size, max_patches, max_image_pixels):
    """The image encoder of the signatures, and a function that decodes files: (its inputs, whether each is valid)."""
    if max_patches is None:
        decode, shape = batch_decoder(encoder, image_size, max_image_pixels), input_preprocessing(encoder, image_size)

        def images_of(files):
            images, valid = decode(files)
            images = tf.ensure_shape(images, [None, *shape[1], shape[2]])
            return preprocess_input(tf.cast(images, tf.float32), encoder), valid

        return encoder, images_of
    naflex, decode = naflex_model(encoder, max_patches), naflex_decoder(encoder, max_patches, max_image_pixels)

    def patches_of(files):
        patches, valid, grid = decode(files)
        patches = tf.ensure_shape(tf.cast(patches, tf.float32), naflex.input["patches"].shape)
        return {"patches": patches, "grid": grid}, valid

    return naflex, patches_of


def _signatures(model, image_encoder, decode, precision, batch_sizes):
    """{name of the signature: `tf.function`}. `keras_vit.export_image_text_model` describes them."""
    config, similarity = model.text_config, model.similarity_layer
    image_encoder, text_encoder = (_encoder(each, precision) for each in (image_encoder, model.text_encoder))
    scale, bias = np.exp(similarity.log_scale), np.float32(similarity.bias if similarity.use_bias else 0.0)
    files_spec = tf.TensorSpec([None], tf.string, "image_bytes")
    ids_spec = tf.TensorSpec([None, config.context_length], tf.int32, "token_ids")
    lists_spec = tf.TensorSpec([None, None, config.context_length], tf.int32, "token_ids")

    def of_images(files):
        images, valid = decode(files)
        return {"embedding": where_valid(valid, image_encoder(images)), "valid": valid}

    def of_texts(token_ids):
        valid = tf.reduce_all((token_ids >= 0) & (token_ids < config.vocabulary_size), axis=1)
        token_ids = tf.where(valid[:, None], token_ids, config.padding_id)
        if model.text_encoder.input_shape[1] is None:  # It does not read padding, so the end of all texts is left out.
            is_used = tf.reduce_any(token_ids != config.padding_id, axis=0)
            length = tf.reduce_max(tf.where(is_used, tf.range(1, config.context_length + 1), 1))
            token_ids = token_ids[:, : length + 1]  # The end token of some models is the padding.
        return {"embedding": where_valid(valid, text_encoder(token_ids)), "valid": valid}

    # A server does not check shapes, so it would accept inputs of other shapes with as many numbers.
    def image(files):
        return in_chunks(of_images, tf.ensure_shape(files, files_spec.shape), batch_sizes[-1])

    def text(token_ids):
        return in_chunks(of_texts, tf.ensure_shape(token_ids, ids_spec.shape), batch_sizes[-1])

    def compare(files, token_ids):
        token_ids = tf.ensure_shape(token_ids, lists_spec.shape)
        num_lists, num_texts, _ = tf.unstack(tf.shape(token_ids))
        same = tf.debugging.assert_equal(tf.size(files), num_lists, "token_ids needs a list of texts for each image.")
        with tf.control_dependencies([same]):
            images, texts = image(files), text(tf.reshape(token_ids, [-1, config.context_length]))
        vectors = tf.reshape(texts["embedding"], [num_lists, num_texts, config.embedding_dim])
        logits = scale * tf.einsum("be,bne->bn", images["embedding"], vectors) + bias
        valid = images["valid"] & tf.reduce_all(tf.reshape(texts["valid"], [num_lists, num_texts]), axis=1)
        probabilities = keras.activations.get(model.activation)(logits)
        found = {"logits": logits, "probabilities": probabilities}
        return {name: where_valid(valid, values) for name, values in found.items()} | {"valid": valid}

    return {
        "image": tf.function(image, [files_spec], autograph=False),
        "text": tf.function(text, [ids_spec], autograph=False),
        "similarity": tf.function(compare, [files_spec, lists_spec], autograph=False),
    }


def _encoder(encoder, precision):
    """A function from inputs of an encoder to unit vectors, float32."""
    served, rounded = lowered(encoder, precision)
    weights = stored_weights(served, rounded, jit_compile=False)

    @tf.function(autograph=False)
    def compute(inputs):
        with keras.StatelessScope(weights()):
            return keras.ops.normalize(tf.cast(served(inputs, training=False), tf.float32), axis=-1)

    return compute
