"""The training of `trainers` in PyTorch: a loop over members and steps, as people usually write it.

Parameters are NumPy arrays in the layout of our networks, so both can start from the same ones.
"""

import numpy as np
import torch
from torch import nn


def perceptrons(x: np.ndarray, y: np.ndarray, width: int, members: int, steps: int, rate: float) -> list:
    """Train all members and return their parameters."""
    inputs, labels = torch.tensor(x), torch.tensor(y)
    positions = x.shape[1]
    shapes = [(positions, width, (2 / positions) ** 0.5), (width, positions, width**-0.5)]
    rng = np.random.default_rng(0)
    drawn = [[rng.normal(size=(a, b)).astype("float32") for a, b, _ in shapes] for _ in range(members)]
    return [perceptron(inputs, labels, weights, steps, rate) for weights in drawn]


def perceptron(x: torch.Tensor, y: torch.Tensor, weights: list, steps: int, rate: float) -> list:
    """Train one member, from initial to final parameters W of our networks.

    Our layers multiply with V = W · scale. Descent at rate η for W is descent at rate η · scale² for V, which is what
    PyTorch trains.
    """
    (positions, width), _ = (weight.shape for weight in weights)
    scales = (2 / positions) ** 0.5, width**-0.5
    layers = nn.Linear(positions, width, bias=False), nn.Linear(width, positions, bias=False)
    for layer, weight, scale in zip(layers, weights, scales, strict=True):
        layer.weight.data = torch.tensor(weight.T * np.float32(scale)).contiguous()
    net = nn.Sequential(layers[0], nn.ReLU(), layers[1])
    groups = [{"params": layer.parameters(), "lr": rate * s**2} for layer, s in zip(layers, scales, strict=True)]
    optimizer = torch.optim.SGD(groups)
    for _ in range(steps):
        optimizer.zero_grad()
        (nn.functional.mse_loss(net(x), y) / 2).backward()
        optimizer.step()
    return [layer.weight.detach().numpy().T / s for layer, s in zip(layers, scales, strict=True)]


def cnn(params: dict | None = None, *, batch_norm: bool = False) -> nn.Module:
    """Build the paper's convolutional network, with parameters of ours or with its own random ones.

    Args:
        params: convolutional and dense parameters of ours; those of batch normalisation are 1 and 0 at first.
        batch_norm: whether convolutions are followed by batch normalisation.
    """
    layers: list[nn.Module] = []
    for channels, outputs in ((1, 6), (6, 16)):
        norm = [nn.BatchNorm2d(outputs)] if batch_norm else []
        layers += [nn.Conv2d(channels, outputs, 3), *norm, nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
    net = nn.Sequential(*layers)
    trained = [number for number, layer in enumerate(layers) if isinstance(layer, nn.Conv2d | nn.Linear)]
    names = dict(zip(trained, ("Conv_0", "Conv_1", "Dense_0", "Dense_1", "Dense_2"), strict=True))
    for number, name in names.items() if params is not None else ():
        kernel, bias = (np.array(params[name][part]) for part in ("kernel", "bias"))
        if name == "Dense_0":  # We flatten images with channels last, PyTorch with channels first.
            kernel = kernel.reshape(5, 5, 16, 120).transpose(2, 0, 1, 3).reshape(400, 120)
        axes = (3, 2, 0, 1) if kernel.ndim == 4 else (1, 0)
        net[number].weight.data = torch.tensor(kernel.transpose(axes)).contiguous()
        net[number].bias.data = torch.tensor(bias)
    return net


def train_cnn(net: nn.Module, pictures: torch.Tensor, labels: torch.Tensor, batches: list, rate: float) -> None:
    """Take steps of Adam. Each batch is given by the indices of its samples."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    for chosen in batches:
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(pictures[chosen]), labels[chosen]).backward()
        optimizer.step()


def convolutional(
    x: np.ndarray, y: np.ndarray, members: int, epochs: int, batch: int, rate: float, *, batch_norm: bool = False
) -> None:
    """Train all members, one after the other."""
    pictures, labels = torch.tensor(x).movedim(-1, 1).contiguous(), torch.tensor(y).long()
    for _ in range(members):
        orders = [torch.randperm(len(x)) for _ in range(epochs)]
        train_cnn(
            cnn(batch_norm=batch_norm),
            pictures,
            labels,
            [part for order in orders for part in order.split(batch)],
            rate,
        )
