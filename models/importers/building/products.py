# SPDX-License-Identifier: Apache-2.0
"""Products of rows with weights, part by part where there are several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fused_mlp.models.errors import ModelLoadError
from fused_mlp.models.importers.building.nodes import Constant, Indices, LinearNode, Node
from fused_mlp.models.importers.building.rows import Rows, permuted, whole
from fused_mlp.models.importers.building.selection import Selection


class Products(Selection):
    def linear(self, x: Rows, weight: Constant, bias: Constant | None = None) -> Rows:
        """Of the last axis. weight: (out, in), bias: (out,) or one value."""
        if len(weight.shape) != 2 or 0 in weight.shape:
            raise ModelLoadError(f"expected a weight of shape (out, in), got {weight.shape}")
        out, width = weight.shape
        if bias is not None and bias.shape != (out,):
            if bias.array.size not in (1, out):
                raise ModelLoadError(f"expected a bias of shape ({out},), got {bias.shape}")
            bias = bias.of(np.broadcast_to(bias.array.reshape(-1), (out,)))
        if x.shape[-1] != width or x.rows_at == x.index.ndim - 1:
            raise ModelLoadError(f"expected {width} features, got {x.shape[-1]}")
        groups = x.index.reshape(-1, width)
        if len(groups) > 1 and (np.diff(groups, axis=1) != 1).any():  # put in order once, not part by part
            x = whole(self.flat(x), x.shape, x.rows_at)
            groups = x.index.reshape(-1, width)
        made = [self._linear(x.node, group, weight, bias) for group in self._parts(list(groups))]
        return whole(self._side_by_side(made), (*x.shape[:-1], out), x.rows_at)

    def matmul(self, left: Rows | Constant, right: Rows | Constant) -> Rows:
        """As numpy's, of rows and a constant of any number of axes."""
        if isinstance(left, Rows) and isinstance(right, Rows):
            raise ModelLoadError(
                "a product of two computed matrices (attention, a bilinear form) is no step of an MLP: "
                "import the feed-forward block alone, such as model.layers[0].mlp"
            )
        if isinstance(right, Rows):
            assert isinstance(left, Constant)
            if len(left.shape) == 1:  # a vector times (..., in, rows)
                return self.matmul(_swapped(right), left)
            return _swapped(self.matmul(_swapped(right), left.of(left.array.swapaxes(-1, -2))))
        assert isinstance(left, Rows)
        matrix = right.array
        if matrix.ndim == 1:
            made = self.linear(left, right.of(matrix.reshape(1, -1)))
            return Rows(made.node, made.index[..., 0], made.rows_at)
        if matrix.ndim == 2:
            origin = right.origin and f"{right.origin}.T"
            return self.linear(left, replace(right, array=matrix.T, origin=origin))
        if left.index.ndim < 2 or left.rows_at < left.index.ndim - 2:
            raise ModelLoadError("a batched product over the rows is no step of an MLP")
        batch = np.broadcast_shapes(left.shape[:-2], matrix.shape[:-2])
        index = np.broadcast_to(left.index, (*batch, *left.shape[-2:]))
        matrices = np.broadcast_to(matrix, (*batch, *matrix.shape[-2:]))
        nodes = []
        for at in self._parts(list(np.ndindex(*batch))):
            nodes.append(self.linear(Rows(left.node, index[at], 0), right.of(matrices[at].T)).node)
        shape = (*batch, left.shape[-2], matrix.shape[-1])
        return whole(self._side_by_side(nodes), shape, len(shape) - 2)

    def _linear(self, node: Node, order: Indices, weight: Constant, bias: Constant | None) -> Node:
        runs = int(np.count_nonzero(np.diff(order) != 1))
        if (
            runs > 0 and order.size * 2 >= node.width
        ):  # the order, and repetitions, become part of the weights
            matrix = np.zeros((weight.shape[0], node.width))
            np.add.at(matrix.T, order, weight.exact.T)
            weight = weight.of(matrix)
        else:
            node = self._gather(node, order)
        made = LinearNode(self._place, (node,), weight.shape[0], weight, bias)
        return self._once(("linear", node.number), (weight, bias), made)


def _swapped(x: Rows) -> Rows:
    """With its last two axes exchanged."""
    axes = list(range(x.index.ndim))
    axes[-2:] = axes[-1], axes[-2]
    return permuted(x, axes)
