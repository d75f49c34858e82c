"""The loss of Mask2Former (arXiv 2112.01527) and EoMT in NumPy, float64, one image, prediction and object at a time.

Legend: x (h, w) logits of a mask; t (H, W) a true mask; p (P, 2) points (x, y) in [0, 1]; z (Q, C + 1) logits of
classes; c class of an object; m objects of an image.
"""

import numpy as np
import scipy.ndimage
import scipy.optimize
import scipy.special

CLASS, CROSS_ENTROPY, DICE, NO_OBJECT = 2.0, 5.0, 5.0, 0.1


def sample(x, p):
    """Bilinear samples, (P,). The centre of the first pixel is at 0.5 / size. Pixels outside are zeros."""
    positions = p.astype("float64")[:, ::-1].T * np.reshape(x.shape, (2, 1)) - 0.5
    return scipy.ndimage.map_coordinates(x.astype("float64"), positions, order=1, mode="grid-constant", cval=0.0)


def loss_at(p, x, t):
    """The weighted binary cross-entropy and dice loss of a mask at points, where its probabilities are s."""
    x, t = sample(x, p), sample(t, p)
    s = scipy.special.expit(x)
    cross_entropy = (t * np.logaddexp(0, -x) + (1 - t) * np.logaddexp(0, x)).mean()
    dice_loss = 1 - (2 * (s * t).sum() + 1) / (s.sum() + t.sum() + 1)
    return CROSS_ENTROPY * cross_entropy + DICE * dice_loss


def assign(x, z, t, c, p):
    """The query of each object, (m,), of masks x (Q, h, w), with the lowest sum of costs."""
    cost = -CLASS * scipy.special.softmax(z.astype("float64"), axis=-1)[:, c].T
    for k, q in np.ndindex(cost.shape):
        cost[k, q] += loss_at(p, x[q], t[k])
    return scipy.optimize.linear_sum_assignment(cost)[1]


def mask_loss(x, t, candidates, random):
    """The loss of a mask at the most uncertain of the candidates, and at random points."""
    order = np.argsort(np.abs(sample(x, candidates)), kind="stable")
    return loss_at(np.concatenate([candidates[order[: 3 * (len(candidates) // 3) // 4]], random]), x, t)


def class_losses(z, queries, c):
    """The sum of the weighted cross-entropies of all queries, and the sum of their weights."""
    target = np.full(len(z), z.shape[1] - 1)
    target[queries] = c
    weight = np.where(target == z.shape[1] - 1, NO_OBJECT, 1.0)
    log_probabilities = scipy.special.log_softmax(z.astype("float64"), axis=-1)
    return -(weight * log_probabilities[np.arange(len(z)), target]).sum(), weight.sum()


def losses(images):
    """The share of each image in the loss of a batch.

    Args:
        images: A list of (objects, predictions). The objects are (t (m, H, W), c (m,)). A prediction is (x (Q, h, w),
            z, points of the assignment, candidates (m, 3 P, 2), random points (m, P / 4, 2)).
    """
    num_masks = max(sum(len(c) for (_, c), _ in images), 1)
    shares = np.zeros(len(images))
    for n in range(len(images[0][1])):
        classes = []
        for i, ((t, c), predictions) in enumerate(images):
            x, z, p, candidates, random = predictions[n]
            queries = assign(x, z, t, c, p)
            classes.append(class_losses(z, queries, c))
            for k, q in enumerate(queries):
                shares[i] += mask_loss(x[q], t[k], candidates[k], random[k]) / num_masks
        shares += [CLASS * total / sum(weight for _, weight in classes) for total, _ in classes]
    return shares
