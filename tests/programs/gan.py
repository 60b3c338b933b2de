"""A GAN: two models and two optimisers that take turns; three backward calls a step."""

from __future__ import annotations

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
generator = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 16))
critic = nn.Sequential(nn.Linear(16, 24), nn.LeakyReLU(0.2), nn.Linear(24, 1))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.999))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
binary = nn.BCEWithLogitsLoss()
real, fake = torch.ones(8, 1), torch.zeros(8, 1)
for step in range(args.steps):
    critic.zero_grad()
    loss_real = binary(critic(torch.randn(8, 16) + 2), real)
    loss_real.backward()
    made = generator(torch.randn(8, 8))
    loss_fake = binary(critic(made.detach()), fake)
    loss_fake.backward()
    critic_optimizer.step()

    generator.zero_grad()
    loss_made = binary(critic(made), real)
    loss_made.backward()
    generator_optimizer.step()
    for loss in (loss_real, loss_fake, loss_made):
        print(step, repr(loss.item()), flush=True)
