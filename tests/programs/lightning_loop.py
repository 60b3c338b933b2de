"""A Lightning module and Trainer."""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor, nn


class Task(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))

    def training_step(self, batch: list[Tensor], batch_index: int) -> Tensor:
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.net(inputs), targets)
        print(self.global_step, repr(loss.item()), flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()
lightning.seed_everything(args.seed, verbose=False)
data = torch.utils.data.TensorDataset(torch.randn(4096, 16), torch.randint(0, 4, (4096,)))
trainer = lightning.Trainer(
    max_steps=args.steps, max_epochs=-1, logger=False, enable_checkpointing=False, accelerator="auto",
    enable_progress_bar=False, enable_model_summary=False, devices=1,
)  # fmt: skip
trainer.fit(Task(), torch.utils.data.DataLoader(data, batch_size=8))
