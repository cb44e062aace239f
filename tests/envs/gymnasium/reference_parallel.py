"""Steps games with PettingZoo's parallel API itself: settings on standard input, results on standard output, in JSON.

Every step resets a game without agents, as a pool does that resets in the same step.
"""

import importlib
import json
import sys

import numpy as np


def numbers(space, obs):
    """The observation of an agent; zeros if it is out of the game."""
    return [float(x) for x in np.ravel(np.zeros(space.shape) if obs is None else obs)]


def main():
    settings = json.load(sys.stdin)
    module = importlib.import_module(settings["module"])
    games, results = [], {"first": [], "steps": []}
    for seed in settings["seeds"]:
        game = module.parallel_env(**settings["kwargs"])
        obs, _ = game.reset(seed=seed)
        space = game.observation_space(game.possible_agents[0])
        results["first"] += [numbers(space, obs.get(agent)) for agent in game.possible_agents]
        games.append(game)
    agents = len(games[0].possible_agents)
    for actions in settings["actions"]:
        rows = []
        for k, game in enumerate(games):
            names, live = game.possible_agents, list(game.agents)
            own = actions[k * agents : (k + 1) * agents]
            obs, rewards, terminations, truncations, _ = game.step(
                {name: int(action[0]) for name, action in zip(names, own) if name in live}
            )
            over = not game.agents
            last = [numbers(space, obs.get(name)) if over else None for name in names]
            if over:
                obs, _ = game.reset()
            for name, last in zip(names, last):
                lives = name in live
                rows.append({
                    "reward": float(rewards.get(name, 0)) if lives else 0.0,
                    "over": over,
                    "out": not over and name not in game.agents,
                    "truncated": bool(over and lives and truncations[name]),
                    "last": last,
                    "obs": numbers(space, obs.get(name)),
                })
        results["steps"].append(rows)
    json.dump(results, sys.stdout)


main()
