# SPDX-License-Identifier: Apache-2.0
"""Trains the demo model on scikit-learn's bundled 8x8 digits and writes it to the demo repository.
Run by hand: `python -m fused_mlp.models.demo.train_digits [directory]` (needs the extra `train`)."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from fused_mlp.models.demo import REPOSITORY
from fused_mlp.models.importers.from_torch import from_torch
from fused_mlp.models.repository.version_directory import save

SEED = 0
HELD_OUT = 360  # of 1797, a fifth, stratified
EPOCHS = 200
BATCH = 64
PIXEL_MAX = 16.0


def load_split() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training rows and digits, then held-out rows and digits. Rows are 64 raw pixels, 0 to 16."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - the extra `train` is not needed to serve
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    pixels, digits = load_digits(return_X_y=True)
    split = train_test_split(pixels, digits, test_size=HELD_OUT, stratify=digits, random_state=SEED)
    x_train, x_test, y_train, y_test = (torch.from_numpy(part) for part in split)
    return x_train.float(), y_train, x_test.float(), y_test


def shift_images(rows: Tensor, generator: torch.Generator) -> Tensor:
    """Move each image by -1, 0 or 1 pixels in both directions, filling with background: (rows, 64)."""
    padded = nn.functional.pad(rows.view(-1, 8, 8), (1, 1, 1, 1))
    dy, dx = torch.randint(0, 3, (2, len(rows)), generator=generator)
    steps = torch.arange(8)
    image = torch.arange(len(rows))
    return padded[
        image[:, None, None], (dy[:, None] + steps)[:, :, None], (dx[:, None] + steps)[:, None, :]
    ].reshape(-1, 64)


def train(x: Tensor, y: Tensor) -> nn.Sequential:
    """64-128-128-10 relu. Deterministic: seeded, on the CPU, on one thread."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(SEED)
    body = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 128), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(body.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    for _ in range(EPOCHS):
        order = torch.randperm(len(x), generator=generator)
        for start in range(0, len(x), BATCH):
            batch = order[start : start + BATCH]
            # Half of the images stay where they are: the held-out ones are centred as well.
            stays = torch.rand(len(batch), 1, generator=generator) < 0.5
            images = torch.where(stays, x[batch], shift_images(x[batch], generator))
            loss = nn.functional.cross_entropy(body(images / PIXEL_MAX), y[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        schedule.step()
    return body.eval()


def fold_pixel_scale(body: nn.Sequential) -> None:
    """Let the first layer divide by 16 (exact in floating point), so that raw pixels can be sent."""
    first = body[0]
    assert isinstance(first, nn.Linear)
    with torch.no_grad():
        first.weight.div_(PIXEL_MAX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, nargs="?", default=REPOSITORY / "digits" / "1")
    directory = parser.parse_args().directory

    x_train, y_train, x_test, y_test = load_split()
    body = train(x_train, y_train)
    fold_pixel_scale(body)
    mlp = from_torch(nn.Sequential(body, nn.Softmax(dim=-1)))

    with torch.inference_mode():
        probabilities = mlp.to_torch()(x_test)
    right = probabilities.argmax(1) == y_test
    accuracy = f"{right.double().mean():.2%} of {len(y_test)} held-out images right"
    # The image it is surest of among those it gets right: a demonstration, not a trap.
    shown = int((probabilities.max(1).values * right).argmax())
    save(
        mlp.annotated(
            labels=[str(digit) for digit in range(10)],
            description=(
                "Handwritten digits, 8x8 grey pixels of 0 to 16, row by row. "
                f"The example is a held-out image of a {y_test[shown]}."
            ),
            example=x_test[shown].tolist(),
            source=f"models/demo/train_digits.py, scikit-learn's digits, seed {SEED}, {accuracy}",
        ),
        directory,
    )
    print(f"{directory}: {accuracy}; the example shows a {y_test[shown]}")


if __name__ == "__main__":
    main()
