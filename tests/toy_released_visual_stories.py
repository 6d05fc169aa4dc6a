"""Small models in the layouts of GLAC Net's and Transtory-XL's releases, sentence by sentence."""

import pickle
import sys
import types
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

D, F_IMAGE, H, E = 5, 12, 8, 8  # features, projected images, LSTM, embeddings
SIGNS = ["<pad>", "<start>", "<end>", "<unk>"]
SEGMENT, MEMORY = 49, 50


def random_weights(module, seed=3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, x in module.state_dict().items():
            if x.is_floating_point() and not name.endswith(".pe"):
                x.copy_(torch.randn(x.shape, generator=generator) * 0.4)
            if name.endswith("running_var"):
                x.abs_().add_(0.5)
    return module.eval()


class Images(nn.Module):
    def __init__(self, feature_dim=D):
        super().__init__()
        self.linear = nn.Linear(feature_dim, F_IMAGE)
        self.bn = nn.BatchNorm1d(F_IMAGE, momentum=0.01)

    def forward(self, features):
        return self.bn(self.linear(features))


class GlacEncoder(nn.Module):
    def __init__(self, feature_dim=D):
        super().__init__()
        self.cnn = Images(feature_dim)
        self.lstm = nn.LSTM(F_IMAGE, H, 2, batch_first=True, bidirectional=True)
        self.linear = nn.Linear(F_IMAGE + 2 * H, 2 * H)
        self.bn = nn.BatchNorm1d(2 * H, momentum=0.01)

    def forward(self, features):
        local = self.cnn(features)
        out, _ = self.lstm(local.unsqueeze(0))
        return self.bn(self.linear(torch.cat([local, out[0]], dim=1)))


class GlacDecoder(nn.Module):
    """With ``slices`` above 1 the attention to slices of Transtory's code."""

    def __init__(self, words, slices=1):
        super().__init__()
        self.linear = nn.Linear(2 * H, slices * H)
        self.rnn = nn.Module()
        self.rnn.embed = nn.Embedding(words, E)
        self.rnn.lstm = nn.LSTM(H + E, H, 2, batch_first=True)
        self.rnn.linear = nn.Linear(H, words)
        self.slices = slices

    def forward(self, vectors, sentences):
        state, found = None, []
        for vector, words in zip(torch.relu(self.linear(vectors)), sentences):
            slices, query, logits = vector.view(self.slices, H), torch.zeros(H), []
            for word in self.rnn.embed(torch.tensor(words)):
                weights = (slices @ query).softmax(0)
                x = torch.cat([weights @ slices, word])
                output, state = self.rnn.lstm(x.view(1, 1, -1), state)
                query = output[0, 0]
                logits.append(self.rnn.linear(query))
            found.append(torch.stack(logits))
        return found


class Positions(nn.Module):
    def __init__(self, dim):
        super().__init__()
        places = torch.arange(60.0).unsqueeze(1)
        rates = 10000 ** (-torch.arange(0, dim, 2).float() / dim)
        pe = torch.stack([(places * rates).sin(), (places * rates).cos()], dim=-1)
        self.register_buffer("pe", pe.flatten(1).unsqueeze(1))


class TransformerDecoder(nn.Module):
    """Decoder of Transtory-decoder."""

    def __init__(self, words):
        super().__init__()
        self.linear = nn.Linear(2 * H, E)
        self.transformer = nn.Module()
        self.transformer.encoder = nn.Embedding(words, E)
        self.transformer.pos_encoder = Positions(E)
        layer = nn.TransformerDecoderLayer(E, 4, 10)
        self.transformer.transformer_decoder = nn.TransformerDecoder(layer, 1)
        self.transformer.decoder = nn.Linear(E, words)

    def forward(self, vectors, sentences):
        found = []
        for vector, words in zip(self.linear(vectors), sentences):
            memory = vector.relu().view(1, 1, -1)
            x = self.transformer.encoder(torch.tensor(words)).unsqueeze(1)
            x = x + self.transformer.pos_encoder.pe[: len(words)]
            mask = nn.Transformer.generate_square_subsequent_mask(len(words))
            x = self.transformer.transformer_decoder(x, memory, tgt_mask=mask)
            found.append(self.transformer.decoder(x.squeeze(1)))
        return found


class XLEncoder(nn.Module):
    def __init__(self, feature_dim=D):
        super().__init__()
        self.cnn = Images(feature_dim)

    def forward(self, features):
        return self.cnn(features)


class XLLayer(nn.Module):
    """Transformer-XL's, by the names of Hugging Face's; heads one by one."""

    def __init__(self, dim, heads, head_dim):
        super().__init__()
        attention = self.dec_attn = nn.Module()
        attention.qkv_net = nn.Linear(dim, 3 * heads * head_dim, bias=False)
        attention.o_net = nn.Linear(heads * head_dim, dim, bias=False)
        attention.r_net = nn.Linear(dim, heads * head_dim, bias=False)
        attention.layer_norm = nn.LayerNorm(dim)
        attention.r_w_bias = nn.Parameter(torch.empty(heads, head_dim))
        attention.r_r_bias = nn.Parameter(torch.empty(heads, head_dim))
        self.pos_ff = nn.Module()
        self.pos_ff.CoreNet = nn.Sequential(
            nn.Linear(dim, 11), nn.ReLU(), nn.Identity(), nn.Linear(11, dim)
        )
        self.pos_ff.layer_norm = nn.LayerNorm(dim)

    def forward(self, x, memory, inv_freq):
        attention = self.dec_attn
        heads, head_dim = attention.r_w_bias.shape
        q, k, v = attention.qkv_net(torch.cat([memory, x])).chunk(3, dim=-1)
        q = q[len(memory) :]
        read = torch.zeros(len(x), heads * head_dim)
        for i in range(len(x)):
            # as many words as there are places in the memory, the word itself among them
            seen = range(i + len(memory) - MEMORY + 1, i + len(memory) + 1)
            angles = torch.tensor([[float(i + len(memory) - j)] for j in seen]) * inv_freq
            distances = attention.r_net(torch.cat([angles.sin(), angles.cos()], dim=-1))
            for h in range(heads):
                part = slice(h * head_dim, (h + 1) * head_dim)
                keys, query = k[list(seen), part], q[i, part]
                scores = keys @ (query + attention.r_w_bias[h])
                scores = scores + distances[:, part] @ (query + attention.r_r_bias[h])
                read[i, part] = (scores / head_dim**0.5).softmax(0) @ v[list(seen), part]
        x = attention.layer_norm(x + attention.o_net(read))
        return self.pos_ff.layer_norm(x + self.pos_ff.CoreNet(x))


class XLDecoder(nn.Module):
    def __init__(self, words, dim=6, heads=2, head_dim=3):
        super().__init__()
        self.dim = dim
        self.fuse_linear = nn.Linear(dim + F_IMAGE, dim)
        self.classifier = nn.Linear(dim, words)
        inner = self.transformer_xl = nn.Module()
        inner.word_emb = nn.Module()
        inner.word_emb.emb_layers = nn.ModuleList([nn.Embedding(words, E)])
        inner.word_emb.emb_projs = nn.ParameterList([nn.Parameter(torch.empty(dim, E))])
        inner.layers = nn.ModuleList(XLLayer(dim, heads, head_dim) for _ in range(2))
        inner.pos_emb = nn.Module()
        inner.pos_emb.register_buffer("inv_freq", 10000 ** (-torch.arange(0.0, dim, 2) / dim))

    def forward(self, vectors, sentences):
        inner, found = self.transformer_xl, []
        inner.pos_emb.inv_freq.copy_(10000 ** (-torch.arange(0.0, self.dim, 2) / self.dim))
        memories = [torch.zeros(MEMORY, self.dim) for _ in inner.layers]
        for vector, words in zip(vectors, sentences):
            image = vector.expand(MEMORY, -1)
            memories = [self.fuse_linear(torch.cat([x, image], dim=1)) for x in memories]
            padded = torch.tensor(words + [0] * (SEGMENT - len(words)))
            x = F.linear(inner.word_emb.emb_layers[0](padded), inner.word_emb.emb_projs[0])
            x = x * self.dim**0.5
            for i, layer in enumerate(inner.layers):
                before = memories[i]
                memories[i] = torch.cat([before, x])[-MEMORY:]
                x = layer(x, before, inner.pos_emb.inv_freq)
            found.append(self.classifier(x)[: len(words)])
        return found


def model_of(arch, words, feature_dim=D):
    """Encoder and decoder of an architecture."""
    encoder = XLEncoder if arch == "transtory_xl" else GlacEncoder
    decoder = {
        "glac": lambda: GlacDecoder(words),
        "glac_decoder_attention": lambda: GlacDecoder(words, slices=3),
        "transtory_decoder": lambda: TransformerDecoder(words),
        "transtory_xl": lambda: XLDecoder(words),
    }[arch]()
    return random_weights(encoder(feature_dim)), random_weights(decoder, seed=4)


def write_released(folder, encoder, decoder, words, *, number=7):
    """``encoder-N.pkl``, whose path is returned, ``decoder-N.pkl`` and ``vocab.pkl``."""
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    torch.save(decoder.state_dict(), folder / f"decoder-{number}.pkl")
    torch.save(encoder.state_dict(), folder / f"encoder-{number}.pkl")
    write_story_vocabulary(folder / "vocab.pkl", [*SIGNS, *words])
    return folder / f"encoder-{number}.pkl"


def write_story_vocabulary(path, words):
    """An object of the class of their script ``build_vocab``."""
    module = types.ModuleType("build_vocab")
    kind = type("Vocabulary", (), {"__module__": "build_vocab"})
    module.Vocabulary = kind
    vocabulary = kind()
    vocabulary.word2idx = {word: i for i, word in enumerate(words)}
    vocabulary.idx2word, vocabulary.idx = dict(enumerate(words)), len(words)
    sys.modules["build_vocab"] = module
    try:
        path.write_bytes(pickle.dumps(vocabulary))
    finally:
        del sys.modules["build_vocab"]
