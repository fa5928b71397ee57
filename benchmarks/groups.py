"""What the structure ``block`` is worth: models that confuse classes inside planted groups, each in its own way.

    python benchmarks/groups.py          # about three minutes

Each of K models takes some classes of a group for one another, always in the same way, so that a class's weight has to
read other classes of its group to undo it. Every structure is trained on the same rows with the same settings, the
epoch chosen on a fifth of them, and judged on new rows. "By confusion" has groups from ``groups_by_confusion`` on the
training rows, "at random" groups of the same size that say nothing.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch

from faverage import AFA, fit, groups_by_confusion

Array = np.ndarray[Any, Any]
CLASSES, MODELS, SIZE = 200, 5, 10


def draw(rows: int, group: Array, swaps: Array, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores ``(n, K, N)`` of models that say ``swaps[k, y]`` and are unsure inside the group; and labels."""
    y = rng.integers(0, CLASSES, rows)
    logits = rng.standard_normal((rows, MODELS, CLASSES))
    for k in range(MODELS):
        logits[:, k] += 2.0 * (group[y][:, None] == group)
        logits[np.arange(rows), k, swaps[k, y]] += 2.0
    return torch.from_numpy(logits).float().softmax(-1), torch.from_numpy(y)


def main() -> None:
    """Train every structure, print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="2000,8000", help="numbers of training rows")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    group = rng.permutation(CLASSES) // SIZE
    swaps = np.tile(np.arange(CLASSES), (MODELS, 1))
    for k in range(MODELS):
        for g in range(CLASSES // SIZE):
            members = rng.permutation(np.flatnonzero(group == g))[: SIZE // 2]
            swaps[k, members] = np.roll(members, 1)
    test, truth = draw(4000, group, swaps, rng)
    print("| training rows | structure | parameters | log-loss | accuracy, % |")
    print("|---:|---|---:|---:|---:|")
    for rows in map(int, options.rows.split(",")):
        scores, y = draw(rows, group, swaps, rng)
        found = groups_by_confusion(scores.numpy(), y.numpy(), SIZE)
        structures = {
            "scalar": {"structure": "scalar"},
            "per_class": {"structure": "per_class"},
            "block, by confusion": {"structure": "block", "groups": found},
            "block, at random": {"structure": "block", "groups": rng.permutation(CLASSES) // SIZE},
            "full": {"structure": "full"},
        }
        for name, structure in structures.items():
            network = AFA(MODELS, CLASSES, **structure)  # type: ignore[arg-type]
            fit(network, scores, y, epochs=60, lr=0.02, validation=0.2, patience=5)
            with torch.no_grad():
                log_prob = network.log_prob(test)
            loss = -log_prob.gather(1, truth[:, None]).mean().item()
            right = 100 * (log_prob.argmax(1) == truth).float().mean().item()
            size = sum(p.numel() for p in network.parameters())
            print(f"| {rows} | {name} | {size:,} | {loss:.3f} | {right:.1f} |", flush=True)


if __name__ == "__main__":
    main()
