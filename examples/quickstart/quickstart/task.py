"""Task: a small network, the digits, training and testing."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SmallNet(nn.Module):
    """Network of a convolution and a fully connected layer, for grey images of 8x8 pixels in ten classes."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 8, kernel_size=3, padding=1)
        self.fc = nn.Linear(8 * 8 * 8, 10)

    def forward(self, x):
        """Return class scores."""
        return self.fc(torch.sigmoid(self.conv(x)).flatten(1))


def digits():
    """Return all images in [0, 1] as (1797, 1, 8, 8) and their labels, in an order that mixes the classes."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.tensor(images[order] / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels[order])


def places(partition_id, images):
    """Return the indices of a client's images among all; no client has the last 300."""
    return np.arange(partition_id * images, (partition_id + 1) * images) % 1497


def load_data(partition_id, images, batch_size):
    """Return loaders of a client's training images and of the test images, on which no client trains."""
    x, y = digits()
    indices = places(partition_id, images)
    train_set = TensorDataset((x[indices] - 0.5) / 0.5, y[indices])
    test_set = TensorDataset((x[-300:] - 0.5) / 0.5, y[-300:])
    return DataLoader(train_set, batch_size, shuffle=True), DataLoader(test_set, 300)


def train(net, loader, epochs, lr):
    """Train in place; return the mean loss."""
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=lr)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = criterion(net(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


def test(net, loader):
    """Return loss and accuracy."""
    net.eval()
    loss, correct, count = 0.0, 0, 0
    with torch.no_grad():
        for images, labels in loader:
            scores = net(images)
            loss += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
            correct += (scores.argmax(1) == labels).sum().item()
            count += len(labels)
    return loss / count, correct / count
