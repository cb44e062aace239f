"""Games of PettingZoo's parallel API for the tests; the package is not needed to write one."""

import numpy as np
from gymnasium import spaces


class Survival:
    """Three agents. Each is out of the game with probability 1/10 a step, and the last one ends it. The first
    action of an agent adds to its reward."""

    metadata = {"render_modes": ["rgb_array"], "name": "survival"}

    def __init__(self, image=False, max_cycles=40, fault=None, render_mode=None):
        self.possible_agents = ["red", "green", "blue"]
        self.agents = []
        shape, dtype = ((4, 84, 84), np.uint8) if image else ((3,), np.float32)
        self.space = spaces.Box(0, 255, shape, dtype)
        self.max_cycles, self.fault, self.render_mode = max_cycles, fault, render_mode
        self.random = None

    def observation_space(self, agent):
        return spaces.Box(0, 1, (2,), np.float32) if self.fault == "spaces" and agent == "blue" else self.space

    def action_space(self, agent):
        return spaces.Discrete(4)

    def observe(self, agents):
        draw = self.random.integers
        return {agent: draw(256, size=self.space.shape).astype(self.space.dtype) for agent in agents}

    def reset(self, seed=None, options=None):
        if seed is not None or self.random is None:
            self.random = np.random.default_rng(seed)
        self.agents, self.steps = list(self.possible_agents), 0
        return self.observe(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert list(actions) == self.agents, actions
        self.steps += 1
        if self.fault == "raise" and self.steps == 3:
            raise RuntimeError("the ball is lost")
        live = self.agents
        terminations = {agent: bool(self.random.random() < 0.1) for agent in live}
        truncations = {agent: self.steps >= self.max_cycles for agent in live}
        self.agents = [agent for agent in live if not (terminations[agent] or truncations[agent])]
        rewards = {agent: 0.5 + int(action) for agent, action in actions.items()}
        return self.observe(live), rewards, terminations, truncations, {agent: {} for agent in live}

    def render(self):
        return np.full((6, 8, 3), self.steps, np.uint8)

    def close(self):
        pass


parallel_env = Survival


class Brighter:
    """Wrapper that adds to the rewards of all agents."""

    def __init__(self, env, by=1.0):
        self.env, self.by = env, by

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, actions):
        obs, rewards, *rest = self.env.step(actions)
        return obs, {agent: reward + self.by for agent, reward in rewards.items()}, *rest


def continuous(**kwargs):
    """The game with actions of two numbers, of which the first counts."""
    game = Survival(**kwargs)
    game.action_space = lambda agent: spaces.Box(0, 1, (2,), np.float32)
    step = game.step
    game.step = lambda actions: step({agent: action[0] * 4 for agent, action in actions.items()})
    return game


def narrow(**kwargs):
    """The game with actions between bounds that f32 rounds."""
    game = Survival(**kwargs)
    space = spaces.Box(np.array([-0.1, 0.1]), np.array([0.3, 0.7]), dtype=np.float64)
    game.action_space = lambda agent: space
    step = game.step

    def checked(actions):
        assert all(space.contains(action) for action in actions.values()), actions
        return step({agent: 0 for agent in actions})

    game.step = checked
    return game


class Odd(Survival):
    """A game whose first step has something wrong in its results."""

    def __init__(self, wrong):
        super().__init__()
        self.wrong = wrong
        if wrong == "twice":
            self.possible_agents = ["red", "red"]

    def reset(self, seed=None, options=None):
        obs, infos = super().reset(seed=seed)
        if self.wrong == "reset":
            del obs["blue"]
        return obs, infos

    def step(self, actions):
        results = list(super().step(actions))
        for k, name in enumerate(["obs", "reward", "termination", "truncation"]):
            if self.wrong == f"no {name}":
                del results[k]["blue"]
            if self.wrong == f"unknown {name}":
                results[k]["violet"] = results[k]["blue"]
            if self.wrong == f"None as {name}":
                results[k]["blue"] = None
        if self.wrong == "unknown agent":
            self.agents.append("violet")
        if self.wrong == "agent twice":
            self.agents = ["red", "red"]
        if self.wrong == "list":
            results[0] = list(results[0].values())
        return results[:4] if self.wrong == "arity" else tuple(results)


class Nameless(Survival):
    """A game that does not say which agents it may have."""

    def __init__(self):
        super().__init__()
        del self.possible_agents
