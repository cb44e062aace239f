"""TD3, DDPG (JAX) and SAC (PyTorch) on HalfCheetah-v4, DQN and C51 (JAX) on CartPole-v1, as CleanRL's
scripts are built: a gymnasium environment, a NumPy replay buffer, and on each step (DQN, C51: each
tenth) one compiled (JAX) or eager (PyTorch) update.

Reads the name of a row on each line and answers with its steps per second.
"""

import sys
import time

import gymnasium
import numpy as np

START, GAMMA, TAU, BATCH = 1000, 0.99, 0.005, 256


class Loop:
    """The loop of all three; `act` and `update` are the algorithm's."""

    def __init__(self, capacity=100_000):
        self.env = gymnasium.make("HalfCheetah-v4")
        space = self.env.observation_space.shape[0]
        actions = self.env.action_space.shape[0]
        self.low, self.high = self.env.action_space.low, self.env.action_space.high
        self.sizes, self.capacity, self.step = (space, actions), capacity, 0
        shapes = [(space,), (actions,), (), (space,), ()]
        self.store = [np.zeros((capacity, *shape), np.float32) for shape in shapes]
        self.obs = self.env.reset(seed=1)[0].astype(np.float32)
        self.rng = np.random.default_rng(1)
        self.build()

    def advance(self, steps):
        for _ in range(steps):
            if self.step < START:
                action = self.env.action_space.sample()
            else:
                action = self.act(self.obs)
            after, reward, terminated, truncated, _ = self.env.step(action)
            after = after.astype(np.float32)
            row = (self.obs, action, reward, after, float(terminated))
            for column, value in zip(self.store, row):
                column[self.step % self.capacity] = value
            self.obs = after
            if terminated or truncated:
                self.obs = self.env.reset()[0].astype(np.float32)
            self.step += 1
            if self.step > START:
                rows = self.rng.integers(0, min(self.step, self.capacity), BATCH)
                self.update([column[rows] for column in self.store])

    def rate(self, steps):
        start = time.perf_counter()
        self.advance(steps)
        self.finish()
        return steps / (time.perf_counter() - start)

    def finish(self):
        pass


class Jax(Loop):
    """TD3, or with one critic and no noise DDPG."""

    twin = True

    def build(self):
        import jax
        import jax.numpy as jnp
        import optax

        obs_size, action_size = self.sizes
        scale, bias = (self.high - self.low) / 2, (self.high + self.low) / 2
        low, high = self.low, self.high

        def layers(key, sizes):
            init = jax.nn.initializers.lecun_normal()
            keys = jax.random.split(key, len(sizes) - 1)
            shapes = zip(sizes, sizes[1:])
            return [(init(k, s), jnp.zeros(s[1])) for k, s in zip(keys, shapes)]

        def apply(layers, x):
            for w, b in layers[:-1]:
                x = jax.nn.relu(x @ w + b)
            return x @ layers[-1][0] + layers[-1][1]

        def policy(actor, obs):
            return jnp.tanh(apply(actor, obs)) * scale + bias

        def value(critic, obs, action):
            return apply(critic, jnp.concatenate([obs, action], -1))[:, 0]

        count = 2 if self.twin else 1
        keys = jax.random.split(jax.random.key(1), 1 + count)
        actor = layers(keys[0], [obs_size, 256, 256, action_size])
        critics = [layers(key, [obs_size + action_size, 256, 256, 1]) for key in keys[1:]]
        adam = optax.adam(3e-4)
        self.online = (actor, critics)
        self.targets = self.online
        self.moments = (adam.init(actor), adam.init(critics))
        self.key = jax.random.key(2)

        @jax.jit
        def update_critics(online, targets, moments, key, batch):
            actor, critics = online
            obs, action, reward, after, terminated = batch
            key, draw = jax.random.split(key)
            move = policy(targets[0], after)
            if self.twin:
                noise = jnp.clip(jax.random.normal(draw, move.shape) * 0.2, -0.5, 0.5) * scale
                move = jnp.clip(move + noise, low, high)
            least = jnp.stack([value(c, after, move) for c in targets[1]]).min(0)
            goal = reward + (1 - terminated) * GAMMA * least

            def loss(critics):
                return sum(((value(c, obs, action) - goal) ** 2).mean() for c in critics)

            lost, grads = jax.value_and_grad(loss)(critics)
            steps, moved = adam.update(grads, moments[1])
            online = (actor, optax.apply_updates(critics, steps))
            return online, (moments[0], moved), key, lost

        @jax.jit
        def update_actor(online, targets, moments, batch):
            actor, critics = online
            obs = batch[0]
            loss = lambda actor: -value(critics[0], obs, policy(actor, obs)).mean()
            lost, grads = jax.value_and_grad(loss)(actor)
            steps, moved = adam.update(grads, moments[0])
            online = (optax.apply_updates(actor, steps), critics)
            targets = optax.incremental_update(online, targets, TAU)
            return online, targets, (moved, moments[1]), lost

        self.updates, self.policy = (update_critics, update_actor), jax.jit(policy)
        self.scale = scale

    def act(self, obs):
        action = np.asarray(self.policy(self.online[0], obs[None])[0])
        action = action + self.rng.normal(0, self.scale * 0.1)
        return action.clip(self.low, self.high)

    def update(self, batch):
        critics, actor = self.updates
        result = critics(self.online, self.targets, self.moments, self.key, batch)
        self.online, self.moments, self.key, _ = result
        if self.step % 2 == 0:
            result = actor(self.online, self.targets, self.moments, batch)
            self.online, self.targets, self.moments, _ = result

    def finish(self):
        import jax

        jax.block_until_ready(self.online)


class Ddpg(Jax):
    twin = False


class Sac(Loop):
    def build(self):
        import torch
        from torch import nn

        self.torch = torch
        obs_size, action_size = self.sizes

        def net(inputs, outputs):
            hidden = [nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
            return nn.Sequential(*hidden, nn.Linear(256, outputs))

        self.actor = net(obs_size, 2 * action_size)
        self.critics = [net(obs_size + action_size, 1) for _ in range(2)]
        self.targets = [net(obs_size + action_size, 1) for _ in range(2)]
        for target, critic in zip(self.targets, self.critics):
            target.load_state_dict(critic.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        weights = [p for critic in self.critics for p in critic.parameters()]
        self.q_adam = torch.optim.Adam(weights, lr=1e-3)
        self.pi_adam = torch.optim.Adam(self.actor.parameters(), lr=3e-4)
        self.alpha_adam = torch.optim.Adam([self.log_alpha], lr=1e-3)
        self.scale = torch.tensor((self.high - self.low) / 2)
        self.bias = torch.tensor((self.high + self.low) / 2)

    def draw(self, obs):
        torch = self.torch
        mean, raw = self.actor(obs).chunk(2, -1)
        log_std = -5 + 3.5 * (torch.tanh(raw) + 1)
        normal = torch.distributions.Normal(mean, log_std.exp())
        x = normal.rsample()
        y = torch.tanh(x)
        log_prob = normal.log_prob(x) - torch.log(self.scale * (1 - y**2) + 1e-6)
        return y * self.scale + self.bias, log_prob.sum(-1)

    def act(self, obs):
        action, _ = self.draw(self.torch.from_numpy(obs[None]))
        return action.detach().numpy()[0]

    def values(self, critics, obs, action):
        joined = self.torch.cat([obs, action], -1)
        return [critic(joined)[:, 0] for critic in critics]

    def update(self, batch):
        torch = self.torch
        mse = torch.nn.functional.mse_loss
        obs, action, reward, after, terminated = map(torch.from_numpy, batch)
        with torch.no_grad():
            move, log_prob = self.draw(after)
            least = torch.min(*self.values(self.targets, after, move))
            soft = least - self.log_alpha.exp() * log_prob
            goal = reward + (1 - terminated) * GAMMA * soft
        loss = sum(mse(value, goal) for value in self.values(self.critics, obs, action))
        self.q_adam.zero_grad()
        loss.backward()
        self.q_adam.step()
        if self.step % 2 == 0:
            for _ in range(2):
                alpha = self.log_alpha.exp().item()
                move, log_prob = self.draw(obs)
                least = torch.min(*self.values(self.critics, obs, move))
                loss = (alpha * log_prob - least).mean()
                self.pi_adam.zero_grad()
                loss.backward()
                self.pi_adam.step()
                with torch.no_grad():
                    _, log_prob = self.draw(obs)
                target = self.sizes[1]
                loss = (-self.log_alpha.exp() * (log_prob - target)).mean()
                self.alpha_adam.zero_grad()
                loss.backward()
                self.alpha_adam.step()
        for critic, target in zip(self.critics, self.targets):
            for new, old in zip(critic.parameters(), target.parameters()):
                old.data.copy_(TAU * new.data + (1 - TAU) * old.data)


class Dqn:
    """CartPole-v1: an action each step, an update each tenth, the target network each 500th."""

    def __init__(self, capacity=10_000):
        self.env = gymnasium.make("CartPole-v1")
        self.capacity, self.step = capacity, 0
        shapes = [((4,), np.float32), ((), np.int32), ((), np.float32), ((4,), np.float32)]
        shapes.append(((), np.float32))
        self.store = [np.zeros((capacity, *shape), dtype) for shape, dtype in shapes]
        self.obs = self.env.reset(seed=1)[0]
        self.rng = np.random.default_rng(1)
        self.build()

    outputs = 2

    def build(self):
        import jax
        import jax.numpy as jnp
        import optax

        init = jax.nn.initializers.lecun_normal()
        sizes = [4, 120, 84, self.outputs]
        keys = jax.random.split(jax.random.key(1), 3)
        shapes = zip(sizes, sizes[1:])
        self.online = [(init(k, s), jnp.zeros(s[1])) for k, s in zip(keys, shapes)]
        self.target = self.online
        adam = self.adam(optax)
        self.moments = adam.init(self.online)

        def apply(layers, x):
            for w, b in layers[:-1]:
                x = jax.nn.relu(x @ w + b)
            return x @ layers[-1][0] + layers[-1][1]

        @jax.jit
        def update(online, target, moments, batch):
            lost, grads = jax.value_and_grad(self.loss(jax, apply))(online, target, batch)
            steps, moments = adam.update(grads, moments)
            return optax.apply_updates(online, steps), moments, lost

        self.best = jax.jit(lambda online, obs: self.values(jax, apply, online, obs).argmax(-1))
        self.jitted = update

    def adam(self, optax):
        return optax.adam(2.5e-4)

    def values(self, jax, apply, online, obs):
        return apply(online, obs)

    def loss(self, jax, apply):
        def loss(online, target, batch):
            obs, action, reward, after, terminated = batch
            goal = reward + (1 - terminated) * GAMMA * apply(target, after).max(-1)
            value = apply(online, obs)[jax.numpy.arange(128), action]
            return ((value - goal) ** 2).mean()

        return loss

    def advance(self, steps):
        for _ in range(steps):
            # CleanRL's part of random actions early in learning.
            if self.step < START or self.rng.random() < 0.95:
                action = self.env.action_space.sample()
            else:
                action = int(np.asarray(self.best(self.online, self.obs[None]))[0])
            after, reward, terminated, truncated, _ = self.env.step(action)
            row = (self.obs, action, reward, after, float(terminated))
            for column, value in zip(self.store, row):
                column[self.step % self.capacity] = value
            self.obs = self.env.reset()[0] if terminated or truncated else after
            self.step += 1
            if self.step > START and self.step % 10 == 0:
                rows = self.rng.integers(0, min(self.step, self.capacity), 128)
                batch = [column[rows] for column in self.store]
                result = self.jitted(self.online, self.target, self.moments, batch)
                self.online, self.moments, _ = result
                if self.step % 500 == 0:
                    self.target = self.online

    def rate(self, steps):
        import jax

        start = time.perf_counter()
        self.advance(steps)
        jax.block_until_ready(self.online)
        return steps / (time.perf_counter() - start)


class C51(Dqn):
    """The same with 101 atoms, projected without a loop."""

    outputs = 2 * 101
    atoms = np.linspace(-100, 100, 101).astype(np.float32)

    def adam(self, optax):
        return optax.adam(2.5e-4, eps=0.01 / 128)

    def probs(self, jax, apply, online, obs):
        return jax.nn.softmax(apply(online, obs).reshape(len(obs), 2, 101), -1)

    def values(self, jax, apply, online, obs):
        return (self.probs(jax, apply, online, obs) * self.atoms).sum(-1)

    def loss(self, jax, apply):
        jnp = jax.numpy

        def loss(online, target, batch):
            obs, action, reward, after, terminated = batch
            rows = jnp.arange(128)
            following = self.probs(jax, apply, target, after)
            following = following[rows, (following * self.atoms).sum(-1).argmax(-1)]
            discount = GAMMA * (1 - terminated)
            moved = reward[:, None] + discount[:, None] * self.atoms
            place = (moved.clip(-100, 100) + 100) / 2
            low = jnp.clip(jnp.floor(place), 0, 100).astype(int)
            high = jnp.clip(jnp.ceil(place), 0, 100).astype(int)
            goal = jnp.zeros_like(following)
            goal = goal.at[rows[:, None], low].add(following * (high + (low == high) - place))
            goal = goal.at[rows[:, None], high].add(following * (place - low))
            probs = self.probs(jax, apply, online, obs)[rows, action]
            goal = jax.lax.stop_gradient(goal)
            return -(goal * jnp.log(jnp.clip(probs, 1e-5, 1 - 1e-5))).sum(-1).mean()

        return loss


ROWS = {"td3": (Jax, 2000), "ddpg": (Ddpg, 3000), "sac": (Sac, 500), "dqn": (Dqn, 20000),
        "c51": (C51, 10000)}
loops = {}
for line in sys.stdin:
    make, steps = ROWS[line.strip()]
    if line not in loops:
        loops[line] = make()
        loops[line].advance(START + 100)  # Fills the buffer, and compiles.
    print(loops[line].rate(steps), flush=True)
