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


# Not `in SCRIPT`: "cleanrl" ends so too.
if "leanrl" in SCRIPT.split("/"):
    stand_in()
else:
    watch_tensorboard()
folder = os.path.dirname(os.path.abspath(SCRIPT))
# CleanRL's scripts import `cleanrl_utils`, which lies beside their folder.
sys.path[:0] = [folder, os.path.dirname(folder)]
runpy.run_path(SCRIPT, run_name="__main__")
sys.exit("the script ended before it was measured")
