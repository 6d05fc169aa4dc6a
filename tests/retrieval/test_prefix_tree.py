"""The tree holds every beginning once, parents before children, siblings side by side."""

import numpy as np

from fairseq_mm.retrieval.likelihood import PrefixTree

SENTENCES = [[7, 4, 2], [5, 2], [7, 4, 4, 2], [5, 2], [2], [7, 3, 2], [7, 4]]


def beginning_of(tree, node):
    words = []
    while node:
        words.append(int(tree.token[node]))
        node = int(tree.parent[node])
    return tuple(reversed(words))


def test_every_beginning_is_one_node():
    tree = PrefixTree(SENTENCES)
    expected = {tuple(s[:i]) for s in SENTENCES for i in range(len(s) + 1)}
    found = [beginning_of(tree, node) for node in range(len(tree))]
    assert len(found) == len(set(found)) == len(tree)
    assert set(found) == expected
    assert [beginning_of(tree, leaf) for leaf in tree.leaf] == [tuple(s) for s in SENTENCES]


def test_nodes_stand_by_depth_and_then_by_parent():
    tree = PrefixTree(SENTENCES)
    depths = [len(beginning_of(tree, node)) for node in range(len(tree))]
    assert depths == sorted(depths)
    assert (np.diff(tree.parent) >= 0).all()
    assert (tree.parent[1:] < np.arange(1, len(tree))).all()
    for depth, (first, end) in enumerate(zip(tree.level_starts[:-1], tree.level_starts[1:])):
        assert set(depths[first:end]) == {depth}


def test_children_of_inner_nodes_stand_side_by_side():
    tree = PrefixTree(SENTENCES)
    assert tree.inner.tolist() == sorted(set(tree.parent[1:].tolist()))
    for i, node in enumerate(tree.inner):
        children = np.arange(tree.child_starts[i], tree.child_starts[i + 1])
        assert children.tolist() == [c for c in range(1, len(tree)) if tree.parent[c] == node]
        assert (tree.inner_of_parent[children] == i).all()
