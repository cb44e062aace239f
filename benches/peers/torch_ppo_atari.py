#!/usr/bin/env python3
"""The step of benches/ppo_atari.rs on PyTorch, images channels last. Reads names of measurements, answers
milliseconds.

Needs: torch and numpy. By hand: echo step | python benches/peers/torch_ppo_atari.py
"""
import sys
import time

import numpy as np
import torch
from torch import nn

BATCH, ACTIONS, CLIP = 256, 4, 0.1


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(4, 32, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(3136, 512),
            nn.ReLU(),
        )
        self.actor = nn.Linear(512, ACTIONS)
        self.critic = nn.Linear(512, 1)

    def forward(self, observations):
        hidden = self.network(observations.contiguous(memory_format=torch.channels_last).float() / 255.0)
        return self.actor(hidden), self.critic(hidden)[:, 0]


def loss_of(agent, batch):
    logits, value = agent(batch["observations"])
    policy = torch.distributions.Categorical(logits=logits)
    ratio = (policy.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    advantages = batch["advantages"]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    policy_loss = torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)).mean()
    near = batch["values"] + (value - batch["values"]).clamp(-CLIP, CLIP)
    errors = torch.max((value - batch["returns"]) ** 2, (near - batch["returns"]) ** 2)
    return policy_loss - 0.01 * policy.entropy().mean() + 0.5 * (0.5 * errors.mean())


def main():
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    agent = Agent().to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
    floats = lambda: torch.from_numpy(rng.standard_normal(BATCH, np.float32))
    batch = dict(
        observations=torch.from_numpy(rng.integers(0, 256, (BATCH, 4, 84, 84), np.uint8)),
        actions=torch.from_numpy(rng.integers(0, ACTIONS, BATCH)),
        log_probs=floats() * 0.05 - 1.386,
        advantages=floats(),
        returns=floats(),
        values=floats(),
    )

    def step():
        optimizer.zero_grad()
        loss = loss_of(agent, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return loss.item()

    step()
    used = 0.0
    for line in sys.stdin:
        if line.strip() == "step":
            start, before = time.perf_counter(), time.process_time()
            step()
            used = time.process_time() - before
            print((time.perf_counter() - start) * 1e3, flush=True)
        elif line.strip() == "processor":
            print(used * 1e3, flush=True)
        else:
            sys.exit(f"{line.strip()} is no measurement")


main()
