"""Tiny models of transformers with random weights, as a user's folders."""

import torch

WORDS = [
    *("a", "the", "dog", "cat", "runs", "sits", "on", "red", "blue", "bench", "grass", "two"),
    *("men", "brown", "##s", "with", "and"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SEED = 9


def save_bert(folder, transformers, *, layers=3):
    """A BERT of 16 dimensions, with its vocabulary."""
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS]) + "\n")
    config = transformers.BertConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        # with the default of .02 all vectors are nearly the same
        initializer_range=0.5,
    )
    torch.manual_seed(SEED)
    transformers.BertModel(config).save_pretrained(folder)
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


def save_clip(folder, transformers):
    """A CLIP of 10 dimensions, with byte-level BPE."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    trained = ByteLevelBPETokenizer(end_of_word_suffix="</w>")
    special = ["<|startoftext|>", "<|endoftext|>"]
    trained.train_from_iterator([" ".join(WORDS)] * 3, vocab_size=600, special_tokens=special)
    trained.save_model(str(folder))
    tokenizer = transformers.CLIPTokenizer(
        str(folder / "vocab.json"), str(folder / "merges.txt"), model_max_length=16
    )
    sizes = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1}
    sizes.update(num_attention_heads=2, projection_dim=10)
    text = {**sizes, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
    text.update(eos_token_id=tokenizer.eos_token_id, bos_token_id=tokenizer.bos_token_id)
    vision = {**sizes, "image_size": 32, "patch_size": 16}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=10)
    torch.manual_seed(4)  # cosines of both signs
    model = transformers.CLIPModel(config)
    # with the small initial weights, all texts would have nearly the same vector
    model.text_model.encoder.layers[0].self_attn.v_proj.weight.data.mul_(20)
    model.text_model.encoder.layers[0].self_attn.out_proj.weight.data.mul_(20)
    model.text_model.embeddings.token_embedding.weight.data.mul_(20)
    model.save_pretrained(folder)
    images = transformers.CLIPImageProcessor(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder
