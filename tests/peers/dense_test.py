"""Models of transformers for pixels and boxes, with random weights, read and written. The images have two sizes."""

import re

import numpy as np
import pytest
import torch
import transformers

import keras_vit
from tests.test_case import assert_close, to_numpy

ENCODER = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "patch_size": 8}
LABELS = {index: f"class {index}" for index in range(5)}
EOMT = {**ENCODER, "num_queries": 7, "num_blocks": 2, "num_upscale_blocks": 1, "id2label": LABELS}
DINOV3 = {"intermediate_size": 64, "image_size": 32, "num_register_tokens": 3}


def randomize(model):
    """Weights with which no output is almost constant."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2 if parameter.ndim > 1 else 0.5)
        if hasattr(model, "attn_mask_probs"):
            model.attn_mask_probs.zero_()  # Published models do not mask the attention.
    return model.eval()


def run(model, images):
    with torch.no_grad():
        return model(pixel_values=torch.tensor(images.transpose(0, 3, 1, 2)))


def images_of(height, width):
    return np.random.default_rng(0).normal(size=(2, height, width, 3)).astype("float32")


def check_eomt(model, images, folder, family):
    """Reads the model that transformers wrote to `folder`, writes it again, and compares all outputs."""
    expected = run(model, images)
    model.save_pretrained(folder / "theirs")
    ours = keras_vit.from_pretrained(folder / "theirs", family=family)
    found = ours(images)
    assert_close(found["objects"], expected.class_queries_logits.numpy())
    assert_close(found["masks"], expected.masks_queries_logits.numpy().transpose(0, 2, 3, 1))
    keras_vit.save_weights(ours, folder / "ours", "huggingface")
    again, info = type(model).from_pretrained(folder / "ours", output_loading_info=True)
    assert not any(info.values())
    assert again.config.id2label == LABELS
    assert torch.equal(run(again.eval(), images).masks_queries_logits, expected.masks_queries_logits)


@pytest.mark.parametrize("size", [32, 48])
def test_eomt(size, tmp_path):
    config = transformers.EomtConfig(**EOMT, mlp_ratio=2, image_size=size, num_register_tokens=3)
    model = randomize(transformers.EomtForUniversalSegmentation(config))
    check_eomt(model, images_of(size, size), tmp_path, "dinov2")


def test_eomt_on_dinov3(tmp_path):
    """A file may contain the differences from the weights of DINOv3, as the owners' own files do."""
    model = randomize(transformers.EomtDinov3ForUniversalSegmentation(transformers.EomtDinov3Config(**EOMT, **DINOV3)))
    images = images_of(32, 32)
    check_eomt(model, images, tmp_path, "dinov3")
    config = transformers.DINOv3ViTConfig(**ENCODER, **DINOV3, layer_norm_eps=1e-6)
    encoder = randomize(transformers.DINOv3ViTModel(config))
    encoder.save_pretrained(tmp_path / "dinov3")
    whole, own = model.state_dict(), encoder.state_dict()
    own = {re.sub(r"^(model\.)?layer\.", "layers.", name): array for name, array in own.items()}
    own = {re.sub(r"^norm\.", "layernorm.", name): array for name, array in own.items()}
    changed = [name for name in whole if name in own and "mask_token" not in name]
    assert len(changed) > 60
    differences = {name: 0.01 * whole[name] for name in changed}  # A trained model differs little from its encoder.
    model.load_state_dict(whole | {name: own[name] + difference for name, difference in differences.items()})
    expected = run(model, images)
    model.load_state_dict(whole | differences)
    model.save_pretrained(tmp_path / "differences")
    arguments = {"family": "dinov3", "input_shape": (32, 32, 3)}
    ours = keras_vit.from_pretrained(tmp_path / "differences", encoder=tmp_path / "dinov3", **arguments)
    assert_close(ours(images)["objects"], expected.class_queries_logits.numpy())
    with pytest.raises(ValueError, match="contains differences from the weights of DINOv3"):
        keras_vit.from_pretrained(tmp_path / "differences", **arguments)
    with pytest.raises(ValueError, match="Do not pass encoder="):
        keras_vit.from_pretrained(tmp_path / "theirs", encoder=tmp_path / "dinov3", **arguments)


@pytest.mark.parametrize("max_depth", [None, 7])
def test_depth_anything(max_depth, tmp_path):
    backbone = {"mlp_ratio": 2, "image_size": 32, "out_indices": [1, 2, 3, 4], "reshape_hidden_states": False}
    backbone = transformers.Dinov2Config(**ENCODER, **backbone)
    kind = {"depth_estimation_type": "relative" if max_depth is None else "metric", "max_depth": max_depth or 1}
    sizes = {"neck_hidden_sizes": [5, 6, 8, 12], "fusion_hidden_size": 10, "head_hidden_size": 6}
    sizes |= {"reassemble_hidden_size": 32, "patch_size": 8}
    config = transformers.DepthAnythingConfig(backbone_config=backbone, **sizes, **kind)
    model = randomize(transformers.DepthAnythingForDepthEstimation(config))
    model.save_pretrained(tmp_path / "theirs")
    for images in (images_of(32, 32), images_of(24, 40)):
        expected = run(model, images).predicted_depth.numpy()
        scale = np.abs(expected).max()
        assert expected.std() > scale / 40
        ours = keras_vit.from_pretrained(tmp_path / "theirs", input_shape=images.shape[1:])
        assert_close(to_numpy(ours(images))[..., 0] / scale, expected / scale)
        if images.shape[1:3] == (32, 32):
            keras_vit.save_weights(ours, tmp_path / "ours", "huggingface")
            again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
            assert not any(info.values())
            assert_close(run(again.eval(), images).predicted_depth.numpy() / scale, expected / scale)


@pytest.mark.parametrize("is_placed_in_all", [False, True])
def test_yolos(is_placed_in_all, tmp_path):
    tokens = {"num_detection_tokens": 6, "use_mid_position_embeddings": is_placed_in_all}
    config = transformers.YolosConfig(**ENCODER, **tokens, intermediate_size=64, image_size=(24, 40), id2label=LABELS)
    model = randomize(transformers.YolosForObjectDetection(config))
    model.save_pretrained(tmp_path / "theirs")
    for images in (images_of(24, 40), images_of(32, 32)):
        expected = run(model, images)
        ours = keras_vit.from_pretrained(tmp_path / "theirs", input_shape=images.shape[1:])
        found = ours(images)
        assert_close(found["objects"], expected.logits.numpy())
        assert_close(found["boxes"], expected.pred_boxes.numpy())
    keras_vit.save_weights(ours, tmp_path / "ours", "huggingface")
    again, info = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    assert again.config.id2label == LABELS
    assert_close(run(again.eval(), images).pred_boxes.numpy(), expected.pred_boxes.numpy())


@pytest.mark.parametrize("name", ["OwlViT", "Owlv2"])
def test_owl(name, tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**sizes, "vocab_size": 60, "max_position_embeddings": 7, "eos_token_id": 59}
    vision = {**sizes, "image_size": 32, "patch_size": 8}
    config = getattr(transformers, f"{name}Config")(text_config=text, vision_config=vision, projection_dim=32)
    model = randomize(getattr(transformers, f"{name}ForObjectDetection")(config))
    model.save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(1, 59, (3, 7))
    ids[:, [4, 5, 6]] = 59, 0, 0
    texts = keras_vit.ImageTextModel.from_pretrained(tmp_path).text_embeddings(ids)
    for images in (images_of(32, 32)[:1], images_of(24, 40)[:1]):
        ours = keras_vit.from_pretrained(tmp_path, output="boxes", classes=3, input_shape=images.shape[1:])
        ours.get_layer("predictions").kernel.assign(texts.T)
        inputs = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(ids > 0)}
        with torch.no_grad():
            pixels = torch.tensor(images.transpose(0, 3, 1, 2))
            expected = model(pixel_values=pixels, **inputs, interpolate_pos_encoding=True)
        assert_close(ours(images)["objects"], expected.logits.numpy())
        assert_close(ours(images)["boxes"], expected.pred_boxes.numpy())


@pytest.mark.parametrize(("size", "is_resized"), [((32, 75), False), ((70, 41), True)])
def test_class_scores_of_large_images(size, is_resized, tmp_path):
    """transformers splits images in the same way. It gets the resized image, because its resize rounds otherwise."""
    model = randomize(transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**EOMT, image_size=32)))
    model.save_pretrained(tmp_path)
    ours = keras_vit.from_pretrained(tmp_path, family="dinov2")
    normalisation = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    ours.get_layer("preprocessing").set_preprocessing(*normalisation, [32, 32])
    small = image = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype("uint8")
    if is_resized:
        pixels = torch.tensor(image.transpose(2, 0, 1)[None].astype("float32"))
        resized = torch.nn.functional.interpolate(pixels, (54, 32), mode="bilinear", antialias=True)
        small = np.rint(resized[0].numpy().transpose(1, 2, 0)).astype("uint8")
    shortest = {"shortest_edge": 32, "longest_edge": None}
    processor = transformers.EomtImageProcessor(size=shortest, do_split_image=True, do_resize=False)
    inputs = processor(images=[small], return_tensors="pt")
    assert len(inputs["patch_offsets"]) == (2 if is_resized else 3)
    outputs = run(model, inputs["pixel_values"].numpy().transpose(0, 2, 3, 1))
    outputs.patch_offsets = inputs["patch_offsets"]
    [expected] = processor.post_process_semantic_segmentation(outputs, [size], return_segmentation_scores=True)
    scores = expected.segmentation_scores.numpy().transpose(1, 2, 0)
    assert np.ptp(scores, axis=(0, 1)).max() > 0.1
    assert_close(keras_vit.class_scores(ours, image), scores)
