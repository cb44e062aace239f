#!/usr/bin/env python3
"""Returns of PureJaxRL's own ppo_rnn.py and dpo_continuous_action.py: the numbers beside ours on the pages
docs/algos/ppo_anakin_gru.md and docs/algos/dpo_anakin.md. PureJaxRL publishes plots only.

    python benches/peers/purejaxrl_returns.py CHECKOUT rnn --seeds 1 2 3
    python benches/peers/purejaxrl_returns.py CHECKOUT rnn-positions --seeds 1 2 3
    python benches/peers/purejaxrl_returns.py CHECKOUT dpo --seeds 1 2 3 --total-timesteps 300000

CHECKOUT is a clone of the repository luchris429/purejaxrl. It needs: jax 0.10.2, flax, optax, distrax,
gymnax 0.0.9. A line of JSON for each seed has the mean return of the last 100 episodes of training.

rnn: the script's own settings, CartPole-v1 for 500,000 timesteps. rnn-positions: the same without the two
velocities in observations. dpo: Pendulum-v1 with the settings of the command on the page of dpo_anakin, hidden
layers of 64 units instead of 256, and actions clipped to the environment's bounds of 2 instead of 1.
"""
import argparse
import json
import sys
import time
import types
from pathlib import Path

import gymnax
import jax
import numpy as np


def load(checkout: Path, name: str, replacements: dict[str, str]) -> types.ModuleType:
    """The script `name` of the checkout, with `replacements` in its text. Brax and Navix, which its wrappers
    import, are not used by these runs: empty modules stand for them."""
    for missing in ("brax", "brax.envs", "brax.envs.wrappers", "brax.envs.wrappers.training", "navix"):
        sys.modules[missing] = types.ModuleType(missing)
    sys.modules["brax"].envs = sys.modules["brax.envs"]
    sys.modules["brax.envs.wrappers.training"].EpisodeWrapper = None
    sys.modules["brax.envs.wrappers.training"].AutoResetWrapper = None
    folder = checkout / "purejaxrl"
    sys.path.insert(0, str(folder))
    text = (folder / name).read_text()
    for old, new in replacements.items():
        if old not in text:
            sys.exit(f"{folder / name} does not contain {old!r}: the checkout is of another version")
        text = text.replace(old, new)
    module = types.ModuleType(name.removesuffix(".py"))
    exec(compile(text, name, "exec"), module.__dict__)
    return module


def positions_only(env, params):
    """CartPole whose observations are the position of the cart and the angle of the pole."""

    class Positions(type(env)):
        def get_obs(self, state, params=None, key=None):
            return jax.numpy.array([state.x, state.theta])

        def observation_space(self, params):
            space = super().observation_space(params)
            return gymnax.environments.spaces.Box(space.low[::2], space.high[::2], (2,), space.dtype)

    return Positions(), params


def recurrent(checkout: Path, positions: bool, total_timesteps: int):
    # Flax's GRUCell has taken the number of its units when it is made since version 0.7.
    script = load(checkout, "ppo_rnn.py", {
        "nn.GRUCell()(rnn_state, ins)": "nn.GRUCell(features=ins.shape[1])(rnn_state, ins)",
        "nn.GRUCell.initialize_carry(": "nn.GRUCell(features=hidden_size, parent=None).initialize_carry(",
        "(batch_size,), hidden_size": "(batch_size, hidden_size)",
    })
    if positions:
        make = gymnax.make
        script.gymnax = types.SimpleNamespace(make=lambda name: positions_only(*make(name)))
    return script.make_train({
        "LR": 2.5e-4, "NUM_ENVS": 4, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": total_timesteps, "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01,
        "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ENV_NAME": "CartPole-v1", "ANNEAL_LR": True, "DEBUG": False,
    })


def discovered(checkout: Path, total_timesteps: int):
    script = load(checkout, "dpo_continuous_action.py", {
        "            256, kernel_init": "            64, kernel_init",
        'BraxGymnaxWrapper(config["ENV_NAME"]), None': 'gymnax.make(config["ENV_NAME"])',
    })
    script.gymnax = gymnax
    clip = script.ClipAction
    script.ClipAction = lambda env: clip(env, low=-2.0, high=2.0)
    return script.make_train({
        "LR": 1e-3, "NUM_ENVS": 16, "NUM_STEPS": 128, "TOTAL_TIMESTEPS": total_timesteps, "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4, "GAMMA": 0.9, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "DPO_ALPHA": 2.0,
        "DPO_BETA": 0.6, "ENT_COEF": 0.0, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh",
        "ENV_NAME": "Pendulum-v1", "ANNEAL_LR": True, "NORMALIZE_ENV": True, "DEBUG": False,
    })


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="folder of a clone of luchris429/purejaxrl")
    parser.add_argument("algorithm", choices=["rnn", "rnn-positions", "dpo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--total-timesteps", type=int, default=500_000)
    args = parser.parse_args()
    if args.algorithm == "dpo":
        train = discovered(args.checkout, args.total_timesteps)
    else:
        train = recurrent(args.checkout, args.algorithm == "rnn-positions", args.total_timesteps)
    train = jax.jit(train)
    for seed in args.seeds:
        start = time.time()
        result = train(jax.random.PRNGKey(seed))
        metric = result.get("metric", result.get("metrics"))
        # Updates, steps and environments, in the order in which episodes ended.
        returns = np.asarray(metric["returned_episode_returns"])[np.asarray(metric["returned_episode"])]
        print(json.dumps({
            "algorithm": args.algorithm, "seed": seed, "total_timesteps": args.total_timesteps,
            "episodes": len(returns), "mean_return": round(float(returns[-100:].mean()), 1),
            "seconds": round(time.time() - start, 1),
        }), flush=True)


main()
