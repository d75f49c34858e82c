"""What a study varies, and how its results are compared.

Each point of a study is trained once per seed, as an ordinary run. `training.studies.running` trains the points, and
`training.studies.results` keeps their results.
"""

import dataclasses
from collections.abc import Callable

# Changes to the digits recipe. Without augmentation, a few epochs are enough for most of the final accuracy.
UNCHANGED_DIGITS = (
    "augment.translation=0",
    "augment.rotation=0",
    "augment.scale=0",
    "augment.fill=reflect",
    "fit.report_every=100%",
)


@dataclasses.dataclass(frozen=True)
class Point:
    """A model of a study.

    Args:
        series: The series of the point.
        label: The label of the point in its series.
        changes: Changes to the recipe, `section.field=value`.
        initial: The point whose trained model gives the initial weights, or `None`.
    """

    series: str
    label: str
    changes: tuple[str, ...]
    initial: "Point | None" = None

    def __str__(self):
        return f"{self.series}, {self.label}"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A claim about the difference between two points with the same seeds.

    Args:
        claim: The claim, a short sentence.
        first: (series, label) of the point that should be better. If the label is `None`: the point of the series with
            the best mean result on validation images.
        second: (series, label) of the other point.
        column: The column of the results that is compared. Its values are fractions, such as an accuracy.
        expected: `"shows"`: the claim is that `first` is better. `"tie"`: the claim is that both are equal.
    """

    claim: str
    first: tuple[str, str | None]
    second: tuple[str, str | None]
    column: str = "score"
    expected: str = "shows"


@dataclasses.dataclass(frozen=True)
class Study:
    """Defines what a study varies, and how it is shown.

    Args:
        title: The question that the study answers.
        paper: Figure or table of the paper that the study reproduces.
        points: Function that takes a recipe and returns its `Point`s, or raises an InputError for an unsuitable recipe.
        figure: Function that takes the `training.studies.results.Summary`s and the folder of the runs, and returns a
            matplotlib Figure.
        recipe: Name of the recipe that is varied.
        changes: Changes to this recipe.
        claim: The claim of the paper, in sentences.
        method: What is trained and measured here, in sentences.
        comparisons: Function that takes a recipe and returns `Comparison`s.
        rates: Function that takes a recipe and returns {series: `Point`s}. The points of a series differ in
            `optimizer.learning_rate`. They are trained first, with the first seed. All points of the series then get
            the learning rate of the best validation score.
        measures: Names of further columns of the results, which are fractions or NaN.
        shown: Those of the `measures` that the page of the study shows. `None`: all.
        measure: Function that takes a trained model, its `training.data.dataset.Dataset` and its recipe, and returns
            {name in `measures`: number}.
    """

    title: str
    paper: str
    points: Callable
    figure: Callable
    recipe: str = "digits"
    changes: tuple[str, ...] = ()
    claim: str = ""
    method: str = ""
    comparisons: Callable = lambda recipe: ()
    rates: Callable = lambda recipe: {}
    measures: tuple[str, ...] = ()
    shown: tuple[str, ...] | None = None
    measure: Callable | None = None
