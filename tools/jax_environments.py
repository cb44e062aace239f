"""Writes JAX environments as two programs, `reset.txt` and `step.txt`, for `--env-id jax:FOLDER`.

The programs are those of one environment; Podracer maps them over a batch.

    reset(key) -> (observation, state..)
    step(key, state.., action) -> (observation, state.., reward, terminated, truncated)

`key` is u32[2], and `state..` are the leaves of the state's pytree. A step never resets: Podracer
starts the next episode. The first line of `step.txt` describes the spaces.
"""

import argparse
import math
import sys
from pathlib import Path

import jax
import numpy as np
from jax import numpy as jnp

from jax_to_podracer import Unsupported, save


def discrete(n):
    """Space of the whole numbers from 0 to `n - 1`."""
    return {"kind": "discrete", "n": int(n)}


def box(low, high, shape=(), dtype="float32"):
    """Space of arrays between two bounds, each a number or an array."""

    def side(bound):
        bound = np.broadcast_to(np.asarray(bound, np.float64), shape)
        numbers = [float(x) if math.isfinite(x) else None for x in bound.reshape(-1)]
        same = len(set(numbers)) == 1
        return numbers[0] if same else numbers

    return {"kind": "box", "shape": list(shape), "dtype": dtype, "low": side(low), "high": side(high)}


def observed(obs):
    """An observation as one array: several leaves become one vector, in the order of the pytree."""
    leaves = jax.tree_util.tree_leaves(obs)
    if len(leaves) != 1:
        return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in leaves])
    (obs,) = leaves
    obs = jnp.asarray(obs)
    return obs if obs.dtype in (jnp.float32, jnp.uint8, jnp.bool_) else obs.astype(jnp.float32)


def same_state(before, after):
    """Refuses a step that changes the structure or the types of the state."""
    if jax.tree_util.tree_structure(before) != jax.tree_util.tree_structure(after):
        raise ValueError("step returns a state of another structure than reset: "
                         f"{jax.tree_util.tree_structure(after)}, not "
                         f"{jax.tree_util.tree_structure(before)}")
    pairs = zip(jax.tree_util.tree_flatten_with_path(before)[0], jax.tree_util.tree_leaves(after))
    for (path, a), b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(f"state{jax.tree_util.keystr(path)} is {a.dtype}{list(a.shape)} after "
                             f"reset and {b.dtype}{list(b.shape)} after a step")


def save_environment(folder, reset, step, *, action, observation=None, max_episode_steps=None,
                     reward_threshold=None, num_players=1, name=None):
    """Writes the environment of the functions `reset(key)`, which gives an observation and a state,
    and `step(key, state, action)`, which gives an observation, a state, a reward, `terminated` and,
    if there is one, `truncated`. Both are pure, of one environment, and `step` never resets.

    `action` and `observation` are spaces: `discrete(n)` or `box(low, high, shape)`. Observations
    without a space are unbounded. Actions of a box are clipped to it before `step` gets them.
    `max_episode_steps` is a time limit that Podracer applies; an episode that it ends is truncated.
    With `num_players=2` the steps alternate between two players: an observation is that of the
    player to move, and a reward that of the player who has moved.
    """
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    first, state = jax.eval_shape(lambda key: with_observation(reset(key)), key)
    if observation is None:
        observation = box(-np.inf, np.inf, first.shape, first.dtype.name)
    observation = {**observation, "shape": list(first.shape), "dtype": first.dtype.name}
    space = action
    taken = example_action(space)

    def one_step(key, state, action):
        if space["kind"] == "box":
            action = jnp.clip(action, bound(space, "low"), bound(space, "high"))
        obs, state, reward, terminated, *truncated = step(key, state, action)
        flag = lambda x: jnp.reshape(jnp.asarray(x), ()).astype(bool)
        reward = jnp.reshape(jnp.asarray(reward, jnp.float32), ())
        return observed(obs), state, reward, flag(terminated), flag(truncated[0] if truncated else False)

    after = jax.eval_shape(one_step, key, state, taken)
    same_state(state, after[1])
    if (after[0].shape, after[0].dtype) != (first.shape, first.dtype):
        raise ValueError(f"the observation is {first.dtype}{list(first.shape)} after reset and "
                         f"{after[0].dtype}{list(after[0].shape)} after a step")
    environment = {
        "id": name or Path(folder).name,
        "observation": observation,
        "action": space,
        "max_episode_steps": max_episode_steps,
        "reward_threshold": reward_threshold,
        **({"num_players": num_players} if num_players != 1 else {}),
    }
    folder = Path(folder)
    save(folder / "reset.txt", lambda key: with_observation(reset(key)), key, derivatives=False)
    save(folder / "step.txt", one_step, key, state, taken,
         metadata={"environment": environment}, derivatives=False)


def with_observation(pair):
    obs, state = pair
    return observed(obs), jax.tree_util.tree_map(jnp.asarray, state)


def example_action(space):
    if space["kind"] == "discrete":
        return jax.ShapeDtypeStruct((), jnp.int32)
    if space["kind"] == "multi_discrete":
        return jax.ShapeDtypeStruct((len(space["nvec"]),), jnp.int32)
    return jax.ShapeDtypeStruct(tuple(space["shape"]), jnp.float32)


def bound(space, side):
    infinite = -np.inf if side == "low" else np.inf
    given = space[side]
    numbers = given if isinstance(given, list) else [given]
    numbers = np.asarray([infinite if x is None else x for x in numbers], np.float32)
    return np.broadcast_to(numbers.reshape(space["shape"] if isinstance(given, list) else ()),
                           space["shape"])


# ---- gymnax ------------------------------------------------------------------------------------


def gymnax_environment(name, **_):
    """`reset_env` and `step_env` of gymnax 1.0 and later, with its time limit."""
    import gymnax

    env, params = gymnax.make(name)
    if not hasattr(env, "is_truncated"):
        raise SystemExit(f"gymnax:{name}: gymnax 1.0 or later is needed")

    def reset(key):
        return env.reset_env(key, params)

    def step(key, state, action):
        obs, state, reward, terminated, _ = env.step_env(key, state, action, params)
        return obs, state, reward, terminated, env.is_truncated(state, params)

    limit = getattr(params, "max_steps_in_episode", None)
    space = env.action_space(params)
    if hasattr(space, "n"):
        action = discrete(space.n)
    else:
        action = box(space.low, space.high, space.shape)
    return dict(reset=reset, step=step, action=action, observation=bounds_of(env, params),
                max_episode_steps=None if limit is None else int(limit))


def bounds_of(env, params):
    space = env.observation_space(params)
    if not (hasattr(space, "low") and hasattr(space, "shape")):
        return None
    return box(space.low, space.high, tuple(space.shape))


# ---- PGX ---------------------------------------------------------------------------------------


# Games of two players who alternate.
ALTERNATING = {"animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "go_19x19", "hex",
               "othello", "shogi", "tic_tac_toe"}


def pgx_self_play(name):
    """A game of PGX for two players who alternate, for `ppo_self_play`: the observation is that of
    the player to move and ends with the mask of legal actions."""
    import pgx

    if name not in ALTERNATING:
        raise SystemExit(f"pgx:{name}: --self-play is for {', '.join(sorted(ALTERNATING))}")
    env = pgx.make(name)

    def observe(state):
        obs = env.observe(state, state.current_player)
        return jnp.concatenate([obs.ravel().astype(jnp.float32),
                                state.legal_action_mask.astype(jnp.float32)])

    def reset(key):
        state = env.init(key)
        return observe(state), state

    def step(key, state, action):
        player = state.current_player
        state = env.step(state, action[0], key)
        return observe(state), state, state.rewards[player], state.terminated, state.truncated

    action = dict(kind="multi_discrete", nvec=[env.num_actions], masked=True)
    return dict(reset=reset, step=step, action=action, num_players=2)


def pgx_environment(name, action_mask=False, self_play=False, **_):
    """A game of PGX for one player. Other players move at random among their legal actions, and an
    illegal action loses, as in PGX. With `action_mask` the observation is a vector that ends with
    the mask of legal actions, for `ppo_masked`. With `self_play` it has two players."""
    import pgx

    if self_play:
        return pgx_self_play(name)
    env = pgx.make(name)
    me = 0

    def observe(state):
        obs = env.observe(state, me)
        if not action_mask:
            return obs
        return jnp.concatenate([obs.ravel().astype(jnp.float32),
                                state.legal_action_mask.astype(jnp.float32)])

    def others(carry):
        def theirs(carry):
            state, _, _ = carry
            return (state.current_player != me) & ~state.terminated & ~state.truncated

        def move(carry):
            state, reward, key = carry
            key, action_key, step_key = jax.random.split(key, 3)
            logits = jnp.where(state.legal_action_mask, 0.0, -jnp.inf)
            action = jax.random.categorical(action_key, logits)
            state = env.step(state, action, step_key)
            return state, reward + state.rewards[me], key

        return jax.lax.while_loop(theirs, move, carry)

    def reset(key):
        init_key, key = jax.random.split(key)
        state, _, _ = others((env.init(init_key), jnp.float32(0), key))
        return observe(state), state

    def step(key, state, action):
        step_key, key = jax.random.split(key)
        action = action[0] if action_mask else action
        state = env.step(state, action, step_key)
        state, reward, _ = others((state, state.rewards[me].astype(jnp.float32), key))
        return observe(state), state, reward, state.terminated, state.truncated

    n = env.num_actions
    action = dict(kind="multi_discrete", nvec=[n], masked=True) if action_mask else discrete(n)
    return dict(reset=reset, step=step, action=action)


# ---- Brax --------------------------------------------------------------------------------------


def brax_environment(name, backend="generalized", **_):
    """A task of Brax, with the time limit of 1000 steps that its `EpisodeWrapper` has by default."""
    from brax import envs

    env = envs.get_environment(name, backend=backend)

    def reset(key):
        state = env.reset(key)
        return state.obs, state

    def step(key, state, action):
        state = env.step(state, action)
        return state.obs, state, state.reward, state.done > 0.5

    action = box(-1.0, 1.0, (env.action_size,))
    return dict(reset=reset, step=step, action=action, max_episode_steps=1000)


FAMILIES = {"gymnax": gymnax_environment, "pgx": pgx_environment, "brax": brax_environment}


def make(id, **options):
    """The arguments of `save_environment` for an id such as `gymnax:CartPole-v1`."""
    family, _, name = id.partition(":")
    if family not in FAMILIES or not name:
        raise SystemExit(f"{id}: expected an id such as gymnax:CartPole-v1, pgx:connect_four or brax:ant")
    try:
        return dict(FAMILIES[family](name, **options), name=id)
    except ModuleNotFoundError as error:
        raise SystemExit(f"{id}: {error}; python -m pip install {family}") from None


def main():
    parser = argparse.ArgumentParser(
        prog="jax_to_podracer.py", description="Writes a JAX environment as programs for Podracer.")
    parser.add_argument("id", help="gymnax:CartPole-v1, pgx:connect_four, brax:ant, ..")
    parser.add_argument("--out", required=True, help="the folder to write, for --env-id jax:FOLDER")
    parser.add_argument("--backend", default="generalized",
                        help="of Brax: generalized, positional or spring")
    parser.add_argument("--action-mask", action="store_true",
                        help="of PGX: the observation ends with the mask of legal actions")
    parser.add_argument("--self-play", action="store_true",
                        help="of PGX: two players who alternate, for ppo_self_play")
    args = parser.parse_args()
    made = make(args.id, backend=args.backend, action_mask=args.action_mask, self_play=args.self_play)
    try:
        save_environment(args.out, **made)
    except Unsupported as error:
        raise SystemExit(f"{args.id}: {error}") from None
    size = sum((Path(args.out) / name).stat().st_size for name in ("reset.txt", "step.txt"))
    masked = "ppo_masked" if args.action_mask else "ppo_anakin"
    algorithm = "ppo_self_play" if args.self_play else masked
    print(f"{args.out}: {size} bytes; podracer train {algorithm} --env-id jax:{args.out}")


if __name__ == "__main__":
    sys.exit("start jax_to_podracer.py")
