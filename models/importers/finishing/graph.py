# SPDX-License-Identifier: Apache-2.0
"""A graph of nodes while it changes: which nodes are left, what uses each, and how one is put in another's place."""

from __future__ import annotations

from fused_mlp.models.importers.building.nodes import Node, live_nodes


class ChangingGraph:
    """`outputs`: the nodes that leave it, which change with it. `trainable`: weights that are to stay as they are in
    the source do, where that costs no product."""

    def __init__(self, outputs: list[Node], *, trainable: bool = False) -> None:
        self.outputs = outputs
        self.trainable = trainable
        self.refresh()

    def refresh(self) -> None:
        self.nodes = live_nodes(self.outputs)
        self.live = {node.number: node for node in self.nodes}
        self.users: dict[int, list[Node]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.sources:
                self.users[source.number].append(node)

    def redirect(self, old: Node, new: Node) -> None:
        """Makes all users of the old node read the new one."""
        for user in self.users[old.number]:
            user.sources = tuple(new if source is old else source for source in user.sources)
        self.outputs = [new if output is old else output for output in self.outputs]

    def replace(self, old: Node, new: Node) -> None:
        new.number = old.number  # its place in the order
        self.redirect(old, new)

    def bypass(self, node: Node) -> None:
        """Its users read its source instead."""
        self.redirect(node, node.sources[0])

    def is_only_use(self, node: Node) -> bool:
        return len(self.users[node.number]) == 1 and all(output is not node for output in self.outputs)
