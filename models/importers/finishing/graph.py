# SPDX-License-Identifier: Apache-2.0
"""A graph of nodes while it changes: which nodes are left, what uses each, and how one is put in another's place."""

from __future__ import annotations

from fused_mlp.models.importers.building.nodes import Node, live_nodes


class ChangingGraph:
    """`outputs`: the nodes that leave it, which change with it."""

    def __init__(self, outputs: list[Node]) -> None:
        self.outputs = outputs
        self._refresh()

    def _refresh(self) -> None:
        self.nodes = live_nodes(self.outputs)
        self._live = {node.number: node for node in self.nodes}
        self._users: dict[int, list[Node]] = {node.number: [] for node in self.nodes}
        for node in self.nodes:
            for source in node.sources:
                self._users[source.number].append(node)

    def _replace(self, old: Node, new: Node) -> None:
        new.number = old.number  # its place in the order
        for user in self._users[old.number]:
            user.sources = tuple(new if source is old else source for source in user.sources)
        self.outputs = [new if output is old else output for output in self.outputs]

    def _bypass(self, node: Node) -> None:
        """Its users read its source instead."""
        (source,) = node.sources
        for user in self._users[node.number]:
            user.sources = tuple(source if each is node else each for each in user.sources)
        self.outputs = [source if output is node else output for output in self.outputs]

    def _only_use(self, node: Node) -> bool:
        return len(self._users[node.number]) == 1 and all(output is not node for output in self.outputs)
