"""Panoptic Segmentation (Kirillov et al., arXiv 1801.00868), section 4, with sets of pixels."""


def panoptic_quality(images, label):
    """PQ, SQ, RQ of a class.

    Args:
        images: List of (true segments, predicted segments, void pixels, pixels of groups). A segment is (class, set of
            pixels). Groups have no class here, so they stand for groups of every class.
        label: The class.
    """
    ious, FP, FN = [], 0, 0
    for truths, predictions, void, groups in images:
        truths = [g for c, g in truths if c == label]
        predictions = [p for c, p in predictions if c == label]
        # Void pixels are removed from the prediction for the matching.
        overlaps = [[len(p & g) / len((p - void) | g) for g in truths] for p in predictions]
        found = [iou for row in overlaps for iou in row if iou > 0.5]
        unmatched = [p for p, row in zip(predictions, overlaps, strict=True) if max(row, default=0) <= 0.5]
        # Unmatched predictions that are mostly void, or of a group, are no false positives.
        FP += sum(len(p & (void | groups)) / len(p) <= 0.5 for p in unmatched)
        FN, ious = FN + len(truths) - len(found), ious + found
    SQ, RQ = sum(ious) / max(len(ious), 1), len(ious) / (len(ious) + FP / 2 + FN / 2)
    return SQ * RQ, SQ, RQ
