"""Sends a training run to Weights & Biases.

Standard input has one JSON object a line: first {"trainer": PID, "init": {..}}, then
{"step": 128, "scalars": {"losses/entropy": 0.5}}, {"step": 128, "key": "videos", "video": FILE},
{"save": FILE, "base": FOLDER} and {"exit_code": 0}. The end of standard input ends the run. Standard output gets lines
that begin with `info` or `problem`.
"""

import sys

# Modules and the folder `wandb` of earlier runs in the working directory are no packages.
if sys.path and sys.path[0] == "":
    del sys.path[0]

import json
import os
import signal
import threading
import time

# Seconds to send the last data after the trainer was killed.
GRACE = 60

# Ctrl-C is for the trainer; this process ends with its input.
signal.signal(signal.SIGINT, signal.SIG_IGN)
replies = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
os.dup2(2, 1)


def reply(kind, text):
    try:
        print(kind, " ".join(str(text).split()), file=replies, flush=True)
    except OSError:
        pass


def fail(text):
    reply("problem", text)
    os._exit(0)


def end_after(trainer):
    """Ends this process some time after the trainer, which may be killed while the package waits for a network."""
    while True:
        try:
            os.kill(trainer, 0)
        except ProcessLookupError:
            break
        time.sleep(1)
    time.sleep(GRACE)
    os._exit(1)


def messages():
    for line in sys.stdin.buffer:
        try:
            yield json.loads(line)
        except ValueError:
            return  # The trainer was killed while it wrote the line.


def start(trainer, init):
    try:
        import wandb
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            fail(f"import wandb: {error}")
        fail(f"the Python package wandb is missing; install it with: {sys.executable} -m pip install wandb")
    except Exception as error:
        fail(f"import wandb: {type(error).__name__}: {error}")
    try:
        settings = {"silent": True, "console": "off", "x_stats_pid": trainer}
        known = getattr(wandb.Settings, "model_fields", None)
        if known is not None:
            settings = {name: value for name, value in settings.items() if name in known}
        run = wandb.init(settings=wandb.Settings(**settings), **init)
        # As with `sync_tensorboard`: the charts' axis is the timestep.
        run.define_metric("global_step")
        run.define_metric("*", step_metric="global_step")
    except BaseException as error:
        fail(f"wandb.init: {error}; `wandb login`, or WANDB_MODE=offline to send the run later")
    if run.url:
        reply("info", f"wandb: {run.name} is at {run.url}")
    else:
        folder = os.path.relpath(os.path.dirname(run.dir))
        reply("info", f"wandb: {run.name} is offline; `wandb sync {folder}` sends it")
    return wandb, run


def follow(wandb, run, lines):
    """Logs the messages. Scalars of one timestep become one row, as with `sync_tensorboard`."""
    row, exit_code = {}, 1
    for message in lines:
        scalars = message.get("scalars")
        if row and (scalars is None or row["global_step"] != message["step"] or not row.keys().isdisjoint(scalars)):
            run.log(row)
            row = {}
        if scalars is not None:
            row.update(scalars, global_step=message["step"])
        elif "video" in message:
            path = message["video"]
            video = wandb.Video(path, format=os.path.splitext(path)[1][1:])
            run.log({message["key"]: video, "global_step": message["step"]})
        elif "save" in message:
            run.save(message["save"], base_path=message["base"], policy="now")
        else:
            exit_code = message["exit_code"]
    if row:
        run.log(row)
    run.finish(exit_code=exit_code)


lines = messages()
try:
    first = next(lines)
    threading.Thread(target=end_after, args=[first["trainer"]], daemon=True).start()
    wandb, run = start(first["trainer"], first["init"])
    follow(wandb, run, lines)
except StopIteration:
    pass
except Exception as error:
    fail(f"wandb: {type(error).__name__}: {error}")
