"""Networks as descriptions and weights: the same network again, or refused."""

import copy
import json

import numpy as np
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st
from stored_explainers import Own
from torch import nn

from avcg.errors import ArtifactError
from avcg.hypotheses.predictors import Joined, Stacked
from avcg.io.hypotheses import Packer, Unpacker
from avcg.io.networks import build, describe
from avcg.io.tensors import read_tensors, write_tensors
from avcg.models.dropout_masks import GaussianDropout, Noise
from avcg.models.networks import cnn, mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.sklearn import Beside, MeanProbability

ACTIVATIONS = (
    nn.ReLU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Mish, nn.SELU, nn.Identity, nn.LeakyReLU, nn.ELU, nn.GELU,
    nn.Softplus, nn.PReLU,
)  # fmt: skip


@st.composite
def stacks(draw, width=3, depth=2):
    """A network from (N, width) to (N, some), of layers that are known."""
    layers = []
    for _ in range(draw(st.integers(1, 4))):
        kinds = ["linear", "norm", "batch", "group", "activation", "dropout", "gaussian", "noise", "softmax", "flat"]
        kind = draw(st.sampled_from(kinds + ["inner", "beside", "mean", "ramps"] * (depth > 0)))
        if kind == "linear":
            out = draw(st.integers(1, 4))
            layers.append(nn.Linear(width, out, bias=draw(st.booleans())))
            width = out
        elif kind == "norm":
            affine = draw(st.booleans())
            layers.append(nn.LayerNorm(width, eps=1e-3, elementwise_affine=affine, bias=draw(st.booleans())))
        elif kind == "batch":
            momentum = draw(st.sampled_from([None, 0.3]))
            layers.append(nn.BatchNorm1d(width, momentum=momentum, affine=draw(st.booleans())))
        elif kind == "group":
            layers.append(nn.GroupNorm(1, width, affine=draw(st.booleans())))
        elif kind == "activation":
            layers.append(draw(st.sampled_from(ACTIVATIONS))())
        elif kind == "softmax":
            layers.append(draw(st.sampled_from([nn.Softmax, nn.LogSoftmax]))(dim=-1))
        elif kind == "flat":
            layers.append(nn.Sequential(nn.Unflatten(-1, (width, 1)), nn.Conv1d(width, 2, 1), nn.Flatten()))
            width = 2
        elif kind in ("dropout", "gaussian"):
            layers.append(nn.Dropout(0.3) if kind == "dropout" else GaussianDropout(0.2))
        elif kind == "noise":
            layers.append(Noise(torch.rand(width)))
        elif kind == "ramps":
            ramps = PiecewiseLinearEncoding(torch.rand(5, width), range(draw(st.integers(0, width))), n_steps=2)
            layers.append(ramps)
            width = ramps.n_outputs
        else:
            members = [draw(stacks(width, depth - 1)) for _ in range(1 if kind == "inner" else 2)]
            with torch.no_grad():
                sizes = [member.eval()(torch.zeros(2, width)).shape[1] for member in members]
            if kind == "mean":
                members, sizes = [members[0], copy.deepcopy(members[0])], [sizes[0]] * 2
                shares = np.array([1.0, draw(st.floats(0.1, 5))])
                layers += [Beside(members), MeanProbability(shares)]
                width = sizes[0]
            else:
                layers.append(members[0] if kind == "inner" else Beside(members))
                width = sum(sizes)
    return nn.Sequential(*layers)


PICTURES = {
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=2, padding=1, padding_mode="circular", groups=2), nn.BatchNorm2d(4),
        nn.ReLU(inplace=True), nn.MaxPool2d(2, stride=1, ceil_mode=True, dilation=1), nn.Dropout2d(0.1),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AvgPool2d(3, padding=1, count_include_pad=False), nn.Flatten(), nn.Linear(16, 3),
    ),
    "pooling": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (3, 1), padding="same", dilation=(1, 1), padding_mode="reflect"), nn.GroupNorm(2, 4),
        nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1), nn.LayerNorm(4), nn.Linear(4, 2),
    ),
    "a painter": lambda: nn.Sequential(nn.Upsample(size=(8, 8), mode="bilinear", align_corners=True), nn.Flatten()),
    "a network of the package": lambda: cnn((2, 6, 6), 3, (3, 4), dropout=0.2),
}  # fmt: skip


def anew(make):
    """Built with first weights from a stream of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        return make()


def there_and_back(network):
    description = json.loads(json.dumps(describe(network)))
    state = read_tensors(write_tensors({name: value.numpy() for name, value in network.state_dict().items()}))
    return build(description, {name: torch.from_numpy(value) for name, value in state.items()})


def shake(network):
    """Weights and buffers that are not those of a fresh layer."""
    rng = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for value in [*network.parameters(), *network.buffers()]:
            if value.is_floating_point():
                value.copy_(0.1 + torch.rand(value.shape, generator=rng))
    return network.eval()


class TestNetworks:
    @settings(max_examples=80)
    @over(st.data())
    def test_stacks_of_known_layers_come_back(self, data):
        network = shake(anew(lambda: data.draw(stacks())))
        network = network.double() if data.draw(st.booleans()) else network
        x = torch.linspace(-1, 1, 12, dtype=next(network.parameters(), torch.zeros(1)).dtype).view(4, 3)
        again = there_and_back(network)
        assert repr(again).replace(", inplace=True", "") == repr(network).replace(", inplace=True", "")
        with torch.no_grad():
            try:
                said = network(x)
            except RuntimeError:  # a half of it may have been made a double, which a mask is not
                return
            assert torch.equal(again(x), said)
        assert not any(value.is_meta for value in [*again.parameters(), *again.buffers()])
        assert not any(value.requires_grad for value in again.parameters())
        assert not again.training

    @pytest.mark.parametrize("kind", PICTURES)
    def test_networks_of_pictures_come_back(self, kind):
        network = shake(anew(PICTURES[kind]))
        x = torch.linspace(-2, 2, 2 * 2 * 36).view(2, 2, 6, 6)
        with torch.no_grad():
            assert torch.equal(there_and_back(network)(x), network(x))

    def test_an_embedding_comes_back(self):
        network = shake(anew(lambda: nn.Embedding(5, 3, max_norm=0.5)))
        with torch.no_grad():
            assert torch.equal(there_and_back(network)(torch.arange(5)), network(torch.arange(5)))

    def test_what_is_more_than_its_layers_is_not_described(self):
        class Louder(nn.Linear):
            def forward(self, x):
                return 2 * super().forward(x)

        shared, hooked, patched, own = anew(lambda: [nn.Linear(3, 3) for _ in range(4)])
        hooked.register_forward_hook(lambda *_: None)
        patched.forward = lambda x: x
        tied = anew(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
        tied[1].weight = tied[0].weight
        for network in (
            nn.Sequential(shared, nn.ReLU(), shared), tied, nn.Sequential(hooked), nn.Sequential(patched),
            anew(lambda: Louder(3, 3)), anew(lambda: nn.Sequential(nn.Linear(3, 3), Own(3))),
            anew(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))), nn.Sequential(own, nn.Hardtanh()),
        ):  # fmt: skip
            assert describe(network) is None
        relu = nn.ReLU()
        assert describe(nn.Sequential(own, relu, nn.Dropout(), relu)) is not None

    @pytest.mark.parametrize(
        "description",
        [
            {}, {"layer": "Nonsense"}, {"layer": "Module"}, {"layer": ["Linear"]}, {"layer": "Linear"},
            {"layer": "Linear", "in_features": 3, "out_features": 3},
            {"layer": "Linear", "in_features": 3, "out_features": 2, "bias": True, "code": 1},
            {"layer": "Linear", "in_features": 10**9, "out_features": 10**9, "bias": True},
            {"layer": "Linear", "in_features": 10**30, "out_features": 2, "bias": True},
            {"layer": "Linear", "in_features": "3", "out_features": 2, "bias": True},
            {"layer": "Dropout", "p": 7}, {"layer": "Sequential"}, {"layer": "Sequential", "children": []},
            {"layer": "Sequential", "children": {"a.b": {"layer": "ReLU"}}}, {"layer": "Noise", "shape": [10**12]},
            {"layer": "Sequential", "children": {"": {"layer": "ReLU"}}}, {"layer": "Noise", "shape": [-1]},
            {"layer": "PiecewiseLinearEncoding", "n_inputs": 10**12, "n_steps": 10**12},
            {"layer": "MeanProbability", "members": 10**12},
            {"layer": "MeanProbability", "members": -1}, {"layer": "ReLU"},
        ],
    )  # fmt: skip
    def test_descriptions_that_are_none(self, description):
        state = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
        with pytest.raises(ArtifactError, match="cannot be restored"):
            build(description, state)

    def test_a_network_that_is_more_than_it_seems_is_handed_back(self):
        """A layer with a buffer too many is described as it looks, and found out."""
        network = mlp(3, 2, (4,))
        network[0].register_buffer("more", torch.ones(1))
        network[1].forward = lambda x: x
        probe = torch.linspace(-1, 1, 12).view(4, 3)
        packer = Packer(probe, None)
        assert packer.add("x", Stacked(network, {}))["kind"] == "stacked"
        assert packer.not_stored == [packer_network(packer)]

    def test_short_numbers_are_kept(self):
        network, probe = mlp(3, 2, (4,)).bfloat16(), torch.linspace(-1, 1, 12).view(4, 3)
        one = Stacked(network, {"0.weight": torch.stack([network[0].weight, -network[0].weight])})
        packer = Packer(probe, None)
        packed = packer.add("x", one)
        unpacker = Unpacker(
            {"networks": packer.networks, "boxes": [], "frames": []}, packer.arrays, {}, space=None,
            classes=np.arange(2), returned=[],
        )  # fmt: skip
        assert torch.equal(unpacker.get("x", packed).log_probs(probe), one.log_probs(probe))

    def test_what_sets_share_is_kept_once(self):
        network, probe = mlp(3, 2, (4,)), torch.linspace(-1, 1, 12).view(4, 3)
        packer = Packer(probe, None)
        both = Joined([Stacked(network, {}), Stacked(copy.deepcopy(network), {})])
        packer.add("x", both)
        packer.add("y", both.subset(torch.tensor([1, 0])))
        assert len(packer.networks) == 1
        other = copy.deepcopy(network)
        with torch.no_grad():
            other[0].bias.add_(1.0)
        packer.add("z", Stacked(other, {}))
        assert len(packer.networks) == 2


def packer_network(packer):
    (network,) = packer.not_stored
    return network
