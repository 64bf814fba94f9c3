# SPDX-License-Identifier: Apache-2.0
"""Results as typed, frozen records, and how they are read from responses and requests are built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import grpc

from fused_mlp.protos import fused_mlp_pb2 as pb
from fused_mlp.protos import variants
from fused_mlp.service.client.errors import PredictError
from fused_mlp.service.client.named_inputs import encode_named, encode_shared, is_named
from fused_mlp.service.client.tensors import decode, decode_positions, encode, whole
from fused_mlp.variant import VARIANTS, Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fused_mlp.service.client.tensors import ArrayLike, Rows


ALL_OUTPUTS = "*"
ONLY_OUTPUT = "output"  # the name of a model's only output


@dataclass(frozen=True, slots=True)
class Timings:
    """Times inside the server.

    Attributes:
        queue_us: From the request's arrival to the start of its batch.
        compute_us: Of the whole batch, which other requests may share.
        batch_rows: The rows of that batch.
    """

    queue_us: float
    compute_us: float
    batch_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class Prediction:
    """An answer.

    Attributes:
        output: Has the dimensions of the input: (width,) in gives (out,), (rows, width) gives (rows, out); (rows,) if
            the model itself answers that.
        model: Its name.
        version: The version that answered.
        variant: The variant that answered.
        strategy: How the kernel ran the batch.
        timings: How long it took, inside the server.
        request_id: The one that the call was given.
        outputs: All outputs that were asked for, by name, in the order of the model.
        positions: With `top_k` or `min_score`, which rows the outputs are of, the best first; of an output of several
            columns, which columns of each row. Else None.
        ids: Their values of the input that `ids` named; else None.
    """

    output: NDArray[Any]
    model: str
    version: int
    variant: Variant
    strategy: str
    timings: Timings
    request_id: str
    outputs: Mapping[str, NDArray[Any]]
    positions: NDArray[Any] | None = None
    ids: NDArray[Any] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StreamItem:
    """One answer of a stream; they come as they are ready.

    Attributes:
        index: The position of its input.
        request_id: `<request_id of the stream>-<index>`.
        result: The prediction, or the error of this input alone.
    """

    index: int
    request_id: str
    result: Prediction | PredictError

    def unwrap(self) -> Prediction:
        """The prediction, or its error raised."""
        if isinstance(self.result, PredictError):
            raise self.result
        return self.result


def build_request(
    model: str,
    x: Rows,
    version: int | None,
    variant: Variant | None,
    request_id: str,
    *,
    output: str | None,
    arm: str | None = None,
    shared: Mapping[str, Any] | None = None,
    top_k: int | None = None,
    min_score: float | None = None,
    ids: str | None = None,
) -> tuple[pb.PredictRequest, bool]:
    """A request, and whether it is one row without a dimension for rows, which `read_prediction` needs to know."""
    if variant not in (None, *VARIANTS):
        raise ValueError(f"expected variant 'fused', 'unfused' or None, got {variant!r}")
    if output is not None and not isinstance(output, str):
        raise TypeError(
            f"output: expected the name of one output, {ALL_OUTPUTS!r} for all or None for the first, got {output!r}"
        )
    named = is_named(x)
    if shared and not named:
        raise TypeError("shared: expected inputs by name beside it")
    tensor, one_row = (None, False) if named else encode(cast("ArrayLike", x))
    request = pb.PredictRequest(
        model=model,
        version=version or 0,
        input=tensor,
        inputs=[*encode_named(x), *encode_shared(shared or {})] if named else (),
        shared=shared or (),
        variant=variants.variant_number(variant) if variant else pb.VARIANT_UNSPECIFIED,
        request_id=request_id,
        output=output or "",
        arm=arm or "",
        top_k=top_k,
        min_score=min_score,
        ids=ids,
    )
    return request, one_row


def read_prediction(response: pb.PredictResponse, one_row: bool, target: str) -> Prediction:
    try:
        output = decode(response.output, one_row, response.squeeze)
        outputs = {response.output_name or ONLY_OUTPUT: output}
        for other in response.others:
            outputs[other.name] = decode(other.output, one_row, other.squeeze)
        positions = decode_positions(response, one_row)
    except (KeyError, ValueError) as error:
        text = f"the answer does not hold what it says, {list(response.output.shape)}: {error}"
        raise PredictError(
            grpc.StatusCode.INTERNAL, text, target=target, request_id=response.request_id
        ) from None
    return Prediction(
        output=output,
        model=response.model,
        version=response.version,
        variant=variant_name(response.variant),
        strategy=response.strategy,
        timings=Timings(
            queue_us=response.timings.queue_ns / 1e3,
            compute_us=response.timings.compute_ns / 1e3,
            batch_rows=response.timings.batch_rows,
        ),
        request_id=response.request_id,
        outputs=outputs,
        positions=positions,
        ids=None if positions is None or not response.ids else whole(response.ids),
    )


def variant_name(variant: pb.Variant) -> Variant:
    return cast("Variant", variants.variant_name(variant))
