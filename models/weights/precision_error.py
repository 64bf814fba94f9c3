# SPDX-License-Identifier: Apache-2.0
"""The measured cost of reduced weights, as it is written into model.json and shown to people."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_ROWS = 2**31 - 1
MOST_ERROR = 1e6  # what is measured beyond it counts as this

_Share = Annotated[float, Field(ge=0, le=MOST_ERROR)]


class PrecisionError(BaseModel):
    """How far a model with reduced weights is from float64 with those it was made from, over some rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    rows: Annotated[int, Field(ge=1, le=MAX_ROWS)]
    calibrated: bool  # on rows that were given, not random ones
    # Difference of an output, in units of its row's largest in that head, or of the median row's if that is larger.
    largest: _Share
    mean: _Share  # of the differences, in the same units
    # For heads of several outputs: the cosine of the angle between a row's outputs and the exact ones, the least over
    # the rows, and the share of rows whose largest output is the same.
    cosine: Annotated[float, Field(ge=-1, le=1)] | None = None
    top1: Annotated[float, Field(ge=0, le=1)] | None = None
    kept: Annotated[tuple[str, ...], Field(strict=False)] = ()  # steps whose weights stay in float32

    def __str__(self) -> str:
        text = f"error {percent(self.largest)} at most, {percent(self.mean)} on average"
        if self.cosine is not None:
            text += f", cosine {self.cosine:.6f}"
        if self.top1 is not None:
            text += f", top-1 the same in {self.top1:.1%}"
        text += f", over {self.rows} {'given' if self.calibrated else 'random'} rows"
        return text + (f"; in float32: {', '.join(self.kept)}" if self.kept else "")


def percent(share: float) -> str:
    return f"{100 * share:.3g}%"
