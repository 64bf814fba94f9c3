"""What a model with reduced weights has cost, as it is written into model.json and shown to people."""

# Annotations are no texts here: pydantic would evaluate each of them, at the start of every server.
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat


class PrecisionError(BaseModel):
    """How far a model with reduced weights is from float64 with those it was made from, over some rows."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    rows: Annotated[int, Field(ge=1)]
    calibrated: bool  # on rows that were given, not random ones
    largest: FiniteFloat  # difference of an output, in units of that head's largest output
    mean: FiniteFloat  # of the differences, in the same units
    cosine: FiniteFloat  # of the angle between a row's outputs and the exact ones, the least over the rows
    top1: FiniteFloat | None = (
        None  # the share of rows whose largest output is the same; for a head of several
    )
    kept: Annotated[
        tuple[str, ...], Field(strict=False)
    ] = ()  # steps whose weights stay in float32, since int8 would cost too much

    def __str__(self) -> str:
        text = f"error {self.largest:.2%} at most, {self.mean:.2%} on average, cosine {self.cosine:.6f}"
        if self.top1 is not None:
            text += f", top-1 the same in {self.top1:.1%}"
        text += f", over {self.rows} {'given' if self.calibrated else 'random'} rows"
        return text + (f"; in float32: {', '.join(self.kept)}" if self.kept else "")
