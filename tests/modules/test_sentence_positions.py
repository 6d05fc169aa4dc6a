import torch

from fairseq_mm.modules.positions import (
    next_positions,
    select_sentence_vectors,
    sentence_positions,
)

TOKENS = torch.tensor([[2, 5, 9, 9, 6, 7, 9], [9, 5, 6, 7, 9, 9, 4]])


def test_separators_start_sentences():
    sentences, positions = sentence_positions(TOKENS, separator=9)
    assert sentences.tolist() == [[0, 0, 1, 2, 2, 2, 3], [0, 0, 0, 0, 1, 2, 2]]
    assert positions.tolist() == [[0, 1, 0, 0, 1, 2, 0], [0, 1, 2, 3, 0, 0, 1]]


def test_one_token_at_a_time_gives_the_same():
    sentences, positions = sentence_positions(TOKENS, separator=9)
    places = None
    for t in range(TOKENS.size(1)):
        places = next_positions(places, TOKENS[:, t], separator=9)
        assert torch.equal(places[0], sentences[:, t])
        assert torch.equal(places[1], positions[:, t])


def test_each_token_gets_the_vector_of_its_sentence_and_the_last_beyond():
    vectors = torch.arange(6.0).view(1, 3, 2)
    rows = select_sentence_vectors(vectors, torch.tensor([[0, 2, 1, 7]]))
    assert rows.tolist() == [[[0, 1], [4, 5], [2, 3], [4, 5]]]
