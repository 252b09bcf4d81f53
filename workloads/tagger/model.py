"""The network of the tagger."""

from torch import nn


class Tagger(nn.Module):
    """A transformer encoder with one label for each token."""

    def __init__(self, vocabulary, tags, width, layers, heads):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, tags)

    def forward(self, tokens):
        return self.head(self.encoder(self.embedding(tokens)))
