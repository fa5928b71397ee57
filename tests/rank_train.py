"""Train on drawn images and extract their features, under torchrun or alone; both are written to the given folder."""

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from faverage.vision import Evaluate, hold_out, join, store_features, train_base
from helpers_vision import drawn


class Smooth(nn.Module):
    """No kinks, where rounding would decide between two ways: what differs after many steps is no rounding."""

    dimension = 16

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, stride=2, bias=False), nn.Conv2d(16, 16, 3, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(16) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norms[0](self.first(x)))
        return nn.functional.gelu(self.norms[1](self.second(x))).mean((2, 3))


def work(out: Path) -> None:
    team = join(device="cpu")
    images, labels = drawn(160)
    kept = hold_out(labels, per_class=4).tolist()
    assert team.tell(kept) == kept, "the processes keep other images for rehearsal"
    rows = [i for i in range(160) if i not in kept]
    torch.manual_seed(team.rank)  # the first process's weights count
    options = {"epochs": 4, "batch_size": 48, "lr": 0.05, "device": "cpu", "indices": rows}
    model = train_base(images, labels, backbone=Smooth(), team=team, **options)
    features = {"folder": out / "features", "transform": Evaluate(16), "part_rows": 30}
    store_features(model.backbone, images, team=team, **features)
    if team.first:
        torch.save({**model.backbone.state_dict(), "head": model.head_weight}, out / "model.pt")
        about = {"ran": model.config["ran"], "history": model.history, "norm": type(model.backbone.norms[0]).__name__}
        (out / "about.json").write_text(json.dumps(about))
    team.close()


if __name__ == "__main__":
    work(Path(sys.argv[1]))
