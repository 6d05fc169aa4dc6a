"""Tree of sentences, in which sentences share the computation of their common beginnings."""

from collections.abc import Sequence

import numpy as np


class PrefixTree:
    """Tree of all beginnings of given sentences.

    Node 0 is the empty beginning. Nodes are numbered by depth, and within a depth in the order of
    their parents, so that a parent precedes its children and the children of consecutive nodes are
    adjacent. Raises ValueError if there is no sentence, or a sentence is empty.

    Args:
        sentences: Token indices of each sentence; equal sentences share their leaf.

    Attributes:
        parent: [nodes]; 0 for node 0.
        token: [nodes] last token of each beginning; -1 for node 0.
        level_starts: [depths + 1] first node of each depth, and the number of nodes.
        leaf: [sentences] node of each whole sentence.
        inner: [I] nodes with children, ascending.
        child_starts: [I + 1] first child of each inner node, and the number of nodes.
        inner_of_parent: [nodes] index in ``inner`` of each node's parent.
    """

    def __init__(self, sentences: Sequence[Sequence[int]]) -> None:
        if not sentences or not all(len(sentence) for sentence in sentences):
            raise ValueError("sentences must have one token each at least.")
        # sorted, so that the children of consecutive nodes get consecutive numbers
        order = sorted(range(len(sentences)), key=lambda i: tuple(sentences[i]))
        parent, token, level_starts = [0], [-1], [0]
        nodes = [0] * len(sentences)
        for depth in range(max(len(sentence) for sentence in sentences)):
            level_starts.append(len(parent))
            known: dict[tuple[int, int], int] = {}
            for i in order:
                if depth >= len(sentences[i]):
                    continue
                key = (nodes[i], int(sentences[i][depth]))
                if key not in known:
                    known[key] = len(parent)
                    parent.append(key[0])
                    token.append(key[1])
                nodes[i] = known[key]
        self.parent = np.array(parent)
        self.token = np.array(token)
        self.level_starts = np.array([*level_starts, len(parent)])
        self.leaf = np.array(nodes)
        # children of a node are adjacent, so that the first index of a parent is its first child
        self.inner, first = np.unique(self.parent[1:], return_index=True)
        self.child_starts = np.append(first + 1, len(parent))
        self.inner_of_parent = np.searchsorted(self.inner, self.parent)

    def __len__(self) -> int:
        return len(self.parent)
