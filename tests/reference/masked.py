"""Masked patch prediction (ViT, arXiv 2010.11929, appendix B.1.2) and MAE (arXiv 2111.06377) in NumPy, float64.

Legend: x image (H, W, C); P, Q patch height and width; N patches; D width; p prefix tokens; z tokens. `w` maps names of
weights to arrays.
"""

import numpy as np

from tests.reference import vit


def color_class(pixels):
    """Class of pixels (..., C) in [0, 1]: the mean of each channel in 3 bits, the first channel in the highest bits."""
    number = 0
    for mean in pixels.reshape(-1, pixels.shape[-1]).mean(0):
        number = 8 * number + min(int(mean * 8), 7)
    return number


def color_classes(x, P, Q, parts):
    """(N, parts * parts): classes of the parts of each patch, row by row."""
    return np.array(
        [
            [
                color_class(x[top + i : top + i + P // parts, left + j : left + j + Q // parts])
                for i in range(0, P, P // parts)
                for j in range(0, Q, Q // parts)
            ]
            for top in range(0, x.shape[0] - P + 1, P)
            for left in range(0, x.shape[1] - Q + 1, Q)
        ]
    )


def encoder(z, w, norm_name="encoder_norm"):
    """The blocks and the last norm, applied to tokens z."""
    num_blocks = 1 + max(int(name.split("/")[0].split("_")[-1]) for name in w if name.startswith("encoder_block_"))
    for i in range(num_blocks):
        z = vit.encoder_block(z, vit.part(w, f"encoder_block_{i}"))
    return vit.norm(z, w, norm_name)


def mae_positions(h, w, D):
    """(h w, D): `get_2d_sincos_pos_embed` of the authors' code: column first, frequencies 10000^(-i / (D/4))."""
    omega = 10_000.0 ** (-np.arange(D // 4) / (D // 4))
    rows = []
    for y in range(h):
        for x in range(w):
            rows.append(np.concatenate([f(place * omega) for place in (x, y) for f in (np.sin, np.cos)]))
    return np.array(rows)


def mae(x, w, decoder, noise, num_visible, normalize, **embedding):
    """Predictions and targets (B, N, P Q C), and a mask (B, N) of the hidden patches."""
    P, Q, _, _ = w["patch_embedding/kernel"].shape
    h, width = x.shape[1] // P, x.shape[2] // Q
    z = vit.embed(x, w, **embedding)
    p = z.shape[1] - noise.shape[1]
    predictions, masks = [], []
    for tokens, values in zip(z, noise, strict=True):
        visible = sorted(range(len(values)), key=lambda n: values[n])[:num_visible]
        seen = encoder(np.concatenate([tokens[:p], tokens[p:][visible]])[None], w)[0]
        seen = vit.dense(seen, decoder, "projection")
        full = np.tile(decoder["mask_token"][0, 0], (len(tokens), 1))
        full[:p] = seen[:p]
        for place, token in zip(visible, seen[p:], strict=True):
            full[p + place] = token
        full[p:] += mae_positions(h, width, full.shape[1])
        full = full[None]
        for i in range(sum(name.endswith("attention_norm/gamma") for name in decoder)):
            full = vit.encoder_block(full, vit.part(decoder, f"block_{i}"))
        predictions.append(vit.dense(vit.norm(full, decoder, "norm"), decoder, "predictions")[0, p:])
        masks.append([0.0 if n in visible else 1.0 for n in range(len(values))])
    targets = vit.patchify(x, P, Q)
    if normalize:
        targets = (targets - targets.mean(-1, keepdims=True)) / np.sqrt(targets.var(-1, ddof=1, keepdims=True) + 1e-6)
    return np.array(predictions), targets, np.array(masks)
