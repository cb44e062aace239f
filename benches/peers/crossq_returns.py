#!/usr/bin/env python3
"""Returns of CrossQ by its authors' code: the numbers beside ours on docs/algos/crossq_continuous_action.md.

    python benches/peers/crossq_returns.py CHECKOUT --seeds 1 2 3

CHECKOUT is a clone of the repository adityab/CrossQ. It needs the libraries of its setup.py in their versions
(flax 0.7.4 with jax 0.4.20, stable_baselines3 2.1.0, gymnasium 0.29.1, mujoco 2.3.7, rlax 0.1.6,
tensorflow-probability 0.21.0). The settings are those of its train.py for `-algo crossq`; --n-neurons,
--total-timesteps and --learning-starts differ. A line of JSON for each seed has the mean return of ten
evaluation episodes of the deterministic policy after training.
"""
import argparse
import json
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("checkout", type=Path, help="folder of a clone of adityab/CrossQ")
parser.add_argument("--env-id", default="HalfCheetah-v4")
parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
parser.add_argument("--n-neurons", type=int, default=256, help="units of the critics' layers; train.py has 2048")
parser.add_argument("--total-timesteps", type=int, default=30_000)
parser.add_argument("--learning-starts", type=int, default=5_000)
parser.add_argument("--evaluation-episodes", type=int, default=10)
args = parser.parse_args()
sys.path.insert(0, str(args.checkout))

import gymnasium as gym
import jax
import optax
from sbx import SAC
from sbx.sac.utils import activation_fn
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

for seed in args.seeds:
    start = time.time()
    model = SAC(
        "MlpPolicy",
        Monitor(gym.make(args.env_id)),
        policy_kwargs={
            "activation_fn": activation_fn["relu"],
            "layer_norm": False,
            "batch_norm": True,
            "batch_norm_momentum": 0.99,
            "batch_norm_mode": "brn_actor",
            "dropout_rate": None,
            "n_critics": 2,
            "net_arch": {"pi": [256, 256], "qf": [args.n_neurons, args.n_neurons]},
            "optimizer_class": optax.adam,
            "optimizer_kwargs": {"b1": 0.5, "b2": 0.999},
        },
        gradient_steps=1,
        policy_delay=3,
        crossq_style=True,
        td3_mode=False,
        use_bnstats_from_live_net=False,
        policy_q_reduce_fn=jax.numpy.min,
        learning_starts=args.learning_starts,
        learning_rate=1e-3,
        qf_learning_rate=1e-3,
        tau=1.0,
        gamma=0.99,
        buffer_size=1_000_000,
        seed=seed,
    )
    model.learn(total_timesteps=args.total_timesteps)
    environment = Monitor(gym.make(args.env_id))
    environment.reset(seed=seed + 1000)
    mean, deviation = evaluate_policy(model, environment, args.evaluation_episodes, deterministic=True)
    print(json.dumps({
        "seed": seed, "env_id": args.env_id, "total_timesteps": args.total_timesteps, "n_neurons": args.n_neurons,
        "evaluation_mean_return": round(float(mean), 1), "evaluation_std": round(float(deviation), 1),
        "seconds": round(time.time() - start, 1),
    }), flush=True)
