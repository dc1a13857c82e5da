"""Random numbers and rows from seeds, and a small trained classifier."""

import torch
from torch import nn

from avcg.models.networks import cnn, mlp


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=rng(seed), dtype=dtype)


class ForkedNetwork(nn.Module):
    """No stack of layers: batch norm, layer norm, a shortcut and two heads added up."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.enter = nn.Linear(5, 8)
            self.norm = nn.BatchNorm1d(8)
            self.inner = nn.Linear(8, 8)
            self.layer = nn.LayerNorm(8)
            self.one, self.two = nn.Linear(8, 3), nn.Linear(8, 3)
        self.norm.running_mean.fill_(0.2)
        self.norm.running_var.fill_(1.7)

    def forward(self, x):
        h = torch.tanh(self.norm(self.enter(x)))
        h = h + torch.tanh(self.layer(self.inner(h)))
        return self.one(h) + self.two(h.square())


class ConvNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Dropout2d(0.3), nn.Flatten())
            self.head = nn.Linear(4 * 4 * 4, 3)

    def forward(self, x):
        return self.head(self.body(x))


NETWORKS = {
    "linear": (lambda: mlp(5, 3, ()), (5,)),
    "perceptron": (lambda: mlp(5, 3, (8, 6), dropout=0.3), (5,)),
    "tanh": (lambda: nn.Sequential(mlp(5, 8, ()), nn.Tanh(), mlp(8, 3, ())), (5,)),
    "batch norm, layer norm, shortcut": (ForkedNetwork, (5,)),
    "convolutions": (ConvNetwork, (2, 6, 6)),
    "a small cnn": (lambda: cnn((2, 6, 6), 3, (4,), units=5, dropout=0.2), (2, 6, 6)),
}


def perturbed(network, count, seed=1):
    """Parameters of several networks near one."""
    return {
        name: value.detach() + 0.3 * torch.randn((count, *value.shape), generator=rng(seed))
        for name, value in network.named_parameters()
    }
