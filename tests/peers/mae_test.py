"""A masked autoencoder has the same outputs as transformers' with the same weights and noise."""

import numpy as np
import pytest
import torch
import transformers

import keras_vit
from keras_vit.pretraining import MaskedAutoencoder
from tests.peers.torch_models import random_images, randomize
from tests.reference.masked import mae_positions
from tests.test_case import assert_close, to_numpy

TINY = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 36, "patch_size": 8}
TINY |= {"image_size": 32, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2}
TINY |= {"decoder_intermediate_size": 64}


@pytest.mark.parametrize(("normalize", "ratio"), [(True, 0.75), pytest.param(False, 0.6, marks=pytest.mark.slow)])
def test_equals_transformers(normalize, ratio, tmp_path):
    torch.manual_seed(0)
    config = transformers.ViTMAEConfig(**TINY, norm_pix_loss=normalize, mask_ratio=ratio)
    theirs = transformers.ViTMAEForPreTraining(config)
    randomize(theirs)
    # The authors' positions: transformers loads them with published weights, but a new model has others.
    positions = np.concatenate([np.zeros((1, 16)), mae_positions(4, 4, 16)]).astype("float32")
    theirs.decoder.decoder_pos_embed.data = torch.from_numpy(positions[None])
    theirs.vit.save_pretrained(tmp_path)
    model = keras_vit.from_pretrained(tmp_path, family="mae", include_top=False, pooling=None)
    ours = MaskedAutoencoder(
        model, mask_ratio=ratio, normalize_targets=normalize, decoder_layers=2, decoder_dim=16, decoder_heads=2
    )
    fill(ours.decoder, theirs.decoder)
    images = random_images(32, 32)
    noise = np.random.default_rng(3).random((2, 16)).astype("float32")
    with torch.no_grad():
        expected = theirs(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()), noise=torch.from_numpy(noise))
    outputs = ours(images, noise=noise)
    np.testing.assert_array_equal(to_numpy(outputs["mask"]), expected.mask.numpy())
    assert_close(outputs["predictions"], expected.logits.numpy())
    assert_close(ours.compute_loss(images, y_pred=outputs), expected.loss.numpy())


def fill(decoder, theirs):
    """Copies the weights of transformers' decoder into ours."""
    theirs = {name: array.detach().numpy() for name, array in theirs.named_parameters()}
    decoder.mask_token.assign(theirs["mask_token"])
    _fill_dense(decoder.projection, theirs, "decoder_embed")
    _fill_dense(decoder.predictions, theirs, "decoder_pred")
    _fill_norm(decoder.norm, theirs, "decoder_norm")
    for i, block in enumerate(decoder.blocks):
        part = {
            name.removeprefix(f"decoder_layers.{i}."): array
            for name, array in theirs.items()
            if name.startswith(f"decoder_layers.{i}.")
        }
        _fill_block(block, part)


def _fill_block(block, theirs):
    _fill_norm(block.attention_norm, theirs, "layernorm_before")
    _fill_norm(block.mlp_norm, theirs, "layernorm_after")
    weights = {variable.path.split("/", 2)[-1]: variable for variable in block.weights}
    for ours, their in THEIR_NAMES.items():
        for kind, theirs_kind in (("kernel", "weight"), ("bias", "bias")):
            [variable] = [value for path, value in weights.items() if path.endswith(f"{ours}/{kind}")]
            array = theirs[f"{their}.{theirs_kind}"]
            variable.assign(array.T.reshape(variable.shape))


THEIR_NAMES = {"attention/query": "attention.q_proj", "attention/key": "attention.k_proj"}
THEIR_NAMES |= {"attention/value": "attention.v_proj", "attention/output": "attention.o_proj", "mlp/hidden": "mlp.fc1"}
THEIR_NAMES |= {"mlp/output": "mlp.fc2"}


def _fill_dense(layer, theirs, name):
    layer.set_weights([theirs[f"{name}.weight"].T, theirs[f"{name}.bias"]])


def _fill_norm(layer, theirs, name):
    layer.set_weights([theirs[f"{name}.weight"], theirs[f"{name}.bias"]])
