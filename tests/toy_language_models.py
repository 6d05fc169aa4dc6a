"""Tiny models of transformers and open_clip with random weights, as a user's folders and files."""

import json

import torch

WORDS = [
    *("a", "the", "dog", "cat", "runs", "sits", "on", "red", "blue", "bench", "grass", "two"),
    *("men", "brown", "##s", "with", "and"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLIP = "tiny-clip"
SEED = 9  # cosines of both signs


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


def save_byte_level(folder, transformers, name):
    """A RoBERTa or a GPT-2 of 16 dimensions, with byte-level BPE."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir()
    trained = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "<|endoftext|>"]
    trained.train_from_iterator([" ".join(WORDS)] * 3, vocab_size=290, special_tokens=special)
    trained.save_model(str(folder))
    sizes = {"vocab_size": trained.get_vocab_size(), "initializer_range": 0.5}
    torch.manual_seed(SEED)
    if name == "Roberta":
        sizes.update(hidden_size=16, num_hidden_layers=2, num_attention_heads=2)
        sizes.update(intermediate_size=24, max_position_embeddings=14)
    else:
        sizes.update(n_embd=16, n_layer=2, n_head=2, n_positions=12)
    config = getattr(transformers, f"{name}Config")(**sizes)
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    tokenizer = getattr(transformers, f"{name}Tokenizer")
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer(*files).save_pretrained(folder)
    return folder


def save_clip(folder, open_clip):
    """A CLIP of 10 dimensions: its config is known to open_clip, its weights are in a file."""
    folder.mkdir()
    vision = {"image_size": 32, "layers": 1, "width": 24, "head_width": 12, "patch_size": 16}
    # open_clip's tokenizer has so many tokens
    text = {"context_length": 12, "vocab_size": 49408, "width": 8, "heads": 2, "layers": 1}
    config = {"embed_dim": 10, "vision_cfg": vision, "text_cfg": text}
    (folder / f"{CLIP}.json").write_text(json.dumps(config))
    open_clip.add_model_config(folder)
    torch.manual_seed(SEED)
    model = open_clip.create_model(CLIP).eval()
    # with the small initial weights, all texts would have nearly the same vector
    attention = model.transformer.resblocks[0].attn
    attention.in_proj_weight.data.mul_(10)
    attention.out_proj.weight.data.mul_(100)
    torch.save(model.state_dict(), folder / "clip.pt")
    return folder / "clip.pt"
