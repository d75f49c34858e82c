"""What all sections of a recipe have in common."""

from typing import Annotated, dataclass_transform

import pydantic
from pydantic import Field

Fraction = Annotated[float, Field(ge=0, lt=1)]
Duration = Annotated[str, Field(pattern=r"^(\d{1,9}(\.\d{1,9})?(%| epochs?)|\d{1,9} steps?)$")]
"""A duration: `5%` of all steps, `10000 steps` or `2.5 epochs`, with at most nine digits."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
def section(cls):
    """Makes a class a section of a recipe."""
    config = pydantic.ConfigDict(extra="forbid", coerce_numbers_to_str=True, allow_inf_nan=False)
    return pydantic.dataclasses.dataclass(cls, frozen=True, kw_only=True, config=config)
