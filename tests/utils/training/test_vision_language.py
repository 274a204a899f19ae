"""What the trainings of vision-language models share."""

import torch

from utils.training import vision_language


def test_a_tokenizer_of_bytes_says_what_it_reads():
    special = ["<end>", "<picture>"]
    bpe = vision_language.byte_level_bpe(["a red star", "a red circle"] * 9, 300, special)
    assert [bpe.token_to_id(token) for token in special] == [0, 1] and bpe.get_vocab_size() <= 300
    for text in ("a red star", "ein grüner Kreis 圆"):
        assert bpe.decode(bpe.encode(text).ids) == text
    assert len(bpe.encode(" red").ids) == 1 and bpe.encode("<picture>").ids == [1]


def test_rows_are_padded_at_their_ends():
    batch = vision_language.padded([([5, 6, 7], [0, 1, 1]), ([8], [1])], 9)
    assert batch["ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["learned"].tolist() == [[False, True, True], [True, False, False]]


def test_points_count_by_their_class():
    """One kind of two classes and one of three; each error by hand."""
    logits = torch.tensor([[2.0, 0.0, 0.0, 1.0, 0.0], [2.0, 0.0, 0.0, 1.0, 0.0], [0.0, 3.0, 5.0, 0.0, 0.0]])
    truth = torch.tensor([[0, 1], [1, vision_language.NOWHERE], [1, 0]])
    first = torch.tensor([2.0, 0.0]).logsumexp(0)
    errors = torch.stack([first - 2, first, torch.tensor([0.0, 3.0]).logsumexp(0) - 3])
    kind = (errors * torch.tensor([0.1, 1.0, 1.0])).sum() / 2.1
    second = torch.tensor([0.0, 1.0, 0.0]).logsumexp(0) - 1, torch.tensor([5.0, 0.0, 0.0]).logsumexp(0) - 5
    other = (second[0] + 0.1 * second[1]) / 1.1
    assert torch.allclose(vision_language.point_cross_entropy(logits, truth, (2, 3)), kind + other, atol=1e-6)


def test_a_name_is_found_where_its_embedding_is_contained():
    words, names = torch.eye(6), torch.tensor([1, 3])
    output = torch.stack([8 * words[1], 8 * words[3], 0 * words[0]])  # two positions with a name, one without
    present = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    right = vision_language.naming_loss(output, words, names, present)
    assert right < 0.1 < vision_language.naming_loss(output, words, names, present.flip(1))
    where = torch.tensor([True, False, False])
    first = vision_language.naming_loss(output[:1], words, names, present[:1])
    assert vision_language.naming_loss(output, words, names, present, where) == first
