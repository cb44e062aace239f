"""Runs a training script and tells its steady steps per second.

usage: watch_sps.py BURNIN SECONDS script.py [its arguments]

Every logged charts/SPS (TensorBoard), or every wandb.log of a script that logs there, is a point:
global step and time. The burn-in begins with the second point. Prints `SPS x`, ends the script.
LeanRL's scripts count from their own burn-in on; here all count alike.
"""
import importlib.machinery
import os
import runpy
import sys
import time
import types

BURNIN, SECONDS = float(sys.argv[1]), float(sys.argv[2])
SCRIPT = sys.argv[3]
sys.argv = sys.argv[3:]
points = []


def point(step):
    points.append((int(step), time.perf_counter()))
    if len(points) < 2:
        return
    begin = points[1][1] + BURNIN
    first = next((p for p in points if p[1] >= begin), None)
    if first is not None and points[-1][1] - first[1] >= SECONDS:
        speed = (points[-1][0] - first[0]) / (points[-1][1] - first[1])
        print(f"SPS {speed}", flush=True)
        os._exit(0)


def stand_in():
    """A wandb that sends nothing."""
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    wandb.init = lambda *args, **kwargs: None
    wandb.log = lambda values, step=None, **kwargs: point(step)
    sys.modules["wandb"] = wandb


def watch_tensorboard():
    from torch.utils.tensorboard import SummaryWriter

    original = SummaryWriter.add_scalar

    def add_scalar(self, tag, value, global_step=None, *args, **kwargs):
        original(self, tag, value, global_step, *args, **kwargs)
        if tag == "charts/SPS":
            point(global_step)

    SummaryWriter.add_scalar = add_scalar


def older_envpool():
    """EnvPool as the scripts know it, with four things a step; and the `gym` that they import, of which they use
    the wrapper and the spaces' types, without the package, which nobody maintains and NumPy 2 breaks."""
    import gymnasium
    import numpy as np

    class Wrapper:
        def __init__(self, env):
            self.env = env

        def __getattr__(self, name):
            return getattr(self.env, name)

        def reset(self, **kwargs):
            return self.env.reset(**kwargs)

        def step(self, action):
            return self.env.step(action)

    gym = types.ModuleType("gym")
    gym.Wrapper, gym.spaces = Wrapper, gymnasium.spaces
    sys.modules["gym"] = gym
    try:
        import envpool
    except ImportError:
        return

    def both(obs, reward, terminated, truncated, info):
        return obs, reward, terminated | truncated, {**info, "TimeLimit.truncated": truncated}

    class Older(Wrapper):
        def reset(self):
            return self.env.reset()[0]

        def step(self, action):
            return both(*self.env.step(np.asarray(action)))

        def xla(self):
            handle, recv, send, step = self.env.xla()

            def older(handle, action):
                handle, told = step(handle, action)
                return handle, both(*told)

            return handle, recv, send, older

    make = envpool.make

    def make_older(*args, **kwargs):
        made = make(*args, **kwargs)
        return Older(made) if kwargs.get("env_type") == "gym" else made

    envpool.make = make_older


def older_jax():
    """Names of JAX's that are gone, and parameters in which newer flax may look for a key."""
    try:
        import flax
        import jax
    except ImportError:
        return
    jax.tree_map = jax.tree.map
    clip = jax.numpy.clip
    jax.numpy.clip = lambda x, min=None, max=None, a_min=None, a_max=None: clip(
        x, a_min if min is None else min, a_max if max is None else max
    )
    dataclass = flax.struct.dataclass

    def with_keys(cls, **kwargs):
        made = dataclass(cls, **kwargs)
        made.__contains__ = lambda self, key: False
        return made

    flax.struct.dataclass = with_keys


def older_tensordict():
    """TensorDictModule as LeanRL's SAC uses it, with more outputs than keys for them."""
    try:
        from tensordict.nn import TensorDictModule
    except ImportError:
        return
    write = TensorDictModule._write_to_tensordict

    def write_first(self, tensordict, tensors, tensordict_out=None, out_keys=None):
        keys = self.out_keys if out_keys is None else out_keys
        return write(self, tensordict, tuple(tensors)[: len(keys)], tensordict_out, out_keys)

    TensorDictModule._write_to_tensordict = write_first


if "envpool" in SCRIPT:
    older_envpool()
older_jax()
try:
    import ale_py  # noqa: F401, which tells gymnasium of its games.
except ImportError:
    pass
# Not `in SCRIPT`: "cleanrl" ends so too.
if "leanrl" in SCRIPT.split("/"):
    stand_in()
    older_tensordict()
else:
    watch_tensorboard()
folder = os.path.dirname(os.path.abspath(SCRIPT))
# CleanRL's scripts import `cleanrl_utils`, which lies beside their folder.
sys.path[:0] = [folder, os.path.dirname(folder)]
runpy.run_path(SCRIPT, run_name="__main__")
sys.exit("the script ended before it was measured")
