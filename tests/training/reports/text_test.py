"""Evaluations as text."""

import numpy as np
import scipy.stats

from training.evaluation.classification import Classification
from training.reports.text import classification_text, lay_out

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu")


def lines_of(evaluation):
    return classification_text(evaluation).splitlines()


def test_words_say_what_the_figures_are():
    probabilities = np.full((200, 6), 0.05)
    probabilities[:, 2] = 0.75
    labels = np.eye(6, dtype=bool)[[2] * 160 + [4] * 40]
    lines = lines_of(Classification(labels, probabilities, NAMES[:6], num_unlabelled=3))
    interval = scipy.stats.binomtest(160, 200).proportion_ci(method="wilson")
    interval = f"95% Wilson interval {interval.low:.2%} to {interval.high:.2%}"
    assert lines[0] == f"top-1 accuracy     80.00% (160 of 200 images; {interval})"
    assert lines[1].startswith("top-5 accuracy     ")
    assert lines[2] == f"cross-entropy      {-0.8 * np.log(0.75) - 0.2 * np.log(0.05):.4f} nats"
    assert lines[3] == "calibration error  5.00% (ECE, 15 bins; mean confidence 75.00%)"
    assert lines[4:] == [
        "3 images without a right class are left out.",
        "",
        "Classes, worst first:",
        "class  images  right  accuracy  most often mistaken for",
        "elk        40      0      0.0%  cat (40)",
        "cat       160    160    100.0%",
        "ant         0      0      none",
        "bee         0      0      none",
        "dog         0      0      none",
        "fox         0      0      none",
    ]


def test_of_many_classes_the_worst_are_named():
    probabilities = np.eye(30)
    probabilities[17] = probabilities[3]
    lines = lines_of(Classification(np.eye(30, dtype=bool), probabilities, tuple(f"class {i}" for i in range(30))))
    [heading] = [i for i, line in enumerate(lines) if line == "The 20 worst of 30 classes, worst first:"]
    assert lines[heading + 2].split("  ")[0] == "class 17"
    assert len(lines[heading + 2 :]) == 20


def test_text_starts_together_and_numbers_end_together():
    rows = [("class", "images", "taken for"), ("a, b", "1,293", "c"), ("d", "7", "")]
    assert lay_out(rows, texts=(0, 2)).split("\n") == ["class  images  taken for", "a, b    1,293  c", "d           7"]
