#!/usr/bin/env python3
"""Returns of QRDQN of Stable-Baselines3's contributions: the numbers beside ours on docs/algos/qrdqn.md.

    python benches/peers/sb3_qrdqn_returns.py --seeds 1 2 3

It needs sb3-contrib and gymnasium. The settings are those of rl-baselines3-zoo for CartPole, for 100,000
timesteps. A line of JSON for each seed has the mean return of the last 100 episodes of training, in which 4% of
the actions are random.
"""
import argparse
import json
import time

import gymnasium as gym
import numpy as np
from sb3_contrib import QRDQN
from stable_baselines3.common.monitor import Monitor

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
parser.add_argument("--total-timesteps", type=int, default=100_000)
args = parser.parse_args()
for seed in args.seeds:
    start = time.time()
    environment = Monitor(gym.make("CartPole-v1"))
    model = QRDQN(
        "MlpPolicy",
        environment,
        learning_rate=2.3e-3,
        batch_size=64,
        buffer_size=100_000,
        learning_starts=1_000,
        gamma=0.99,
        target_update_interval=10,
        train_freq=256,
        gradient_steps=128,
        exploration_fraction=0.16,
        exploration_final_eps=0.04,
        policy_kwargs={"net_arch": [256, 256], "n_quantiles": 10},
        seed=seed,
    )
    model.learn(args.total_timesteps)
    returns = environment.get_episode_rewards()
    print(json.dumps({
        "seed": seed, "total_timesteps": args.total_timesteps, "episodes": len(returns),
        "mean_return": round(float(np.mean(returns[-100:])), 1), "seconds": round(time.time() - start, 1),
    }), flush=True)
